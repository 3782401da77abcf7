"""Standard input and output of every kind: the command works, or fails with one correct sentence."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from featherback.cli.kinds.data import KIND as DATA
from featherback.core.failure import report
from featherback.core.terminal import Preparing, _text, clean
from tests.cli.conftest import Command
from tests.support import tiers

FEATHERBACK = (sys.executable, "-m", "featherback")
NOT_OURS = "bug in Featherback"


def _featherback(*arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    how = {"stdout": subprocess.PIPE, **how}
    return subprocess.run([*FEATHERBACK, *map(str, arguments)], stderr=subprocess.PIPE, text=True, **how)


def _train(chat_model: Path, messages: Path, out: object, **how: Any) -> subprocess.CompletedProcess[str]:
    options = ("--steps", 3, "--seq-len", 64, "--rank", 2)
    return _featherback("train", chat_model, "--data", messages, "--out", out, *options, **how)


def _closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.fixture
def full() -> Any:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as file:
        yield file


# --- what is shown ---

ESCAPES = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egnp.exe \r\ud800"
SHOWN = "\\u001b[2J\\u001b]0;owned\\u0007 \\u009b31m \\u202egnp.exe \\u000d\\ud800"


def test_clean() -> None:
    assert clean(ESCAPES) == SHOWN
    assert clean("a\tb\nç 日本 👍") == "a\tb\nç 日本 👍"
    assert clean("a\tb\n", one_line=True) == "a\\u0009b\\u000a"
    text = json.dumps({"a": "\x7f\x1b"})
    assert json.loads(clean(text)) == json.loads(text)


def test_data_is_shown_without_escapes(command: Command, chat_model: Path, tmp_path: Path) -> None:
    """The same holds for file names and for quotes in errors."""
    data = tmp_path / "\x1b[31mdata.jsonl"
    data.write_text(json.dumps({"prompt": "\x1b[2Ja", "completion": "\x9bb"}) + "\n")
    out = command("inspect", data, "--model", chat_model).out
    assert "\\u001b[2Ja" in out
    assert "\\u009bb" in out
    assert "\\u001b[31mdata.jsonl" in out
    assert not set(out) & set("\x1b\x9b")
    data.write_text(json.dumps({"\x1b[2J": "a"}) + "\n")
    code, _, err = command("inspect", data)
    assert (code, "\x1b" in err) == (2, False)


def test_metadata_is_shown_without_escapes(command: Command, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "\\u001b[8mx"}')
    assert "\\u001b[8mx" in command("inspect", tmp_path).out


def test_an_error_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ValueError("a\nb\x1b" + "x" * 10_000), debug=False) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: unexpected ValueError: a b\\u001bxxx")
    assert len(err.splitlines()) == 1
    assert len(err) < 2500


# --- where it goes ---


def test_a_closed_pipe_ends_a_command_quietly(chat_model: Path) -> None:
    done = _featherback("inspect", chat_model, stdout=_closed_pipe())
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_under_the_output(chat_model: Path, full: Any) -> None:
    done = _featherback("inspect", chat_model, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: Cannot write to standard output: No space left on device.\n"


@pytest.mark.parametrize("closed", tiers.some([[0, 1, 2], [0], [1]], 1), ids=str)
def test_closed_streams(chat_model: Path, messages: Path, tmp_path: Path, closed: list[int]) -> None:
    """No file of a run may get the descriptor of a closed standard stream."""

    def close() -> None:
        for number in closed:
            os.close(number)

    done = _train(chat_model, messages, tmp_path / "run", preexec_fn=close)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("output", tiers.some(["full", "closed"], 1))
def test_training_needs_no_output(chat_model: Path, messages: Path, tmp_path: Path, full: Any, output: str) -> None:
    """This includes the output of `train` before the first step."""
    done = _train(chat_model, messages, tmp_path / "run", stdout=full if output == "full" else _closed_pipe())
    assert done.returncode == 0, done.stderr
    assert "note: standard output was lost" in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


def test_training_goes_on_when_nobody_looks_on(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    """The pipe is closed after the first output has been read."""
    run = [*FEATHERBACK, "train", chat_model, "--data", messages, "--out", tmp_path / "run", "--steps", "30"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not process.stdout.readline().startswith("run "):
            pass
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait() == 0, err
    assert err == "note: standard output was lost (Broken pipe); the program continues without it\n"
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["summary"]["steps"]) == ("finished", 30)


def test_output_that_does_not_wait() -> None:
    """A non-blocking pipe that is read slowly."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "0123456789" * 50_000
    read: list[bytes] = []

    def slowly() -> None:
        with open(reader, "rb", buffering=0) as file:
            while piece := file.read(7000):
                read.append(piece)

    other = threading.Thread(target=slowly)
    other.start()
    stream = _text(writer, "it", None, lasting=False)
    stream.write(text)
    stream.flush()
    os.close(writer)
    other.join()
    assert b"".join(read).decode() == text


