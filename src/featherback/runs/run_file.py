"""Option files in YAML: every run writes run.yaml, and `train --config` reads such files.

run.yaml shows the options of run.json to people, and serves to repeat the run; only `--config` reads it. Options have
their Python names; "model" is the model's path. "plan" is the memory layout of the run, on which the last bits of its
result depend. The plan contains a checksum, "of", of the options that it was made for. If they have changed, a new plan
is made.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from featherback.core.decode import encode
from featherback.core.files import json_checksum, read_bytes
from featherback.core.options import described
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError, excerpt
from featherback.runs.by_name import field_of, given
from featherback.runs.changes import with_overrides
from featherback.runs.config import CHOICES, TrainConfig, unused_options
from featherback.runs.names import grouped, known, spellings
from featherback.runs.panels.run import PLANNED
from featherback.runs.record import RunRecord

if TYPE_CHECKING:
    import yaml

RUN_YAML = "run.yaml"
MODEL, PLAN, _OF = "model", "plan", "of"
_MOST = 1 << 20  # bytes of a file
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # YAML 1.1 booleans and null
_SCALARS = {
    "null": r"(null|Null|NULL|~|)\Z",
    "bool": r"(true|True|TRUE|false|False|FALSE)\Z",
    "int": r"[-+]?[0-9]{1,99}\Z",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z",
}
"""Types of plain scalars in YAML 1.2, where `1e-4` is a number and `no` is text; PyYAML has those of YAML 1.1."""
_HEAD = """\
# The options of this run. To repeat it:  featherback train --config run.yaml --out NEW
# To continue it after an interruption:   featherback train --config run.yaml --out THIS --resume
# You may edit this file. Options on the command line override it.
"""


@dataclass
class RunFile:
    """The checked content of an option file: fields of TrainConfig, or of an optimiser or method."""

    values: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    plan: dict[str, Any] | None = None
    where: dict[str, str] = field(default_factory=dict)
    """Field -> its file and line, for messages."""

    def config(self, named: Mapping[str, Any]) -> TrainConfig:
        """Return these options, overridden by `named`.

        Raises FeatherbackError if they do not fit together; the message names the line whose removal would help.
        """
        values = with_overrides(self.values, named)
        try:
            return TrainConfig.of(**values)
        except FeatherbackError as error:
            for name in reversed(self.where):
                if name in values and name not in named and _are_compatible(values, without=name):
                    raise FeatherbackError(f"{self.where[name]}: {error}") from None
            raise

    def plan_for(self, config: TrainConfig) -> dict[str, Any] | None:
        """Return the plan if it was made for these options, otherwise None."""
        if self.plan is None or self.plan.get(_OF) != _checksum(config):
            return None
        return {name: value for name, value in self.plan.items() if name != _OF}


def render(record: RunRecord) -> str:
    """Return the text of run.yaml for a run's record."""
    config = record.configuration
    unused = unused_options(type(config), config.train)
    files = {"data": record.sources.get("train"), "eval_data": record.sources.get("eval")}
    values = {
        **{name: value for name, value in _options_as_written(config).items() if name not in unused},
        **_own_options(config),
        **{name: found.paths for name, found in files.items() if found and STDIN not in found.paths},
    }
    lines = [_HEAD, f"{MODEL}: {_yaml(os.path.abspath(config.model))}"]
    owned = {own.choice: own.make(getattr(config, own.choice), getattr(config, own.field)) for own in CHOICES}
    for panel, names in grouped(all_of_choices=False).items():
        lines.append(f"\n# {panel}")
        for name in names:
            if name in values:
                lines.append(f"{spellings(TrainConfig, name)[0]}: {_yaml(values[name])}")
            elif files.get(name):
                lines.append(f"# {name}: read from standard input; give it on the command line")
            elif name in files and getattr(config, name) is not None:
                lines.append(f"# {name}: passed from Python, not as a file")
            if name in owned:
                chosen = type(owned[name])
                lines += [f"{spellings(chosen, each)[0]}: {_yaml(values[each])}" for each in described(chosen)]
    if record.plan is not None:
        lines.append("\n# The memory layout, valid only for exactly these options.")
        lines.append(f"{PLAN}: {_yaml({_OF: _checksum(config), **encode(record.plan)})}")
    return "\n".join(lines) + "\n"


