"""What was measured on this machine, kept in the user's cache, so that the same command finds the same again.

A file holds what it is about beside what was found. Contents that are about anything else, or that cannot be read, are
ignored, and it is measured anew. Where the cache cannot be written, every run measures for itself. The folder is its
owner's alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from featherback.core.files import cache_place, json_checksum, read_json, write_json
from featherback.core.private import make_private_folder
from featherback.engine import kernels
from featherback.errors import FeatherbackError
from featherback.version import __version__

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

FOLDER = "measured"
_MOST = 1 << 16  # bytes of a file
_CPU = ("model name", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that tell one CPU from another."""


def about(**what: Any) -> dict[str, Any]:
    """`what` was measured, with the machine and the versions that it was measured on; values as JSON has them."""
    machine = {
        "featherback": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
        "cpu": _cpu(),
        "kernels": kernels.current(),
    }
    return {**machine, **what}


def recall(subject: Mapping[str, Any]) -> Any:
    """What is remembered of a subject, as JSON values to be checked; None: nothing."""
    try:
        content = read_json(_path(subject), _MOST)
    except FeatherbackError:
        return None
    return content.get("found") if isinstance(content, dict) and content.get("about") == subject else None


def update(subject: Mapping[str, Any], change: Callable[[Any], Any]) -> Any:
    """Remember what `change` makes of what was remembered (None: nothing), and return it.

    Other processes wait meanwhile: two that measured at the same time both use what the first of them found.
    """
    path = _path(subject)
    with suppress(OSError):  # then the file cannot be written either
        make_private_folder(path.parent)
    with _locked(path.parent):
        known = recall(subject)
        found = change(known)
        if found != known:
            with suppress(FeatherbackError):
                write_json(path, {"about": subject, "found": found})
    return found


def _path(subject: Mapping[str, Any]) -> Path:
    return cache_place() / FOLDER / f"{json_checksum(subject)}.json"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Inside, no other process is here, where the system has locks and there is such a folder."""
    descriptor = None
    if fcntl is not None:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _cpu() -> str:
    """The model of the CPU."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        named = [line.partition(":")[2].strip() for line in file if line.startswith(_CPU)]
        if named:
            return ", ".join(dict.fromkeys(named))
    return platform.processor() or platform.machine()
