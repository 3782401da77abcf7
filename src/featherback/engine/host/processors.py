"""How many threads to compute with: affinity mask, performance cores, threads of a core, and quota."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from featherback.engine.host.cgroups import GROUPS, PROC, folders, lines

_DEVICES = Path("/sys/devices")
_CAPABLE = 0.6  # of the fastest core's capacity: slower cores are efficiency cores


@dataclass(frozen=True)
class Threads:
    """A number of threads, and its reason in a few words ("" if it is the number of processors)."""

    count: int
    reason: str


def best_threads(
    allowed: Collection[int] | None = None, devices: Path = _DEVICES, proc: Path = PROC, groups: Path = GROUPS
) -> Threads:
    """Return one thread for each core that is not an efficiency core, and no more than the quota has use for.

    `allowed`: numbers of the processors that this process may run on; None: those of its affinity mask. A processor
    that the system does not describe counts as a core.
    """
    cpus = set(_mask() if allowed is None else allowed)
    reason = f"{len(cpus)} of {total} processors allowed" if (total := os.cpu_count() or 1) > len(cpus) else ""
    fast = _fast(cpus, devices)
    cores = {_core(cpu, devices) for cpu in fast}
    if len(fast) < len(cpus):
        reason = "one for each performance core"
    elif len(cores) < len(fast):
        reason = "one for each core"
    count = len(cores)
    quota = min(_quotas(proc, groups), default=math.inf)
    if quota < count:
        count, reason = max(1, math.ceil(quota)), f"quota of {quota:.3g} processors"
    return Threads(count, reason)


def _mask() -> Collection[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _fast(cpus: set[int], devices: Path) -> set[int]:
    """Return the processors that are not on efficiency cores."""
    if performance := {cpu for text in lines(devices / "cpu_core" / "cpus") for cpu in _listed(text)} & cpus:
        return performance  # Intel's
    capacity = {cpu: _number(devices / "system" / "cpu" / f"cpu{cpu}" / "cpu_capacity") for cpu in cpus}
    most = max(capacity.values())
    return {cpu for cpu, each in capacity.items() if each >= _CAPABLE * most}


def _core(cpu: int, devices: Path) -> object:
    """Return a name for the core of a processor: the numbers of all its processors."""
    siblings = devices / "system" / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    return next(lines(siblings), None) or cpu


def _quotas(proc: Path, groups: Path) -> Iterator[float]:
    """Yield the processors that each cgroup of this process allows."""
    for folder, version in folders("cpu", proc, groups):
        if version == 2:
            quota, _, period = next(lines(folder / "cpu.max"), "max").partition(" ")
        else:
            quota, period = (next(lines(folder / f"cpu.cfs_{name}_us"), "") for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period):  # otherwise "max" or -1
            yield int(quota) / int(period)


def _number(path: Path) -> int:
    text = next(lines(path), "")
    return int(text) if text.isdecimal() else 0


def _listed(text: str) -> Iterator[int]:
    """Yield the numbers of a list like 0-3,8."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            yield from range(int(first), int(last or first) + 1)
