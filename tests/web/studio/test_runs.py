"""Runs that the page starts: their processes are found again, and never taken for others; what is shown of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from featherback.core.files import read_json, write_json
from featherback.errors import FeatherbackError
from featherback.runs.events import Sample
from featherback.runs.record import Failure, HeldOutLoss
from featherback.runs.run_directory import RunDirectory
from featherback.web.refusal import RefusedError
from featherback.web.studio import watching
from featherback.web.studio.commands import Command, error_in
from featherback.web.studio.runs import Starts, resume_command
from featherback.web.studio.workspace import LOGS, OWN, Workspace
from tests.runs import runs
from tests.support.records import SUMMARY
from tests.web.studio.conftest import Ask, message

SLEEPS = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print('ready', flush=True)
time.sleep(600)
"""
FAILS = "import sys\nprint('note: x')\nsys.exit('error: --rank is 0; it must be at least 1.')"


class Program(Command):
    """A command that runs a line of Python in place of Featherback."""

    @property
    def arguments(self) -> list[str]:
        return [sys.executable, "-c", self.words[0]]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_is_found_again_by_another_server(folder: Path) -> None:
    first, second = Starts(Workspace(folder)), Starts(Workspace(folder))
    first.start("run", Program((SLEEPS,)))
    wait_for(lambda: "ready" in first.output("run"))
    assert second.is_alive("run")
    assert second.running() == "run"
    with pytest.raises(RefusedError, match="run is being trained"):
        second.start("other", Program((SLEEPS,)))
    second.stop("run")
    wait_for(lambda: not first.is_alive("run"))
    assert not second.is_alive("run")
    assert second.running() is None
    with pytest.raises(RefusedError, match="No process"):
        second.stop("run")


def test_a_second_request_to_stop_sends_no_second_signal(folder: Path, ask: Ask) -> None:
    """A second signal would end the run without saving its last step."""
    counts = "import os, signal, time; signal.signal(signal.SIGINT, lambda *_: print('asked', flush=True))"
    done = folder / "done"
    ends = f"print('ready', flush=True)\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    starts = Starts(Workspace(folder))
    starts.start("run", Program((f"{counts}; {ends}",)))
    wait_for(lambda: "ready" in starts.output("run"))
    assert not starts.is_stopping("run")
    assert ask("/runs/run").json()["status"] == "starting"
    starts.stop("run")
    starts.stop("run")
    assert starts.is_stopping("run")
    assert ask("/runs/run").json()["status"] == "stopping"
    assert [each["status"] for each in ask("/runs").json()["runs"]] == ["stopping"]
    wait_for(lambda: "asked" in starts.output("run"))
    done.touch()
    wait_for(lambda: not starts.is_alive("run"))
    assert starts.output("run").count("asked") == 1
    assert not starts.is_stopping("run")


def test_a_planted_process_with_the_same_number_is_not_stopped(folder: Path) -> None:
    """The number of a process that has ended may belong to any other program."""
    starts = Starts(Workspace(folder))
    starts.start("run", Program((SLEEPS,)))
    wait_for(lambda: "ready" in starts.output("run"))
    path = folder / OWN / LOGS / "run.json"
    about = read_json(path, 10_000)
    write_json(path, {**about, "began": "1"})
    other = Starts(Workspace(folder))
    assert not other.is_alive("run")
    with pytest.raises(RefusedError, match="No process"):
        other.stop("run")
    assert starts.is_alive("run")
    starts.stop("run")
    wait_for(lambda: not starts.is_alive("run"))


def test_a_command_that_fails_says_why(folder: Path, ask: Ask) -> None:
    starts = Starts(Workspace(folder))
    starts.start("run", Program((FAILS,)))
    wait_for(lambda: not starts.is_alive("run"))
    assert starts.failure("run") == "--rank is 0; it must be at least 1."
    assert [(each["name"], each["status"]) for each in ask("/runs").json()["runs"]] == [("run", "failed")]
    shown = ask("/runs/run").json()
    assert shown["failure"] == "--rank is 0; it must be at least 1."
    assert "note: x" in shown["log"]
    starts.start("other", Program((SLEEPS,)))
    assert starts.names() == ["other"]  # the failure has been seen
    wait_for(lambda: "ready" in starts.output("other"))
    starts.stop("other")
    wait_for(lambda: not starts.is_alive("other"))


def test_a_run_that_was_deleted_is_not_listed(folder: Path, ask: Ask) -> None:
    starts = Starts(Workspace(folder))
    starts.start("run", Program(("print('done')",)))
    wait_for(lambda: not starts.is_alive("run"))
    assert ask("/runs").json()["runs"] == []
    assert ask("/runs/run").status_code == 404


def test_errors_are_seen_in_output() -> None:
    assert error_in("a\nerror: b\nerror: c\nd\n") == "c"
    assert error_in("a\nb\n\n") is None


@pytest.fixture
def tiny_path(folder: Path) -> Path:
    return folder / "tiny.gguf"


@pytest.fixture
def run(folder: Path, tiny_path: Path) -> RunDirectory:
    """A run of the folder with the records of four steps."""
    return _recorded(runs.prepared(tiny_path, folder / "one", steps=4), 1.0)


def _recorded(run: RunDirectory, scale: float) -> RunDirectory:
    for step in range(1, 5):
        numbers = {"lr": 1e-3, "footprint_mb": 30.0, "rss_mb": 50.0, "grad_norm": 1.0}
        run.append_metrics({"step": step, "loss": scale * (5 - step), "seconds": 2.0, "tokens": 100, **numbers})
    run.update(steps=6, status="running", evaluations=[HeldOutLoss(0, 4 * scale), HeldOutLoss(3, 2 * scale)])
    return run


