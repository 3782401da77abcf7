"""The base model of an adapter or a run: the name that is written and read, and the model itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from featherback import models
from featherback.core.files import read_json
from featherback.core.naming import argument, argument_is
from featherback.core.private import RUN_FILE
from featherback.engine.formats import fingerprint
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.mapping import reading
from featherback.errors import FeatherbackError, excerpt
from featherback.models.model import Model

CONFIG_FILE = "adapter_config.json"
MOST_RECORD = 64 << 20

HUB = "https://huggingface.co/"
_SOURCES = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")
_PARENT = "general.base_model.0.repo_url"
_PARENT_NAMES = (_PARENT, "general.base_model.0.name")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def base_model_name(model: Model) -> str:
    """The name of `model` on the Hub if its file states it, else its path."""
    return hub_name(model) or str(model.path.absolute())


def hub_name(model: Model) -> str | None:
    """The name of `model` on the Hub, such as "Qwen/Qwen2.5-0.5B-Instruct", if a GGUF's metadata state it.

    The metadata name the model's source, or a parent. A parent may also be the model that this one was tuned from, so
    it is used only if its name equals the model's own.
    """
    if model.source != "gguf":
        return None
    with reading(GGUFFile(Path(model.path))) as file:
        found = [file.metadata.get(key) for key in _SOURCES]
        parent, own = file.metadata.get(_PARENT), file.metadata.get("general.name")
    if isinstance(own, str) and isinstance(parent, str) and _plain(parent.rpartition("/")[2]) == _plain(own):
        found.append(parent)
    for source in found:
        if isinstance(source, str) and _REPOSITORY.fullmatch(name := source.removeprefix(HUB).rstrip("/")):
            return name
    return None


def _plain(name: str) -> str:
    """Reduce a name to letters and digits, so that "Qwen2.5 0.5B Instruct" equals "Qwen2.5-0.5B-Instruct"."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def recorded_names(adapter: Path) -> list[str]:
    """The names of the base model in a run or an adapter: paths, or names on the Hub, the likeliest first.

    Raises FeatherbackError if its files cannot be read.
    """
    if adapter.suffix == ".gguf" and adapter.is_file():
        return _in_gguf(adapter)
    folder = adapter if adapter.is_dir() else adapter.parent
    return [*_in_run(folder), *_in_configuration(folder)]


def is_base(model: Model, recorded: str) -> bool:
    """Whether `recorded`, one of the `recorded_names`, is known to be `model`."""
    if recorded == hub_name(model):
        return True
    try:
        return Path(recorded).exists() and Path(recorded).samefile(model.path)
    except OSError:  # not a valid file name
        return False


def model_path(adapter: Path, named: str | None) -> Path:
    """Return the path of the base model: `named` by the user, or recorded in the run or the adapter.

    Raises FeatherbackError, which asks for the name, if no recorded model is on this machine.
    """
    from featherback.models.hub.locate import locate  # only here: training does not need it

    if named is not None:
        return locate(named)
    found = recorded_names(adapter)
    for name in found:
        if _exists(name):
            return Path(name)
    if found:
        raise FeatherbackError(
            f"{adapter} was trained on {excerpt(found[0])}, which is not on this machine. If the model is elsewhere, "
            f"add {argument('model', 'PATH')}."
        )
    raise FeatherbackError(
        f"{adapter} does not say which model it was trained on. Add the model: {argument('model', 'PATH')}."
    )


def base_of_run(run: Path, named: str | None) -> Model | None:
    """Open the model that the training in `run` began with; None if it is not on this machine or has changed.

    `named`: the user's name of that model. Raises FeatherbackError if it is another model.
    """
    from featherback.models.hub.locate import locate

    record = read_json(run / RUN_FILE, MOST_RECORD) if (run / RUN_FILE).is_file() else {}
    known = record.get("model") if isinstance(record, dict) else None
    found = [locate(named)] if named is not None else [Path(name) for name in recorded_names(run) if _exists(name)]
    for path in found:
        try:
            base = models.load(path)
            if fingerprint.of_store(base.store) == known:
                return base
        except FeatherbackError:
            if named is not None:
                raise
    if named is not None:
        raise FeatherbackError(
            f"{argument_is('model', named)}, but {run} was trained from another model. Give the model that it was "
            f"trained from."
        )
    return None


def check_not_base(out: Path, model: Model) -> None:
    """Raise FeatherbackError if `out` is the base model or one of its files."""
    if out.exists() and any(path.exists() and out.samefile(path) for path in (model.path, *model.files)):
        raise FeatherbackError(f"{out} is the base model itself; choose another {argument('out')}.")


def _in_run(folder: Path) -> list[str]:
    if not (folder / RUN_FILE).is_file():
        return []
    record = read_json(folder / RUN_FILE, MOST_RECORD)
    return _texts(record.get("configuration") if isinstance(record, dict) else None, "model")


def _in_configuration(folder: Path) -> list[str]:
    """The names in the configuration of a PEFT or MLX adapter."""
    if not (folder / CONFIG_FILE).is_file():
        return []
    return _texts(read_json(folder / CONFIG_FILE), "base_model_name_or_path", "model")


def _in_gguf(path: Path) -> list[str]:
    with reading(GGUFFile(path)) as file:
        names = _texts(dict(file.metadata), *_PARENT_NAMES)
    return [name.removeprefix(HUB) for name in names]


def _texts(entries: Any, *names: str) -> list[str]:
    values = [entries.get(name) for name in names] if isinstance(entries, dict) else []
    return [value for value in values if isinstance(value, str) and value.isprintable() and value]


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # not a valid file name
        return False
