"""A command that is ended by a signal exits with 130, whenever the signal comes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import runs
from tests.support.tiny_chat import write_messages, write_tiny_chat

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


@pytest.mark.parametrize("number", [1, 2, 15])
def test_a_signal_at_any_moment_of_a_command_ends_it(number: int) -> None:
    """Moments during imports, during work and at the end."""
    status, out, _ = _ended(number, 0, "--version")
    calls = int(out.split()[-1])
    assert status == 0
    for at in (10, 100, 1000, calls // 2, calls - calls // 20):
        assert (_ended(number, at, "--version")[0::2]) == (130, ""), at
    assert _ended(number, -1, "--version")[0::2] == (0, "")  # the work is done, and the interpreter ends


# At each `exec` lists the threads: whether it is the one that calls it, and whether the three signals are blocked.
_LISTS = """
import os, sys
exec_now = os.execve
THREE = 1 << 0 | 1 << 1 | 1 << 14
AGAIN = (
    "import runpy, sys; del sys.argv[0]; SCRIPT = {0!r}; exec(SCRIPT); "
    "runpy.run_module(sys.argv[0], run_name='__main__')"
)
def exec_later(path, command, environment):
    for task in os.listdir("/proc/self/task"):
        said = open(f"/proc/self/task/{task}/status").read()
        blocked = int(said.split("SigBlk:")[1].split()[0], 16)
        print(command[2], task == str(os.getpid()), blocked & THREE == THREE)
    sys.stdout.flush()
    exec_now(path, [path, "-c", AGAIN.format(SCRIPT), *command[2:]], environment)
os.execve = exec_later
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="only Linux lists the threads of a process")
def test_no_thread_of_ours_takes_a_signal_from_the_program_that_follows(tmp_path: Path) -> None:
    """A signal that arrives just before `exec` must reach the next program."""
    model, data = write_tiny_chat(tmp_path / "m.gguf"), tmp_path / "few.jsonl"
    write_messages(data, 12)
    script = f"SCRIPT = {_LISTS!r}\nexec(SCRIPT)\nfrom featherback.cli import main\nmain()"
    words = ["train", model, "--data", data, "--out", tmp_path / "run", "--steps", "1", "--json", "--threads", "3"]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], capture_output=True, text=True, timeout=runs.PATIENCE
    )
    assert done.returncode == 0, done.stderr
    listed = [line.split() for line in done.stdout.splitlines() if line.startswith("featherback.")]
    programs = [line[0] for line in listed if line[1] == "True"]
    assert set(programs[:-1]) == {"featherback.cli.begin"}
    assert programs[-1] == "featherback.worker"
    assert len(listed) > len(programs)  # there are threads
    assert {line[2] for line in listed} == {"True"}