def test_a_run_whose_process_was_killed_is_interrupted(run: RunDirectory) -> None:
    assert watching.status_of(run) == "running"
    run.release()
    assert watching.status_of(run) == "interrupted"
    assert watching.status_of(run, alive=True) == "running"
    assert watching.status_of(run, alive=True, stopping=True) == "stopping"
    run.update(status="finished", summary=SUMMARY)
    assert watching.status_of(run) == "finished"


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_whose_process_has_not_yet_resumed_it_is_starting(run: RunDirectory, status: str) -> None:
    run.release()
    run.update(status=status, failure=Failure(4, "disk full"))
    assert watching.status_of(run) == status
    shown = watching.state(run, "one", alive=True)
    assert shown["status"] == "starting"
    assert shown["failure"] is None
    assert not shown["can_resume"]
    assert not shown["can_export"]


def test_the_speed_of_a_resumed_run_is_not_that_of_its_first_part(run: RunDirectory) -> None:
    run.update(summary=replace(SUMMARY, tokens_per_second=7.0, seconds=90.0))

    def speed() -> dict[str, str]:
        return next(tile for tile in watching.state(run, "one", alive=True)["tiles"] if tile["name"] == "Speed")

    assert speed() == {"name": "Speed", "value": "50 tokens/s", "more": "4 steps"}
    run.update(status="finished")
    assert speed() == {"name": "Speed", "value": "7 tokens/s", "more": "4 steps in 1:30"}


def test_what_is_shown_of_a_run(run: RunDirectory, ask: Ask) -> None:
    shown = ask("/runs/one").json()
    assert (shown["step"], shown["steps"], shown["left"]) == (4, 6, "0:04")
    assert shown["status"] == "running"
    assert not shown["can_resume"]
    assert {tile["name"] for tile in shown["tiles"]} >= {"Training loss", "Held-out loss", "Speed"}
    assert shown["charts"]["large"].startswith("<svg")
    assert shown["commands"]["resume"] == "featherback train --out one --resume"
    run.release()
    shown = ask("/runs/one").json()
    assert shown["status"] == "interrupted"
    assert shown["can_resume"]
    assert shown["left"] is None


def test_texts_of_a_run_are_escaped(run: RunDirectory) -> None:
    text = "<img src=x onerror=alert(1)>\x1b[2J"
    run.update(samples=[Sample(text, text, text, text)])
    (sample,) = watching.samples(run.record)
    assert set(sample.values()) == {"&lt;img src=x onerror=alert(1)&gt;\\u001b[2J"}


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\nyou<|im_end|>\n<|im_start|>assistant\n",
            "Hi\nyou",
        ),
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "Hi"),
        ("<|header|>system<|end|>\n\nA<|eot|><|header|>user<|end|>\n\nHi<|eot|><|header|>assistant<|end|>\n\n", "Hi"),
        ("<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "Hi"),
        ("<s>[INST] Hi [/INST]", "Hi"),
        ("Once upon a time", "Once upon a time"),
        ("<|im_start|>assistant\n", "<|im_start|>assistant\n"),
    ],
)
def test_the_question_in_a_prompt(prompt: str, question: str) -> None:
    assert watching.question(prompt) == question


def test_a_run_without_a_result_is_not_offered(run: RunDirectory, ask: Ask) -> None:
    def offered() -> tuple[bool, bool]:
        [found] = ask("/runs").json()["runs"]
        return found["can_chat"], found["can_export"]

    assert offered() == (False, False)
    (run.path / "adapter_model.safetensors").write_bytes(b"")
    assert offered() == (True, False)  # it may change at any time
    run.release()
    assert offered() == (True, True)


def test_two_runs_are_compared(run: RunDirectory, folder: Path, tiny_path: Path, ask: Ask) -> None:
    other = _recorded(runs.prepared(tiny_path, folder / "two", steps=4, rank=2), 2.0)
    found = ask("/compare", {"runs": ["one", "two"]}).json()
    differing = {row["flag"]: row["values"] for row in found["options"]}
    assert differing["--rank"] == [str(run.config.rank), "2"]
    assert "--optimizer" not in differing
    assert "--lr" not in differing or differing["--lr"][0] != differing["--lr"][1]
    assert found["held_out"] == {"one": [3, 2.0], "two": [3, 4.0]}
    assert found["comparable"]
    for drawn in found["charts"]:
        assert drawn["large"].count("<polyline") == 2
    other.release()
    assert "two runs" in message(ask("/compare", {"runs": ["one", "one"]}))


def test_a_finished_run_is_not_resumed(run: RunDirectory, folder: Path) -> None:
    run.release()
    workspace = Workspace(folder)
    assert resume_command(workspace, "one").words == ("train", "--out", "one", "--resume")
    run.update(status="finished", summary=SUMMARY)
    with pytest.raises(RefusedError, match="has finished"):
        resume_command(workspace, "one")


def test_a_damaged_run_is_listed_with_its_problem(folder: Path, ask: Ask) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / "run.json").write_text("{")
    (listed,) = ask("/runs").json()["runs"]
    assert listed["status"] == "damaged"
    assert listed["failure"]
    with pytest.raises(FeatherbackError):
        Workspace(folder).run("bad")
