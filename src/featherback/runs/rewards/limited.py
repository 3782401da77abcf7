"""Runs programs that judge answers, each in a process of its own whose time and memory the system limits.

Answers of a model are untrusted text: a program that runs them as code must not do harm. So it has no terminal, its own
process group, an empty folder as its working folder, and limits. It is not kept away from the network or from files
that the user can read (SECURITY.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from featherback.core.system import processes
from featherback.runs.rewards.base import Limits

MOST_FILE = 64 << 20
"""Bytes of the largest file that a program may write."""
MOST_OUTPUT = 1 << 16
"""Bytes of a program's output that are read."""

_LIMITED = """
import os, resource, sys
seconds, memory, file, *command = sys.argv[1:]
for kind, limit in (("CPU", int(seconds)), ("AS", int(memory)), ("FSIZE", int(file)), ("CORE", 0)):
    kind = getattr(resource, "RLIMIT_" + kind)
    most = resource.getrlimit(kind)[1]
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(kind, (limit, limit))
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""
"""Sets limits and becomes the command: a process with threads must not run other code after a fork."""


class Ran(NamedTuple):
    """What a program did. `status`: its exit status; None if a limit has ended it."""

    status: int | None
    output: str
    complaint: str


def run(command: Sequence[str], content: str, limits: Limits, variables: Mapping[str, str] | None = None) -> Ran:
    """Run a command with `content` as its standard input."""
    own = [str(int(limits.seconds) + 1), str(limits.memory), str(MOST_FILE), *command]
    with tempfile.TemporaryDirectory(prefix="featherback-") as folder, tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LIMITED, *own],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, cwd=folder,
            env={**os.environ, **(variables or {})}, **processes.APART,
        )  # fmt: skip
        output = b""
        try:
            output, _ = process.communicate(content.encode(), limits.seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            processes.kill_all(process.pid)  # also what it has started and left behind
            process.communicate()
        complaints.seek(0)
        complaint = complaints.read(MOST_OUTPUT).decode(errors="replace").strip()
    ended = process.returncode
    return Ran(None if ended < 0 else ended, output[:MOST_OUTPUT].decode(errors="replace"), complaint)