# --- where it runs ---


def test_a_working_directory_that_is_gone(chat_model: Path, messages: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def leave() -> None:
        os.chdir(gone)
        gone.rmdir()

    done = _train(chat_model, messages, tmp_path / "run", preexec_fn=leave)
    assert done.returncode == 0, done.stderr
    gone.mkdir()
    done = _train(chat_model, messages, "run", preexec_fn=leave)
    assert done.returncode == 2
    said = "The working directory no longer exists. Change to another one, or use absolute paths."
    assert done.stderr == f"error: {said}\n"


@pytest.mark.parametrize("option", ["model", "--data", "--out", "--adapter", "--eval-data"])
def test_names_that_no_file_can_have(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path, option: str
) -> None:
    long = "x" * 300
    arguments: dict[str, object] = {"model": chat_model, "--data": messages, "--out": tmp_path / "run"}
    arguments[option] = long
    verb = "train"
    if option == "--adapter":
        verb = "evaluate"
        del arguments["--out"]
    model = arguments.pop("model")
    code, _, err = command(verb, model, *(word for pair in arguments.items() for word in pair))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "File name too long" in err
    assert long in err


def test_a_directory_that_looks_like_an_option(
    command: Command, chat_model: Path, messages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("train", chat_model, "--data", messages, "--out=--json", "--steps", 2, "--seq-len", 64)
    assert done.code == 0, done.err
    assert (tmp_path / "--json" / "adapter_model.safetensors").is_file()
    assert "adapter: --json" in done.out


def test_one_bad_line_does_not_end_a_chat(chat_model: Path) -> None:
    """Bytes that are not UTF-8, and a message that is longer than the context."""
    lines = b"hello\n\xff\xfe\n" + b"x" * 300 + b"\nagain\n"
    run = [*FEATHERBACK, "chat", chat_model, "--context", "200", "--max-tokens", "3", "--temperature", "0"]
    done = subprocess.run(run, input=lines, capture_output=True, check=False)
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert "half a surrogate pair" in errors[0]
    assert "--context" in errors[1]
    assert done.returncode == 2
    assert done.stdout.count(b"\n") >= 2


def test_preparation_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress line is erased at the end, and is not written to files or pipes."""
    done = {"read": 1, "of": 4, "examples": 1234, "tokens": 5}
    for live in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda live=live: live)
        monkeypatch.setattr(sys, "stderr", stream)
        with Preparing("d\x1b.jsonl") as shown:
            shown.update(done)
        line = "\r\x1b[Kpreparing d\\u001b.jsonl: 25 % read, 1,234 examples, 5 tokens"
        assert stream.getvalue() == (f"{line}\r\x1b[K" if live else "")


def test_counting_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("featherback.core.terminal.PROGRESS_SECONDS", -1.0)
    monkeypatch.setenv("COLUMNS", "500")  # the line is not cut
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    data = tmp_path / "d.txt"
    data.write_text("word\n" * 4)
    assert DATA.describe(data)["characters"] == 20
    assert [part.rpartition(": ")[2] for part in stream.getvalue().split("\r\x1b[K")[1:]] == [
        "25 % read", "50 % read", "75 % read", "100 % read", "",
    ]  # fmt: skip


@pytest.mark.parametrize("debug", [False, True])
def test_warnings_of_libraries_are_for_those_who_debug(debug: bool) -> None:
    script = (
        "from featherback.core.terminal import open_streams; open_streams(); import numpy as np; "
        "np.float32(1e30) * np.float32(1e30)"
    )
    environment = {**os.environ, **({"FEATHERBACK_DEBUG": "1"} if debug else {})}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ("RuntimeWarning: overflow" in done.stderr) is debug
    assert debug or not done.stderr
