"""The options of `train` in a YAML file: written beside every run as run.yaml, read by `train --config`.

run.yaml is a rendering of what run.json says, for people and for repeating the run: nothing reads it unasked. A file
has options by the names that they have in Python, and "model"; "plan" is how the run laid out its memory, on which the
last bits of what it computes depend. A plan is for the options that it was made with, whose checksum is in it as "of":
where options are changed it is made anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featherback.core.files import json_checksum, read_bytes
from featherback.core.options import described
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError, shown
from featherback.runs.changes import replaced
from featherback.runs.config import CHOICES, TrainConfig, without_meaning
from featherback.runs.names import field_of, given, grouped, known, spellings
from featherback.runs.panels.data import packed_before
from featherback.runs.panels.optimisation import NEXT_TOKEN
from featherback.runs.panels.run import PLANNED

if TYPE_CHECKING:
    import yaml

RUN_YAML = "run.yaml"
MODEL, PLAN, _OF = "model", "plan", "of"
_MOST = 1 << 20  # bytes of a file
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}  # which some readers take for values
_NULL, _BOOL = re.compile(r"null|Null|NULL|~|"), re.compile(r"true|True|TRUE|false|False|FALSE")
_INT, _FLOAT = re.compile(r"[-+]?[0-9]+"), re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_HEAD = """\
# The options of this run. To repeat it:  featherback train --config run.yaml --out NEW
# To go on with it, if it was stopped:    featherback train --config run.yaml --out THIS --resume
# Change what you like; words on the command line win over what stands here.
"""


@dataclass
class RunFile:
    """What a file says: fields of TrainConfig, or of an optimiser or method, that are checked."""

    values: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    plan: dict[str, Any] | None = None
    where: dict[str, str] = field(default_factory=dict)
    """Field -> the file and the line where it stands."""

    def config(self, named: Mapping[str, Any]) -> TrainConfig:
        """These options, with those that are `named`. FeatherbackError for what does not go together, naming the line
        without which it would.
        """
        values = replaced(self.values, named)
        try:
            return TrainConfig.of(**values)
        except FeatherbackError as error:
            for name in reversed(self.where):
                if name in values and name not in named and _agree(values, without=name):
                    raise FeatherbackError(f"{self.where[name]}: {error}") from None
            raise

    def plan_for(self, config: TrainConfig) -> dict[str, Any] | None:
        """The plan, if it was made with these options."""
        if self.plan is None or self.plan.get(_OF) != _checksum(config):
            return None
        return {name: value for name, value in self.plan.items() if name != _OF}


def render(record: Mapping[str, Any]) -> str:
    """The text of run.yaml, from a run's record."""
    config = TrainConfig.from_json(record["configuration"])
    vain = without_meaning(type(config), config.train)
    sources = record.get("sources", {})
    files = {"data": sources.get("train"), "eval_data": sources.get("eval")}
    values = {
        **{name: value for name, value in _stated(config).items() if name not in vain},
        **_own(config),
        "batch_tokens": config.batch_tokens,  # if only as null: by this a file of an earlier version is recognised
        **{name: found["paths"] for name, found in files.items() if found and STDIN not in found["paths"]},
    }
    lines = [_HEAD, f"{MODEL}: {_yaml(os.path.abspath(config.model))}"]
    for panel, names in grouped().items():
        lines.append(f"\n# {panel}")
        for name in names:
            if name in values:
                lines.append(f"{spellings(known()[name][0], name)[0]}: {_yaml(values[name])}")
            elif files.get(name):
                lines.append(f"# {name}: came from standard input; name it on the command line")
            elif name in files and getattr(config, name) is not None:
                lines.append(f"# {name}: given from Python, not as a file")
    if plan := record.get(PLAN):
        lines.append("\n# How the memory was laid out, for exactly these options.")
        lines.append(f"{PLAN}: {_yaml({_OF: _checksum(config), **plan})}")
    return "\n".join(lines) + "\n"


