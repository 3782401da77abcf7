"""Run cases in forks of processes that have imported everything, one per core: a case may crash its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# On a disk, writing, syncing and deleting would take most of the time.
RAM_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
HANGS = {signal.SIGPROF: "takes 5 s of CPU time", signal.SIGALRM: "waits for ever"}
LEAST = 100  # cases per process


def fuzz(kind: str, seed: int, count: int, first: int = 0) -> tuple[Counter[str], dict[int, str]]:
    """Return how many mutations were accepted and rejected, and the problems of the others by case number."""
    workers = min(os.cpu_count() or 1, -(-count // LEAST))
    edges = [first + count * part // workers for part in range(workers + 1)]
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(partial(_fuzz, kind, seed), edges, edges[1:]))
    outcomes, findings = Counter[str](), dict[int, str]()
    for some_outcomes, some_findings in parts:
        outcomes += some_outcomes
        findings |= some_findings
    return outcomes, findings


class _Parent:
    """A process whose forks run cases (tests/fuzz/cases.py)."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.cases"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *arguments: object) -> tuple[list[dict[str, Any]], int, str]:
        """Return what a fork says of each case, its status and its errors."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        lines: list[dict[str, Any]] = []
        with TemporaryDirectory(dir=RAM_DISK) as place:  # a case that ends its process leaves files behind
            print(*arguments, place, file=self._process.stdin, flush=True)
            for line in map(json.loads, self._process.stdout):
                if "ended" in line:
                    return lines, line["ended"], Path(place, "errors").read_text(errors="replace")
                lines.append(line)
        raise AssertionError("The process that runs the cases has ended.")


_IDLE: list[_Parent] = []


def _fuzz(kind: str, seed: int, at: int, end: int) -> tuple[Counter[str], dict[int, str]]:
    """Run the cases `at` to `end` one after another."""
    outcomes, findings = Counter[str](), dict[int, str]()
    parent = _IDLE.pop() if _IDLE else _Parent()
    while at < end:
        lines, status, errors = parent.run(kind, seed, at, end - at)
        for line in lines:
            if "outcome" not in line:
                at = line["case"]
            elif line["outcome"] in ("accepted", "refused"):
                outcomes[line["outcome"]] += 1
            else:
                findings[line["case"]] = line["outcome"]
        if status == 0:
            break
        if not lines:
            raise AssertionError(f"the good {kind} fails: {errors[-2000:]}")
        findings[at] = HANGS.get(-status, f"ends with {status}: {errors[-300:]}")
        at += 1
    _IDLE.append(parent)
    return outcomes, findings
