"""A process measured from outside: its tree's memory, sampled every few milliseconds, and the kernel's own marks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from featherback.engine.host.process_tree import sizes, tree, tree_pss
from featherback.errors import FeatherbackError

ROOT = Path(__file__).parents[1]
MB = 1e6
INTERVAL, RARELY = 0.005, 0.2  # seconds between two looks; where time is measured, looking should take little
_FOOTPRINT = ("RssAnon", "RssShmem", "VmSwap")


@dataclass(frozen=True)
class Outcome:
    """What a process left behind. Memory in MB, summed over its tree; None where the system does not tell."""

    output: str
    seconds: float
    footprint_mb: float | None  # peak of RssAnon + RssShmem + VmSwap, sampled
    rss_mb: float | None  # peak of VmRSS, sampled, or the largest VmHWM if that is more
    tree_mb: float | None = None  # peak of Pss, sampled if asked for: what processes share counts once


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    interval: float = INTERVAL,
    tree: bool = False,
    ends: Container[int] = (0,),
    given: str | None = None,
) -> Outcome:
    """Run `command` to its end, a look every `interval` seconds; FeatherbackError with its last words if it fails.

    `ends`: the exit statuses of success. `tree`: look for what its processes hold together as well, which takes the
    system a millisecond a process. `given`: the standard input.
    """
    start = time.perf_counter()
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # so that it finds this package
    own = {**(os.environ if environment is None else environment), "PYTHONPATH": os.pathsep.join(places)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, env=own, stdin=None if given is None else pipe, stdout=pipe, stderr=pipe, text=True
    )
    sampler = _Sampler(process.pid, interval, tree)
    sampler.start()
    try:
        output, errors = process.communicate(given)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        sampler.stop()
    seconds = time.perf_counter() - start
    if process.returncode not in ends:
        words = (errors.strip() or output.strip() or "it said nothing").splitlines()[-1]
        raise FeatherbackError(f"A measured process failed with status {process.returncode}: {words}")
    return Outcome(output, seconds, sampler.footprint, sampler.rss, sampler.tree)


class _Sampler(threading.Thread):
    """Reads /proc until `stop` is called."""

    def __init__(self, pid: int, interval: float, tree: bool) -> None:
        super().__init__(daemon=True)
        self._pid, self._interval, self._done = pid, interval, threading.Event()
        self._peaks, self._marks = [0.0, 0.0], 0.0
        self._seen = False
        self._together, self._most_together = tree, 0

    def run(self) -> None:
        while not self._done.wait(self._interval):
            values = [status for pid in tree(self._pid) if (status := sizes(pid))]
            if not values:
                continue
            self._seen = True
            sums = (sum(sum(v.get(k, 0) for k in _FOOTPRINT) for v in values), sum(v.get("VmRSS", 0) for v in values))
            self._peaks = [max(pair) for pair in zip(self._peaks, sums)]
            self._marks = max(self._marks, *(v.get("VmHWM", 0) for v in values))
            if self._together:
                self._most_together = max(self._most_together, tree_pss(self._pid))

    def stop(self) -> None:
        """End sampling."""
        self._done.set()
        self.join()

    @property
    def footprint(self) -> float | None:
        return self._peaks[0] / MB if self._seen else None

    @property
    def rss(self) -> float | None:
        return max(self._peaks[1], self._marks) / MB if self._seen else None

    @property
    def tree(self) -> float | None:
        return self._most_together / MB if self._most_together else None


def machine() -> str:
    """This machine in words: cores, instruction set, system, memory."""
    import platform

    from featherback.engine import kernels

    words = f"{os.cpu_count()} {platform.machine()} cores, {kernels.describe()}, {platform.system()}"
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        words += f", {total / 1e9:.0f} GB of memory"
    return f"{words}, Python {sys.version.split()[0]}"