def read(path: str | os.PathLike[str]) -> RunFile:
    """The options in a file. FeatherbackError, naming file, line and option, for what cannot be used."""
    import yaml  # only here: what trains does without it

    found, lines = RunFile(), dict[str, int]()
    try:
        text = read_bytes(Path(path), _MOST).decode("utf-8-sig")
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except UnicodeDecodeError as error:
        raise FeatherbackError(f"{path} is not UTF-8 text: {error.reason}.") from None
    except RecursionError:
        raise FeatherbackError(f"{path} is nested too deeply.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise FeatherbackError(f"{_where(path, mark)} is not YAML: {said}.") from None
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise FeatherbackError(f"{_where(path, root.start_mark)} is no option: write lines such as lr: 0.0002.")
    for key, value in root.value if root is not None else ():
        _take(found, lines, key, value, path)
    if PLAN in lines and "batch_size" in lines and "batch_tokens" not in lines:
        _translate(found)
    return found


def _translate(found: RunFile) -> None:
    """Give the batch of a run.yaml of a version without --batch-tokens its meaning of then."""
    where = found.where["batch_size"]
    try:
        found.values |= packed_before(found.values["batch_size"], found.values.get("seq_len"))
    except FeatherbackError as error:
        raise FeatherbackError(f"{where}: {error}") from None
    found.where["batch_tokens"] = found.where.pop("batch_size")


def _agree(values: Mapping[str, Any], without: str) -> bool:
    """Whether options go together once this one is left out; what a run must have is not asked for."""
    rest = {name: value for name, value in values.items() if name != without}
    try:
        TrainConfig.of(**{MODEL: "", "out": "", **rest})
    except FeatherbackError:
        return False
    return True


def _take(found: RunFile, lines: dict[str, int], key: yaml.Node, node: yaml.Node, path: Any) -> None:
    where, line = _where(path, key.start_mark), key.start_mark.line + 1
    name = key.value if isinstance(key.value, str) else shown(key.value)
    try:
        field = name if name in (MODEL, PLAN) else field_of(name, "training")
        if field in lines:
            raise FeatherbackError(f"{name} stands in line {lines[field]} already.")
        lines[field] = line
        value = _value(node, nested=field == PLAN)
        if value is None:
            return
        if field == PLAN:
            found.plan = value if isinstance(value, dict) else None
        elif field == MODEL:
            if not isinstance(value, str):
                raise FeatherbackError(f"{name} is {shown(value)}; it must be text.")
            found.model = value
        else:
            found.values[field] = given(field, value)
            found.where[field] = where
    except FeatherbackError as error:
        raise FeatherbackError(f"{where}: {error}") from None


def _value(node: yaml.Node, nested: bool = False) -> Any:
    """A scalar, or a list of them; `nested`: also a mapping of such, and of other mappings."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return _scalar(node.value) if node.style is None else node.value
    if isinstance(node, yaml.SequenceNode) and all(isinstance(each, yaml.ScalarNode) for each in node.value):
        return [_value(each) for each in node.value]
    if nested and isinstance(node, yaml.MappingNode) and all(_is_text(key) for key, _ in node.value):
        return {key.value: _value(each, nested=True) for key, each in node.value}
    raise FeatherbackError("a value must be a number, true, false, a text, or a list of texts.")


def _is_text(key: yaml.Node) -> bool:
    return isinstance(key.value, str)


def _scalar(text: str) -> Any:
    """What a plain scalar is in YAML 1.2: `1e-4` is a number and `no` a text."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text) and len(text) < 100:
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _stated(config: TrainConfig) -> dict[str, Any]:
    """The options of a run as a person would write them, paths whole; without what has no value, and where it lies."""
    values: dict[str, Any] = {}
    for name, about in described(TrainConfig).items():
        value: Any = getattr(config, name)
        if value is None or name in ("out", "data", "eval_data"):
            continue
        if about.is_path:
            value = os.path.abspath(value)
        values[name] = about.written(value) if about.written else value
    return values


def _own(config: TrainConfig) -> dict[str, Any]:
    """The options that the optimiser and the method have of their own."""
    return {name: value for own in CHOICES for name, value in getattr(config, own.field).items()}


def _checksum(config: TrainConfig) -> str:
    """Of all options that a plan can depend on, and more: what a resumed run may not change, PLANNED and the model."""
    fixed = config.fixed().keys() | set(PLANNED)
    stated = {name: value for name, value in _stated(config).items() if name in fixed}
    stated = {name: value for name, value in stated.items() if name not in ("batch_size", "batch_tokens")}
    stated |= config.batch_in_checksums
    if config.objective == NEXT_TOKEN:
        del stated["objective"]
    parts = [os.path.abspath(config.model), sorted(stated.items()), sorted(_own(config).items())]
    return json_checksum(parts)


def _yaml(value: Any) -> str:
    """A value as YAML that any reader takes for the same."""
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
        return text if "." in text else text.replace("e", ".0e")  # 1e-05 is a text to older readers
    return json.dumps(value)


def _where(path: str | os.PathLike[str], mark: Any) -> str:
    return os.fspath(path) if mark is None else f"{os.fspath(path)}, line {mark.line + 1}"
