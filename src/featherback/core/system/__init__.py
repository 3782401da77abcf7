"""What operating systems do differently. Every part exists twice, in `posix` and in `windows`.

`from featherback.core.system import locks` imports the part of this system. The choice is made here and nowhere else:
tests/test_architecture.py counts. A part is imported when it is first used. `core/children` shows `children` to others.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featherback.core.system.posix import branches as branches
    from featherback.core.system.posix import folders as folders
    from featherback.core.system.posix import limits as limits
    from featherback.core.system.posix import locks as locks
    from featherback.core.system.posix import machine as machine
    from featherback.core.system.posix import pipes as pipes
    from featherback.core.system.posix import positioned as positioned
    from featherback.core.system.posix import processes as processes
    from featherback.core.system.posix import shells as shells
    from featherback.core.system.posix import signals as signals

PARTS = (
    "branches",
    "children",
    "folders",
    "limits",
    "locks",
    "machine",
    "pipes",
    "positioned",
    "processes",
    "shells",
    "signals",
)
SYSTEM = "windows" if os.name == "nt" else "posix"


def __getattr__(name: str) -> ModuleType:
    if name not in PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{SYSTEM}.{name}")
