"""Configurations of other tools as option files of Featherback (`featherback convert-config`).

Each module defines the files of one tool as `TOOL`; to add a tool, add a module. What options mean in every tool is in
`runs.names` and `runs.suggestions`. A module has only the keys that mean something else, or more, in its tool.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from featherback.core.files import read_bytes
from featherback.core.registry import Registry
from featherback.errors import FeatherbackError
from featherback.runs.configs.base import Converted, Tool
from featherback.runs.configs.program import arguments

TOOLS: Registry[Tool] = Registry(__name__, "TOOL", "tool", shared=("base", "program"))
_MOST = 16 << 20  # bytes of a file
_PROGRAMS = (".py", ".ipynb")
_SUFFIXES = (".yaml", ".yml", ".json", *_PROGRAMS)
_SURE = 2
"""Keys of a tool that a file has at least."""


def convert(path: Path) -> Converted:
    """Translate the configuration of another tool.

    Raises FeatherbackError if the file cannot be read, or belongs to none of the tools.
    """
    known = path.suffix.lower() in _SUFFIXES or not path.exists()
    keys = _read(path) if known else {}
    tool = _tool(path, keys)
    if tool is None:
        titles = ", ".join(TOOLS[name].title for name in TOOLS.names)
        raise FeatherbackError(f"{path} is not a configuration of a known tool; expected one of: {titles}.")
    return tool.convert(keys)


def tool_of(path: str | os.PathLike[str]) -> str | None:
    """Return the title of the tool whose configuration is in the file at `path`; None if it is something else."""
    place = Path(path)
    if place.suffix.lower() not in _SUFFIXES or not place.is_file():
        return None
    try:
        found = _tool(place, _read(place))
    except FeatherbackError:
        return None
    return None if found is None else found.title


def _tool(path: Path, keys: Mapping[str, Any]) -> Tool | None:
    """Return the tool of which the file has the most keys that no other tool has."""
    is_program = path.suffix.lower() in _PROGRAMS
    tools = [TOOLS[name] for name in TOOLS.names if TOOLS[name].is_program == is_program]
    best = max(tools, key=lambda tool: len(tool.signs & keys.keys()))
    return best if len(best.signs & keys.keys()) >= _SURE else None


def _read(path: Path) -> Mapping[str, Any]:
    """Return the keys and values of a file of options, or the arguments in a program."""
    import yaml

    try:
        text = read_bytes(path, _MOST).decode("utf-8-sig")
        if path.suffix.lower() in _PROGRAMS:
            return arguments(path, text)
        keys = json.loads(text) if path.suffix.lower() == ".json" else yaml.load(text, _numbers())
    except UnicodeDecodeError as error:
        raise FeatherbackError(f"{path} is not UTF-8 text: {error.reason}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        raise FeatherbackError(f"{path}{line} cannot be read: {problem}.") from None
    if not isinstance(keys, dict):
        raise FeatherbackError(f"{path} has no options; it must have lines such as learning_rate: 0.0002.")
    return {str(key): value for key, value in keys.items()}


def _numbers() -> type[Any]:
    """Return a safe YAML loader that reads 1e-4 as a number, as these tools do."""
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+"), list("-+0123456789")
    )
    return Loader
