"""Measurements of this machine, stored in the user's cache, so that the same command gets the same results again.

A file holds the subject of the measurement beside its result. A file about another subject, or an unreadable one, is
ignored, and the measurement is repeated. If the cache cannot be written, every run measures for itself. Only the user
can read the folder.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from featherback.core.files import default_cache_folder, json_checksum, read_json, write_json
from featherback.core.private import make_private_folder
from featherback.core.system import locks
from featherback.engine import kernels
from featherback.errors import FeatherbackError
from featherback.version import __version__

FOLDER = "measured"
_MOST = 1 << 16  # bytes of a file
_CPU = ("model name", "CPU implementer", "CPU part")
"""Lines of /proc/cpuinfo that distinguish one CPU from another."""


def about(**what: Any) -> dict[str, Any]:
    """Return the subject of a measurement: `what`, with the machine and the versions. Values are as in JSON."""
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
    """Return the result that is remembered for a subject, as unchecked JSON values, or None."""
    try:
        content = read_json(_path(subject), _MOST)
    except FeatherbackError:
        return None
    return content.get("found") if isinstance(content, dict) and content.get("about") == subject else None


def update(subject: Mapping[str, Any], change: Callable[[Any], Any]) -> Any:
    """Store and return `change(known)`, where `known` is the remembered result, or None.

    Other processes wait meanwhile. So if two measure at the same time, both use the result of the first.
    """
    path = _path(subject)
    with suppress(OSError):  # if it fails, the file cannot be written either
        make_private_folder(path.parent)
    with _locked(path.parent):
        known = recall(subject)
        found = change(known)
        if found != known:
            with suppress(FeatherbackError):
                write_json(path, {"about": subject, "found": found})
    return found


def _path(subject: Mapping[str, Any]) -> Path:
    return default_cache_folder() / FOLDER / f"{json_checksum(subject)}.json"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Exclude other processes within the context, if the system has locks and the folder exists."""
    descriptor = None
    with suppress(OSError):
        descriptor = locks.hold(folder)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _cpu() -> str:
    """Return the model of the CPU."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        named = [line.partition(":")[2].strip() for line in file if line.startswith(_CPU)]
        if named:
            return ", ".join(dict.fromkeys(named))
    return platform.processor() or platform.machine()
