"""A folder that `datasets.save_to_disk` wrote: Arrow files, which its state.json names in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featherback.core.files import read_json
from featherback.core.private import check_link_inside
from featherback.core.terminal import quoted
from featherback.data.containers.arrow import CONTAINER as ARROW
from featherback.data.containers.base import Record, Records
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.errors import FeatherbackError, excerpt

_STATE, _SPLITS = "state.json", "dataset_dict.json"


class SavedDataset(Records):
    title = "data set of `datasets`"
    nothing = "only column names"
    table_keys = ()

    def read(self, data: Input) -> Iterator[Record | Bad]:
        for path in _files(data.path):
            yield from ARROW.read(Input(path, data.watch, None, data.room))

    def size(self, data: Input) -> int:
        return sum(Input(path).size for path in _files(data.path))


CONTAINER = SavedDataset()


def is_saved(folder: Path) -> bool:
    """Whether `datasets.save_to_disk` wrote this folder."""
    return any((folder / name).is_file() for name in (_STATE, _SPLITS)) and (
        any(folder.glob("*.arrow")) or (folder / _SPLITS).is_file()
    )


def _files(folder: Path) -> list[Path]:
    """Return the Arrow files of a data set. Raises FeatherbackError if it has several splits, or is damaged."""
    if (folder / _SPLITS).is_file():
        splits = _content(folder / _SPLITS, folder).get("splits")
        names = [name for name in splits if _is_name(name)] if isinstance(splits, list) else []
        if len(names) != 1:
            choices = " or ".join(f"--data {quoted(str(folder / name))}" for name in names[:3])
            raise FeatherbackError(f"{folder} holds {len(names)} splits. Choose one: {choices}.")
        return _files(folder / names[0])
    files = _content(folder / _STATE, folder).get("_data_files")
    listed = [each.get("filename") for each in files if isinstance(each, dict)] if isinstance(files, list) else []
    found = [name for name in listed if isinstance(name, str) and _is_name(name)]
    if not found or len(found) < len(listed):
        raise FeatherbackError(f"{folder / _STATE} names no data files in its folder: {excerpt(listed)}.")
    paths = [folder / name for name in found]
    for path in paths:
        check_link_inside(path, folder)
    return paths


def _content(path: Path, folder: Path) -> dict[str, Any]:
    check_link_inside(path, folder)
    content = read_json(path)
    if not isinstance(content, dict):
        raise FeatherbackError(f"{path} is damaged: it is not a JSON object.")
    return content


def _is_name(name: object) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name and name not in ("", ".", "..")
