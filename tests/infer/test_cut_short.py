"""If another program truncates a model file while it is read, the result is an error message, never a signal."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from tests.runs import runs
from tests.support.systems import cuts_short
from tests.support.tiny_chat import write_messages, write_tiny_chat

pytestmark = cuts_short
PAGE = mmap.PAGESIZE
SAID = (
    "was truncated by another program, or its disk failed, while Featherback was reading it. "
    "Restore the file and run the command again."
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_chat(tmp_path / "tiny.gguf")


def _featherback(*arguments: object) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "featherback", *map(str, arguments)], text=True, **pipes)


@pytest.mark.parametrize("kept", ["a page", "all but the last bytes"])
def test_decoding(model: Path, kept: str) -> None:
    """If the file ends within a page, the rest of the page reads as zeros and nothing faults."""
    whole = model.read_bytes()
    decoder = Decoder(models.load(model), capacity=16)
    decoder.forward([1, 2])
    os.truncate(model, PAGE if kept == "a page" else len(whole) - 3)
    with pytest.raises(FeatherbackError) as raised:
        decoder.forward([3])
    assert str(raised.value) == f"{model} {SAID}"
    model.write_bytes(whole)
    with pytest.raises(FeatherbackError, match="is closed; load it again"):  # pages of it are zeros for ever
        decoder.forward([3])


def test_another_file_in_its_place_changes_nothing(model: Path) -> None:
    decoder, alone = (Decoder(models.load(model), capacity=16) for _ in range(2))
    decoder.forward([1, 2])
    other = model.with_name("other")
    other.write_bytes(b"short")
    other.replace(model)
    assert (decoder.forward([3]) == alone.forward([1, 2, 3])).all()


def test_chat(model: Path) -> None:
    process = _featherback("chat", model, "--max-tokens", 4, "--temperature", 0)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("one\n")
    process.stdin.flush()
    assert process.stdout.read(1)  # the first answer
    os.truncate(model, PAGE)
    out, err = process.communicate("two\nthree\n", timeout=runs.PATIENCE)
    assert process.returncode == 2, (out, err)
    assert err.splitlines()[1:] == [f"error: {model} {SAID}"]


def test_generate(model: Path) -> None:
    """The file is truncated after the first piece of text, hundreds of tokens before the end."""
    process = _featherback("generate", model, "--prompt", "one", "--max-tokens", 480, "--raw")
    assert process.stdout is not None
    assert process.stdout.read(1)
    os.truncate(model, PAGE)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert (process.returncode, err) == (2, f"error: {model} {SAID}\n")


def test_a_preparation(model: Path, tmp_path: Path) -> None:
    """The preparation maps the model for the vocabulary. The pages in use already may be all it needs."""
    data, out = write_messages(tmp_path / "many.jsonl", 1500), tmp_path / "run"
    process = _featherback("train", model, "--data", data, "--out", out, "--steps", 1, "--seq-len", 64)
    runs.wait_for(lambda: list(out.glob("tokens/.train.tokens.*")), process)
    os.truncate(model, 0)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert (process.returncode, err) == (2, f"error: {model} {SAID}\n")
    assert not out.exists()


PREPARES = """
import sys
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
model, data, out = sys.argv[1:]
prepare_run(TrainConfig(model=model, data=data, out=out, steps=1, seq_len=64))
"""


@pytest.mark.parametrize("met", ["the child meets it", "nobody meets it"])
def test_a_preparation_from_python(model: Path, tmp_path: Path, met: str) -> None:
    """Here a child process maps the model."""
    data, out = write_messages(tmp_path / "many.jsonl", 1500), tmp_path / "run"
    command = [sys.executable, "-c", PREPARES, str(model), str(data), str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    runs.wait_for(lambda: list(out.glob("tokens/.train.tokens.*")), process)
    os.truncate(model, 0)
    if met == "the child meets it":
        (child,) = {int(path.name.split(".")[3].partition("-")[0]) for path in out.glob("tokens/.train.tokens.*")}
        os.kill(child, signal.SIGBUS)
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 1
    assert err.splitlines()[-1] == f"featherback.errors.FeatherbackError: {model} {SAID}"
    assert not out.exists()
