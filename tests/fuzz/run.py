"""Run cases in a process of their own, which a case may end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter


def fuzz(kind: str, seed: int, count: int, first: int = 0) -> tuple[Counter[str], dict[int, str]]:
    """How many mutations were accepted and refused, and what is wrong with the others, by the number of the case."""
    outcomes: Counter[str] = Counter()
    findings: dict[int, str] = {}
    at, end = first, first + count
    while at < end:
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.fuzz.cases",
            kind,
            *map(str, (seed, at, end - at)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
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
        hung = done.returncode == -signal.SIGPROF
        findings[at] = (
            "takes 5 s of CPU time" if hung else f"ends with {done.returncode}: {done.stderr[-300:]}"
        )
        at += 1
    return outcomes, findings
