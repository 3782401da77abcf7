"""Runs programs that judge answers, each in a process of its own whose time and memory the system limits.

Answers of a model are untrusted text: a program that runs them as code must not do harm. So it has no terminal, its own
process group, an empty folder as its working folder, and limits. It is not kept away from the network or from files
that the user can read (SECURITY.md).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from featherback.core.system import limits as system_limits
from featherback.core.system import processes, signals
from featherback.runs.rewards.base import Limits

MOST_FILE = 64 << 20
"""Bytes of the largest file that a program may write."""
MOST_OUTPUT = 1 << 16
"""Bytes of a program's output that are read."""


class Ran(NamedTuple):
    """What a program did. `status`: its exit status; None if a limit has ended it."""

    status: int | None
    output: str
    complaint: str


def run(command: Sequence[str], content: str, limits: Limits, variables: Mapping[str, str] | None = None) -> Ran:
    """Run a command with `content` as its standard input."""
    words, late = system_limits.limited(command, int(limits.seconds) + 1, limits.memory, MOST_FILE), False
    with tempfile.TemporaryDirectory(prefix="featherback-") as folder, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, cwd=folder,
            env={**os.environ, **(variables or {})}, **processes.APART,
        )  # fmt: skip
        output = b""
        try:
            output, _ = process.communicate(content.encode(), limits.seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            processes.kill_all(process.pid)  # also what it has started and left behind
            process.communicate()
        complaints.seek(0)
        complaint = complaints.read(MOST_OUTPUT).decode(errors="replace").strip()
    ended = process.returncode
    stopped = late or ended < 0 or ended == signals.TOO_LONG
    return Ran(None if stopped else ended, output[:MOST_OUTPUT].decode(errors="replace"), complaint)
