"""Run cases in separate processes, one per core, because a case may crash its process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from tempfile import TemporaryDirectory

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


def _fuzz(kind: str, seed: int, at: int, end: int) -> tuple[Counter[str], dict[int, str]]:
    """Run the cases `at` to `end` one after another."""
    outcomes, findings = Counter[str](), dict[int, str]()
    while at < end:
        arguments = map(str, (kind, seed, at, end - at))
        command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.cases", *arguments]
        with TemporaryDirectory(dir=RAM_DISK) as place:  # a case that ends its process leaves files behind
            environment = {**os.environ, "TMPDIR": place}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            if "outcome" not in line:
                at = line["case"]
            elif line["outcome"] in ("accepted", "refused"):
                outcomes[line["outcome"]] += 1
            else:
                findings[line["case"]] = line["outcome"]
        if done.returncode == 0:
            break
        if not lines:
            raise AssertionError(f"the good {kind} fails: {done.stderr[-2000:]}")
        findings[at] = HANGS.get(-done.returncode, f"ends with {done.returncode}: {done.stderr[-300:]}")
        at += 1
    return outcomes, findings
