"""Bad input gets one clear sentence on standard error and exit code 2, before anything is written."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from featherback import optim
from featherback.data.tokenizers.folder import from_folder
from featherback.engine.formats.safetensors import SafetensorsFolder
from featherback.errors import FeatherbackError
from tests.cli.conftest import Command
from tests.data.support import byte_core
from tests.support.tiny_chat import write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

GOOD = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'


def _refused(command: Command, *arguments: object, says: tuple[str, ...]) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    for word in says:
        assert word in lines[0]


# Models. Each maker writes a file and returns words the sentence must hold.


def _not_a_gguf(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"PK\x03\x04" + bytes(1000))
    return ("not a GGUF",)


def _truncated(path: Path) -> tuple[str, ...]:
    write_tiny_chat(path)
    os.truncate(path, path.stat().st_size - 1000)
    return ("truncated",)


def _truncated_in_the_header(path: Path) -> tuple[str, ...]:
    write_tiny_chat(path)
    os.truncate(path, 200)
    return ("truncated",)


def _unknown_architecture(path: Path) -> tuple[str, ...]:
    write_tiny_chat(path, metadata={"general.architecture": "mamba"})
    return ("mamba", "llama", "qwen2")


def _unknown_tensor_type(path: Path) -> tuple[str, ...]:
    write_tiny_chat(path)
    content = path.read_bytes()
    name = b"blk.0.attn_q.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8  # dimensions, then two of them
    path.write_bytes(content[:at] + (29).to_bytes(4, "little") + content[at + 4 :])
    return ("blk.0.attn_q.weight", "IQ1_M")


def _wrong_shape(path: Path) -> tuple[str, ...]:
    write_tiny(path, tiny(TINY_LLAMA), metadata={"llama.feed_forward_length": 192})
    return ("ffn", "160", "192")


@pytest.mark.parametrize(
    "make",
    [_not_a_gguf, _truncated, _truncated_in_the_header, _unknown_architecture, _unknown_tensor_type, _wrong_shape],
)
def test_models(command: Command, tmp_path: Path, messages: Path, make: Callable[[Path], tuple[str, ...]]) -> None:
    model, out = tmp_path / "bad.gguf", tmp_path / "run"
    says = (str(model), *make(model))
    _refused(command, "train", model, "--data", messages, "--out", out, says=says)
    _refused(command, "generate", model, "--prompt", "hello", says=says)
    assert not out.exists()


def _nonsense_after_the_magic(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"GGUF" + random.Random(0).randbytes(5000))
    return ("GGUF version",)


def _nonsense_in_the_header(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 2) + random.Random(0).randbytes(5000))
    return ("truncated",)


@pytest.mark.parametrize(
    "make", [_not_a_gguf, _truncated, _truncated_in_the_header, _nonsense_after_the_magic, _nonsense_in_the_header]
)
def test_inspecting_what_is_named_gguf(
    command: Command, tmp_path: Path, make: Callable[[Path], tuple[str, ...]]
) -> None:
    """The error describes the damaged model, and does not call it an unknown data file."""
    model = tmp_path / "bad.GGUF"
    _refused(command, "inspect", model, "--json", says=(str(model), *make(model)))


def test_a_model_that_is_not_there(command: Command, tmp_path: Path, messages: Path) -> None:
    missing = tmp_path / "missing.gguf"
    _refused(command, "train", missing, "--data", messages, "--out", tmp_path / "run", says=(str(missing),))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, ("does not exist",)),
        ("", ("empty",)),
        ("\n\n", ("no example",)),
        (GOOD + "{not json\n", ("line 2", "JSON")),
        (GOOD + GOOD + '{"question": "?"}\n', ("line 3", "question")),
        (GOOD + '{"messages": [{"role": "user"}]}\n', ("line 2", "content")),
        ('{"messages": [{"role": "user", "content": "a"}]}\n', ("no supervised token", "no assistant answers")),
    ],
)
def test_data(command: Command, tmp_path: Path, chat_model: Path, content: str | None, says: tuple[str, ...]) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "run"
    if content is not None:
        data.write_text(content)
    _refused(command, "train", chat_model, "--data", data, "--out", out, says=(str(data), *says))
    _refused(command, "evaluate", chat_model, "--data", data, says=(str(data), *says))
    assert not out.exists()


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def test_pipes_where_files_are_expected(command: Command, tmp_path: Path, chat_model: Path, messages: Path) -> None:
    """Nobody writes to these pipes, so reading one would never end."""
    pipe = _pipe(tmp_path / "pipe")
    folder, adapter = tmp_path / "folder", tmp_path / "adapter"
    folder.mkdir()
    adapter.mkdir()
    _pipe(adapter / "adapter_config.json")
    (folder / "config.json").write_text("{}")
    for arguments in (
        ("evaluate", pipe, "--data", messages),
        ("evaluate", chat_model, "--data", pipe),
        ("inspect", pipe),
        ("inspect", _pipe(tmp_path / "pipe.gguf")),
    ):
        _refused(command, *arguments, says=("is a pipe, not a file",))
    _refused(command, "generate", chat_model, "--prompt", "a", "--adapter", adapter, says=("adapter_config",))


def test_an_index_that_names_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "pipe"}}')
    _pipe(tmp_path / "pipe")
    with pytest.raises(FeatherbackError, match="pipe is a pipe"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "a\\u0000b"}}')
    with pytest.raises(FeatherbackError, match="is not the name of a file in that folder"):
        SafetensorsFolder(tmp_path)


def test_a_template_that_is_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(byte_core().to_str().encode())
    _pipe(tmp_path / "chat_template.jinja")
    with pytest.raises(FeatherbackError, match=r"chat_template\.jinja is a pipe"):
        from_folder(tmp_path)


def test_what_evaluate_leaves_out_is_told(command: Command, tmp_path: Path, chat_model: Path) -> None:
    data = tmp_path / "data.jsonl"
    long = GOOD.replace('"a"', '"' + "long " * 50 + '"')
    data.write_text(GOOD + long + GOOD.replace('"b"', '"' + "b" * 200 + '"') + GOOD.replace("user", "human"))
    arguments = ("evaluate", chat_model, "--data", data, "--seq-len", 96, "--cut")
    said = command(*arguments).out
    for text in (
        "2 of 4 examples are longer than 96",
        "1 of 4 examples have no",
        "1 message has the role 'human', which",
    ):
        assert text in said
    found = json.loads(command(*arguments, "--json").out)
    assert (found["examples"], found["truncated"], found["dropped"]) == (4, 2, 1)
    assert found["truncated_tokens"] > 200


def test_data_without_a_supervised_token(command: Command, tmp_path: Path, chat_model: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(GOOD.replace('"a"', '"' + "long " * 50 + '"'))
    arguments = ("train", chat_model, "--data", data, "--out", tmp_path / "run", "--seq-len", 64)
    _refused(command, *arguments, says=(str(data), "1 of 1 examples", "longer than 64 tokens", "--cut cuts them"))
    _refused(command, *arguments, "--cut", says=(str(data), "no supervised token", "64"))
    data.write_text('{"messages": [{"role": "user", "content": "a"}]}')  # as held-out data, its loss would be 0 / 0
    good = tmp_path / "good.jsonl"
    good.write_text(GOOD)
    arguments = ("train", chat_model, "--data", good, "--eval-data", data, "--out", tmp_path / "run")
    _refused(command, *arguments, says=(str(data), "no supervised token", "no assistant answers"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--seq-len", 100_000), ("100000", "512")),
        (("--rank", 0), ("--rank is 0",)),
        (("--rank", 100_000), ("--rank is 100000", "width")),
        (("--threads", 100_000), ("100000 threads",)),
        (("--targets", "q,query"), ("'query'", "q, k, v, o, gate, up, down")),
        (("--steps", 0), ("--steps is 0",)),
        (("--method", "autograd"), ("'autograd'", "mesp")),
        (("--optimizer", "adam"), ("'adam'", ", ".join(optim.RULES.names))),
        (("--optimizer", "sgd", "--beta1", 0.5), ("--beta1 is not an option of the optimizer sgd", "--weight-decay")),
        (("--beta1", 1.5), ("--beta1 is 1.5", "less than 1")),
        (("--memory", "lots"), ("'lots'", "96MB")),
        (("--memory", "5MB"), ("does not fit in 5MB", "these options need at least --memory")),
        (("--resume",), ("There is no run",)),
    ],
)
def test_options(
    command: Command,
    tmp_path: Path,
    chat_model: Path,
    messages: Path,
    options: tuple[object, ...],
    says: tuple[str, ...],
) -> None:
    out = tmp_path / "run"
    _refused(command, "train", chat_model, "--data", messages, "--out", out, *options, says=says)
    assert not out.exists()


def test_the_output_directory_of_another_run(
    command: Command, tmp_path: Path, chat_model: Path, messages: Path
) -> None:
    (tmp_path / "run.json").write_text("{}")
    arguments = ("train", chat_model, "--data", messages, "--out", tmp_path)
    _refused(command, *arguments, says=(str(tmp_path), "already contains a run", "--resume"))
    assert (tmp_path / "run.json").read_text() == "{}"


def test_an_output_directory_with_something_in_it(
    command: Command, tmp_path: Path, chat_model: Path, messages: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    _refused(command, "train", chat_model, "--data", messages, "--out", tmp_path, says=("not empty",))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_output_that_cannot_be_written(command: Command, tmp_path: Path, chat_model: Path, messages: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        arguments = ("train", chat_model, "--data", messages, "--out", out)
        _refused(command, *arguments, says=(str(out),))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(command: Command, tmp_path: Path, chat_model: Path, messages: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    arguments = ("train", chat_model, "--data", messages, "--out", locked / "run")
    _refused(command, *arguments, says=(str(locked), "not a writable directory"))


def test_a_place_the_system_keeps(command: Command, chat_model: Path, messages: Path) -> None:
    """This fails even for root, because /proc accepts no directories."""
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    out = "/proc/featherback-run"
    _refused(command, "train", chat_model, "--data", messages, "--out", out, says=("Cannot write", out))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--temperature", -1), ("--temperature",)),
        (("--top-p", 0), ("--top-p",)),
        (("--threads", 0), ("--threads",)),
        (("--threads", 100_000), ("100000 threads",)),
        (("--compute", "fp16"), ("'fp16'", "bf16, int16, fp32")),
        (("--seed", -1), ("--seed is -1",)),
        (("--adapter", "/nonexistent"), ("/nonexistent", "adapter")),
    ],
)
def test_generation(command: Command, chat_model: Path, options: tuple[object, ...], says: tuple[str, ...]) -> None:
    _refused(command, "generate", chat_model, "--prompt", "hello", *options, says=says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FEATHERBACK_KERNELS", "nonsense", ("'nonsense'", "reference")),
        ("FEATHERBACK_THREADS", "many", ("'many'", "whole number")),
        ("FEATHERBACK_THREADS", "0", ("'0'",)),
    ],
)
def test_variables(chat_model: Path, name: str, value: str, says: tuple[str, ...]) -> None:
    """This needs a new process, because the variables are read when the kernels are imported."""
    found = subprocess.run(
        [sys.executable, "-m", "featherback", "inspect", chat_model],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1
    for word in (name, *says):
        assert word in found.stderr


def test_an_unexpected_error_asks_for_a_report(
    command: Command, monkeypatch: pytest.MonkeyPatch, chat_model: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("featherback.models.load", fail)
    code, _, err = command("inspect", chat_model)
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert "--debug" in err
    code, _, err = command("--debug", "inspect", chat_model)
    assert code == 1
    assert "Traceback" in err
    assert "planted" in err
