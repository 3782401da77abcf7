"""A command that is ended by a signal exits with 130, whenever the signal comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.runs import runs
from tests.support.tiers import some

pytestmark = pytest.mark.usefixtures("all_cores")

# Sends itself a signal at a call of a Python function, counted from the first line of the command; 0: at none.
_AT = """
import atexit, os, sys
number, at, calls = int(sys.argv.pop(1)), int(sys.argv.pop(1)), 0
def counted(frame, event, argument):
    global calls
    calls += event == "call"
    if calls == at and event == "call":
        os.kill(os.getpid(), number)
if at == -1:
    atexit.register(os.kill, os.getpid(), number)
from featherback.cli import main
if not at:
    atexit.register(lambda: print("calls", calls))
sys.setprofile(counted)
main()
"""


def _ended(number: int, at: int, *words: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _AT, str(number), str(at), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=runs.PATIENCE,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", some([1, 2, 15], 1))
def test_a_signal_at_any_moment_of_a_command_ends_it(number: int) -> None:
    """Moments during imports, during work and at the end."""
    status, out, _ = _ended(number, 0, "--version")
    calls = int(out.split()[-1])
    assert status == 0
    for at in (10, 100, 1000, calls // 2, calls - calls // 20):
        assert (_ended(number, at, "--version")[0::2]) == (130, ""), at
    assert _ended(number, -1, "--version")[0::2] == (0, "")  # the work is done, and the interpreter ends
