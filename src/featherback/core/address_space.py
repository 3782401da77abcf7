"""The address space of this process, which the system can limit."""

from __future__ import annotations

import resource
import sys


def address_space() -> int | None:
    """Return the bytes of address space in use; None on systems that cannot limit it."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