def render_options(values: Mapping[str, Any], head: str) -> str:
    """Return the text of an option file with these options, by their usual names, in the order of the help.

    `head`: the comment at the top, without "#".
    """
    order = [MODEL, "out", *(spellings(known()[name][0], name)[0] for names in grouped().values() for name in names)]
    lines = [f"# {line}" for line in head.splitlines()]
    lines += [f"{name}: {_yaml(values[name])}" for name in sorted(values, key=order.index)]
    return "\n".join(lines) + "\n"


def read(path: str | os.PathLike[str]) -> RunFile:
    """Read an option file. Raises FeatherbackError, with file, line and option, if it cannot be used."""
    import yaml  # only here: training does not need it

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    for tag, pattern in _SCALARS.items():
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), None)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))  # 010 is ten
    found, lines = RunFile(), dict[str, int]()
    try:
        loader = Loader(read_bytes(Path(path), _MOST).decode("utf-8-sig"))
        root = loader.get_single_node()
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise FeatherbackError(
                f"{_file_and_line(path, root.start_mark)} is not an option; write lines such as lr: 0.0002."
            )
        for key, node in root.value if root is not None else ():
            _read_entry(found, lines, key, loader.construct_object(node, deep=True), path)
    except UnicodeDecodeError as error:
        raise FeatherbackError(f"{path} is not UTF-8 text: {error.reason}.") from None
    except RecursionError:
        raise FeatherbackError(f"{path} is nested too deeply.") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a tag such as !!int before a word
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise FeatherbackError(f"{_file_and_line(path, mark)} is not YAML: {problem}.") from None
    return found


def _are_compatible(values: Mapping[str, Any], without: str) -> bool:
    """Return whether the options fit together without the option `without`; required options may be missing."""
    rest = {name: value for name, value in values.items() if name != without}
    try:
        TrainConfig.of(**{MODEL: "", "out": "", **rest})
    except FeatherbackError:
        return False
    return True


def _read_entry(found: RunFile, lines: dict[str, int], key: yaml.Node, value: Any, path: Any) -> None:
    where, line = _file_and_line(path, key.start_mark), key.start_mark.line + 1
    name = key.value if isinstance(key.value, str) else excerpt(key.value)
    try:
        field = name if name in (MODEL, PLAN) else field_of(name, "training")
        if field in lines:
            raise FeatherbackError(f"{name} is already set in line {lines[field]}; remove one of them.")
        lines[field] = line
        if value is None:
            return
        if field == PLAN:
            found.plan = value if isinstance(value, dict) else None
            return
        if not all(each is None or isinstance(each, (str, int, float)) for each in _listed(value)):
            raise FeatherbackError("a value must be a number, true, false, text, or a list of texts.")
        if field != MODEL:
            found.values[field] = given(field, value, name)
            found.where[field] = where
        elif isinstance(value, str):
            found.model = value
        else:
            raise FeatherbackError(f"{name} is {excerpt(value)}; it must be text.")
    except FeatherbackError as error:
        raise FeatherbackError(f"{where}: {error}") from None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _options_as_written(config: TrainConfig) -> dict[str, Any]:
    """Return the options of a run as a user would write them, with absolute paths, without `out` and data paths."""
    values: dict[str, Any] = {}
    for name, about in described(TrainConfig).items():
        value: Any = getattr(config, name)
        if value is None or name in ("out", "data", "eval_data"):
            continue
        if about.is_path:
            value = os.path.abspath(value)
        values[name] = about.written(value) if about.written else value
    return values


def _own_options(config: TrainConfig) -> dict[str, Any]:
    """Return the options that belong to the chosen optimiser, method and objective."""
    return {name: value for own in CHOICES for name, value in getattr(config, own.field).items()}


def _checksum(config: TrainConfig) -> str:
    """Return a checksum of all options that a plan can depend on: fixed options, PLANNED and the model's path."""
    fixed = config.fixed()
    names = fixed.keys() | set(PLANNED)
    stated = {name: value for name, value in _options_as_written(config).items() if name in names}
    stated["batch_tokens"] = fixed["batch_tokens"]
    parts = [os.path.abspath(config.model), sorted(stated.items()), sorted(_own_options(config).items())]
    return json_checksum(parts)


def _yaml(value: Any) -> str:
    """Return a value as YAML that YAML 1.1 and 1.2 readers understand alike."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_yaml(name)}: {_yaml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        text = json.dumps(value, ensure_ascii=False)
        return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")  # YAML 1.1 readers take 1e-05 for text
    return json.dumps(value)


def _file_and_line(path: str | os.PathLike[str], mark: Any) -> str:
    return os.fspath(path) if mark is None else f"{os.fspath(path)}, line {mark.line + 1}"
