"""Checkpoints: everything a run needs to continue as if it had never stopped.

A checkpoint is a folder `checkpoint-STEP` of raw float32 files, one per paged array, and `state.json`. It is
built under another name and renamed when complete, and only then the previous one is deleted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from featherback.errors import FeatherbackError
from featherback.files import read_json, sync_directory, write_json
from featherback.host.paged import PagedArray

_NAME = re.compile(r"checkpoint-(\d+)")


def save(run: Path, step: int, arrays: Mapping[str, PagedArray], state: Mapping[str, Any]) -> None:
    """Make the checkpoint of `step` the only one of the run; FeatherbackError if it cannot be written."""
    final = run / f"checkpoint-{step:06d}"
    temporary = run / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, array in arrays.items():
            _dump(array, temporary / f"{name}.f32")
        write_json(temporary / "state.json", {"step": step, **state})
        if final.exists():  # the same step again, so the same content: nothing to gain by keeping it
            shutil.rmtree(final)
        os.rename(temporary, final)
        sync_directory(run)
    except OSError as error:
        raise FeatherbackError(f"Cannot write the checkpoint {final}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for older in _all(run).values():
        if older != final:
            shutil.rmtree(older, ignore_errors=True)


def latest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    found = _all(run)
    return found[max(found)] if found else None


def latest_step(run: Path) -> int:
    """The step of the newest complete checkpoint; 0 without one."""
    return max(_all(run), default=0)


def load(checkpoint: Path, arrays: Mapping[str, PagedArray]) -> dict[str, Any]:
    """Fill `arrays` from a checkpoint and return its state; FeatherbackError if it does not fit them."""
    state = read_json(checkpoint / "state.json")
    for name, array in arrays.items():
        _restore(checkpoint / f"{name}.f32", array)
    return dict(state)


def _all(run: Path) -> dict[int, Path]:
    return {
        int(match[1]): path
        for path in run.iterdir()
        if (match := _NAME.fullmatch(path.name)) and path.is_dir()
    }


def _dump(array: PagedArray, path: Path) -> None:
    row = np.empty(array.size, np.float32)
    with open(path, "wb") as file:
        for layer in range(array.layers):
            array.read(layer, row)
            file.write(row.data)
        file.flush()
        os.fsync(file.fileno())


def _restore(path: Path, array: PagedArray) -> None:
    row = np.empty(array.size, np.float32)
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size != array.layers * row.nbytes:
                raise FeatherbackError(
                    f"The checkpoint file {path} is damaged: its size is not that of the adapter."
                )
            for layer in range(array.layers):
                file.readinto(row.data)
                array.write(layer, row)
    except OSError as error:
        raise FeatherbackError(f"Cannot read the checkpoint file {path}: {error.strerror}.") from error
