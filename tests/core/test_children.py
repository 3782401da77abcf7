"""Functions in child processes: what they return, how they fail and end, and that their memory is free afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from featherback.core.children import ChildFailedError, Children
from featherback.engine.host.process_tree import sizes, tree
from tests.core.called import add, fail, hold, leave, open_and_hand_over
from tests.runs.runs import PATIENCE, wait_for

both = pytest.mark.parametrize("forks", [True, False])


@both
def test_a_child_returns_a_value(forks: bool) -> None:
    with Children(forks) as children:
        total, process = children.call(add, 2, 3)
        assert total == 5
        assert process != os.getpid()
        assert children.call(add, 4, 5)[1] != process
    assert children.peak > 10**6


@both
def test_an_error_is_one_sentence_and_a_status(forks: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with Children(forks) as children, pytest.raises(ChildFailedError) as caught:
        children.call(fail, "The file is not there.")
    assert caught.value.status == 2
    assert capfd.readouterr().err == "error: The file is not there.\n"


@both
def test_a_child_that_is_killed_is_an_error(forks: bool, capfd: pytest.CaptureFixture[str]) -> None:
    with Children(forks) as children:
        for status, expected in ((7, 7), (-signal.SIGKILL, 2)):
            with pytest.raises(ChildFailedError) as caught:
                children.call(leave, status)
            assert caught.value.status == expected
    assert "the step 'leave' was killed by SIGKILL, perhaps because memory ran out" in capfd.readouterr().err


def fail_below(message: str) -> None:
    with Children() as children:
        children.call(fail, message)


def test_an_error_of_a_grandchild_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Regression: its parent called it a bug."""
    with Children() as children, pytest.raises(ChildFailedError) as caught:
        children.call(fail_below, "The file is not there.")
    assert caught.value.status == 2
    assert capfd.readouterr().err == "error: The file is not there.\n"


def test_memory_of_a_child_is_measured_and_free_afterwards() -> None:
    with Children() as children:
        before = sizes(os.getpid())["VmRSS"]
        assert children.call(hold, 300_000_000) == 300_000_000
    assert children.peak >= 290_000_000
    assert sizes(os.getpid())["VmRSS"] < before + 50_000_000


WAITS = """
import signal, sys, time
from pathlib import Path
from featherback.core.children import Children

for number in (1, 2, 15):
    signal.signal(number, signal.SIG_DFL)  # also if the tests run under nohup

def cleans(path):
    try:
        Path(path).write_text("here")
        time.sleep(60)
    finally:
        Path(path).unlink()

def outer(path):
    with Children() as children:
        children.call(cleans, path)

with Children() as children:
    try:
        children.call(outer if sys.argv[1] == "two" else cleans, sys.argv[2])
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("levels", ["one", "two"])
@pytest.mark.parametrize("to_all", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_child_clean_up_once(
    tmp_path: Path, number: signal.Signals, to_all: bool, levels: str
) -> None:
    """A terminal sends it to all processes of the group; the child waits for its parent's word."""
    path = tmp_path / "made"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, levels, path], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(path.exists, process)
    if to_all:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert not path.exists()


def test_a_second_signal_does_not_interrupt_the_cleaning(tmp_path: Path) -> None:
    path, script = tmp_path / "made", WAITS.replace("Path(path).unlink()", "time.sleep(0.3); Path(path).unlink()")
    process = subprocess.Popen([sys.executable, "-c", script, "one", path], stderr=subprocess.PIPE, text=True)
    wait_for(path.exists, process)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert not path.exists()


@pytest.mark.parametrize("levels", ["one", "two"])
def test_children_end_with_a_parent_that_is_killed(tmp_path: Path, levels: str) -> None:
    path = tmp_path / "made"
    process = subprocess.Popen([sys.executable, "-c", WAITS, levels, path], stderr=subprocess.DEVNULL)
    wait_for(path.exists, process)
    children = [each for each in tree(process.pid) if each != process.pid]
    assert len(children) == (1 if levels == "one" else 2)
    process.kill()
    process.communicate(timeout=PATIENCE)
    end = time.monotonic() + PATIENCE
    while any(map(_is_alive, children)):
        assert time.monotonic() < end
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Children() as children:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not children.requested
            assert children.call(add, 1, 1)[0] == 2
    finally:
        signal.signal(signal.SIGHUP, before)


@both
def test_a_child_hands_over_an_open_file(tmp_path: Path, forks: bool) -> None:
    (tmp_path / "file").write_text("kept")
    with Children(forks) as children:
        children.call(open_and_hand_over, str(tmp_path / "file"))
        (descriptor,) = children.received
    with os.fdopen(descriptor) as file:
        assert file.read() == "kept"
