"""Signals end a run, an evaluation or a preparation cleanly: work is saved, and run.json says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from featherback.engine.host.interrupt import Interrupt
from featherback.engine.host.process_tree import tree
from featherback.runs.callback import Callback
from featherback.runs.evaluation import Evaluation, evaluate
from featherback.runs.events import Step
from featherback.runs.run_directory import RunDirectory
from tests.runs import runs
from tests.runs.conftest import Start
from tests.support import tiers
from tests.support.tiny_chat import write_messages, write_tiny_chat

pytestmark = pytest.mark.usefixtures("all_cores")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _adapter(run: RunDirectory) -> bytes:
    return (run.path / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize("number", tiers.some(SIGNALS, 1))
def test_a_signal_in_a_step_saves_and_ends(tiny_path: Path, tmp_path: Path, number: signal.Signals) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", steps=100_000, save_every=100_000)
    run.release()
    process = runs.worker(run.path)
    runs.wait_for(lambda: run.metrics_path.exists() and run.metrics_path.stat().st_size, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 130, err
    record = RunDirectory.open(run.path).record
    assert record.status == "interrupted"
    assert list(run.path.glob("*.fbc"))
    assert not (run.path / "work").exists()


@pytest.mark.parametrize("at", tiers.some([4, 0, 6], 2))
def test_a_signal_in_an_evaluation_does_not_wait_for_its_end(start: Start, at: int) -> None:
    """It is left at the next batch, the step is saved, and the evaluation begins anew when the run is resumed."""
    options: dict[str, Any] = {"steps": 6, "eval_seed": 9, "eval_every": 2}
    whole = start("whole", **options)
    batches = 0

    def interrupted(*values: Any) -> Evaluation:
        *others, between, objective, together = values

        def after_a_batch() -> None:
            nonlocal batches
            batches += 1
            if batches == 4 * at // 2 + 2:  # the second batch of that evaluation's four
                os.kill(os.getpid(), signal.SIGTERM)
            between()

        return evaluate(*others, after_a_batch, objective, together)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("featherback.runs.trainer.evaluate", interrupted)
        run = start("parts", **options)
    assert batches == 4 * at // 2 + 2
    record = RunDirectory.open(run.path).record
    assert record.status == "interrupted"
    assert [each.step for each in record.evaluations] == list(range(0, at, 2))
    resumed = start("parts", resume=True, **options)
    assert _adapter(resumed) == _adapter(whole)
    ours, theirs = (RunDirectory.open(each.path).record for each in (resumed, whole))
    assert ours.evaluations == theirs.evaluations
    assert ours.status == "finished"


def test_a_second_signal_ends_at_once_and_the_record_says_so(start: Start, tmp_path: Path) -> None:
    class Twice(Callback):
        def step(self, event: Step) -> None:
            if event.step == 3:
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        start("run", Twice(), steps=9, save_every=2)
    assert RunDirectory.open(tmp_path / "run").record.status == "interrupted"
    assert len(list(start("run", steps=4, resume=True).metrics())) == 4


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.requested
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", tiers.some(SIGNALS, 1))
def test_a_signal_in_the_preparation_ends_its_child_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    model, data, out = write_tiny_chat(tmp_path / "m.gguf"), tmp_path / "many.jsonl", tmp_path / "run"
    write_messages(data, 40_000)
    command = [sys.executable, "-m", "featherback", "train", model, "--data", data, "--out", out, "--epochs", "1"]
    process = subprocess.Popen(
        [*map(str, command), "--seq-len", "64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    runs.wait_for(lambda: list(out.glob("tokens/.train.tokens.*")), process)
    children = set(tree(process.pid)) - {process.pid}  # the template's process
    process.send_signal(number)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert not out.exists()
    runs.wait_for(lambda: not any(map(_is_alive, children)))  # one that loses its owner needs a moment to see it


CALLS = """
import os, signal, sys
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_DFL)  # also if the tests run under nohup
from featherback.core.children import Children
from featherback.cli import main
numbers, at, when = [int(number) for number in sys.argv.pop().split(",")], sys.argv.pop(), sys.argv.pop()
call = Children.call
def signalled(self, function, *arguments):
    def send(when_now):
        if function.__name__ == at and when == when_now:
            for number in numbers:
                os.kill(os.getpid(), number)
    send("before")
    found = call(self, function, *arguments)
    send("after")
    return found
Children.call = signalled
main()
"""
"""A command that sends itself signals just before, or just after, it calls a function in a child."""


@pytest.mark.parametrize(("at", "when"), [("set_up", "before"), ("set_up", "after")])
@pytest.mark.parametrize("numbers", tiers.some(["2,15", "1", "2", "15"], 1))
def test_a_signal_between_two_processes_of_a_command_ends_it(tmp_path: Path, at: str, when: str, numbers: str) -> None:
    model, out, words = runs.whole_command(tmp_path, 100_000)
    done = subprocess.run(
        [sys.executable, "-c", CALLS, *words, when, at, numbers],
        capture_output=True,
        text=True,
        timeout=runs.PATIENCE,
        check=False,
    )
    prepared = when == "after"
    alone = f"interrupted before the first step; to start {out}, repeat the command with --resume\n"
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.endswith(alone if prepared else "")
    assert out.exists() == prepared
    if prepared:
        assert RunDirectory.open(out).record.status == "interrupted"
        runs.resumed(model, out).release()


REPORTS = """
import atexit, os, sys
from featherback.core.signals import exit_with
from featherback import worker
from featherback.view.report import page
when, number = sys.argv.pop(), int(sys.argv.pop())
write_now = page.write_report
def write(run):
    if when == "report":
        os.kill(os.getpid(), number)
    return write_now(run)
page.write_report = write
if when == "end":
    atexit.register(os.kill, os.getpid(), number)
exit_with(lambda: worker.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("when", ["report", "end"])
@pytest.mark.parametrize("number", tiers.some(SIGNALS, 1))
def test_a_signal_after_the_last_step_is_no_crash(
    tiny_path: Path, tmp_path: Path, number: signal.Signals, when: str
) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", steps=1)
    run.release()
    process = runs.worker(run.path, REPORTS, str(int(number)), when)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == (130 if when == "report" else 0)
    told = f"\ninterrupted; the run is finished. For its report: featherback report {run.path}\n"
    assert err == (told if when == "report" else "")
    assert RunDirectory.open(run.path).record.status == "finished"


@pytest.mark.parametrize("number", tiers.some(SIGNALS, 1))
def test_a_signal_in_an_evaluate_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Its tokens are in a temporary folder, made by a child."""
    model, data, place = write_tiny_chat(tmp_path / "m.gguf"), tmp_path / "many.jsonl", tmp_path / "tmp"
    write_messages(data, 40_000)
    place.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "featherback", "evaluate", str(model), "--data", str(data)],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    runs.wait_for(lambda: list(place.glob("featherback-*/.data.tokens.*")), process)
    process.send_signal(number)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err
    left = list(place.iterdir())  # an empty file may be: by it Python tries a folder, and a child may be ended in that
    assert not [path for path in left if path.is_dir() or path.stat().st_size]


def _is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
