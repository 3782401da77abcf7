"""A run directory from somebody else cannot make Featherback send data or read files that the user did not name."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.app import run as command
from featherback.errors import FeatherbackError
from featherback.runs import checkpoint
from featherback.runs.run_directory import RunDirectory
from tests.runs.conftest import Start
from tests.runs.test_whole import FULL


class _EnoughError(BaseException):
    """What stands for the programs that follow."""


def _run(words: list[str]) -> None:
    with pytest.raises(_EnoughError):
        command(words)


def _says(run: Path, **configuration: Any) -> None:
    """Change entries of its record."""
    record = json.loads((run / "run.json").read_text())
    record["configuration"] |= configuration
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_yaml_of_a_run_names_no_program_to_log_to(
    start: Start,
    tmp_path: Path,
    tiny_path: Path,
    resume: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file that the user wrote does: it lies elsewhere."""
    run, asked = start("run", steps=1).path, list[Any]()

    def request(options: dict[str, Any], **_: Any) -> None:
        asked.append(options.get("log_to"))
        raise _EnoughError

    monkeypatch.setattr("featherback.cli.train.TrainingRequest", request)
    (run / "run.yaml").write_text("log_to: wandb\n")
    own = tmp_path / "own.yaml"
    own.write_text("log_to: wandb\n")
    out = str(run if resume else tmp_path / "new")
    words = ["train", str(tiny_path), "--data", "d.jsonl", "--out", out, *(["--resume"] if resume else [])]
    _run([*words, "--config", str(run / "run.yaml")])
    assert ("logs to wandb, but a new run does so only if you add --log-to wandb" in capsys.readouterr().err) != resume
    _run([*words, "--config", str(run / "run.yaml"), "--log-to", "trackio"])
    _run([*words, "--config", str(own)])
    assert not capsys.readouterr().err
    own.write_text("log_to: wandb\nplan: {keep: 0}\n")  # what a run wrote, without its run.json
    _run([*words, "--config", str(own)])
    assert [list(each or ()) for each in asked] == [[], ["trackio"], ["wandb"], []]


def test_a_model_that_the_run_was_not_trained_on_is_not_used_for_its_report(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path of run.json may lead anywhere: it is read as a model, and used only if it is the run's."""
    from tests.support.tiny_chat import write_tiny_chat

    run = start("run", steps=1).path
    _says(run, model=str(write_tiny_chat(tmp_path / "other.gguf")))
    assert command(["report", str(run), "--samples", "1"]) == 2
    assert "have changed since" in capsys.readouterr().err
    (tmp_path / "secret").write_text("a user's own text")
    _says(run, model=str(tmp_path / "secret"))
    assert command(["report", str(run), "--samples", "1"]) == 2
    err = capsys.readouterr().err
    assert "own text" not in err
    assert len(err.splitlines()) == 1


def test_files_that_a_checkpoint_names_are_the_kept_ones(start: Start, tmp_path: Path) -> None:
    """Not ../NAME, whose content a checksum that fits would tell."""
    run, content = start("run", steps=1, **FULL), b"private"
    (tmp_path / "outside").write_bytes(content)
    for name in ("../../outside", str(tmp_path / "outside")):
        _change_state(run, lambda state, name=name: state["files"].update({name: zlib.crc32(content)}))
        with pytest.raises(FeatherbackError, match=r"outside is missing or damaged; delete weights-000001 and "):
            start("run", steps=2, resume=True, **FULL)


ABSURD: list[Callable[[dict[str, Any]], object]] = [
    lambda state: state["progress"].update(step="../../x"),
    lambda state: state["progress"].update(step=10**30),
    lambda state: state.update(updates=[1]),  # of fewer layers
    lambda state: state.update(other=1),
]


@pytest.mark.parametrize("options", [{}, FULL], ids=["lora", "full"])
def test_absurd_numbers_of_a_checkpoint_are_refused_in_a_sentence(start: Start, options: dict[str, Any]) -> None:
    run = start("run", steps=1, **options)
    content = (run.path / "checkpoint-000001.fbc").read_bytes()
    for change in ABSURD:
        _change_state(run, change)
        with pytest.raises(FeatherbackError, match=r"damaged|can be used"):
            start("run", steps=2, resume=True, **options)
        (run.path / "checkpoint-000001.fbc").write_bytes(content)
    start("run", steps=2, resume=True, **options)


def _change_state(run: RunDirectory, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace the state of the run's checkpoint, with a matching checksum."""
    path = run.path / "checkpoint-000001.fbc"
    content = path.read_bytes()
    length = checkpoint._FOOTER.unpack(content[-checkpoint._FOOTER.size :])[0]
    begin = len(content) - checkpoint._FOOTER.size - length
    state = json.loads(content[begin : begin + length])
    change(state)
    body = content[:begin] + json.dumps(state).encode()
    footer = checkpoint._FOOTER.pack(len(body) - begin, zlib.crc32(body), checkpoint._END)
    path.write_bytes(body + footer)


def test_a_refusal_comes_without_the_notes_of_what_is_not_done(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("run", steps=2)
    _says(run.path, log_to=["wandb"])
    record = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**record, "status": "stopped early"}))
    capsys.readouterr()
    with pytest.raises(FeatherbackError, match="stopped early"):
        start("run", resume=True)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 always looks in the working directory")
def test_nothing_is_imported_from_the_directory_of_a_run(tmp_path: Path) -> None:
    """Where a user may stand when the command is called, as it is installed."""
    from tests.support.tiny_chat import write_messages, write_tiny_chat

    model, data, here = write_tiny_chat(tmp_path / "m.gguf"), tmp_path / "few.jsonl", tmp_path / "here"
    write_messages(data, 4)
    here.mkdir()
    for name in ("numpy", "json", "featherback", "typing_extensions"):
        (here / f"{name}.py").write_text(
            f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})\nraise SystemExit(7)"
        )
    script = tmp_path / "bin" / "featherback"
    script.parent.mkdir()
    script.write_text("from featherback.cli import main\nmain()")
    words = [sys.executable, script, "train", model, "--data", data, "--out", tmp_path / "run", "--dry-run"]
    done = subprocess.run(list(map(str, words)), cwd=here, capture_output=True, text=True)
    assert not (tmp_path / "imported").exists()
    assert done.returncode == 0, done.stderr


def test_a_model_without_a_length_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As those of /proc, which have content all the same."""
    path = Path("/proc/self/status")
    if not path.exists():
        pytest.skip("no /proc here")
    assert command(["generate", str(path), "--prompt", "x"]) == 2
    assert capsys.readouterr().err == f"error: {path} has no fixed length, like a file under /proc.\n"
