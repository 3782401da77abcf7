"""The output of `inspect` and `models` for each kind of thing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import load, train
from featherback.cli.kinds import KINDS
from featherback.core.decode import encode
from featherback.core.sizes import MB
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.writer import tensor_of_array, write_gguf
from featherback.exports.formats import gguf, mlx, peft
from featherback.models.adapter import LoRA
from featherback.models.model import formats, matrices
from featherback.runs.config import TrainConfig
from featherback.runs.outlook import least_memory
from featherback.runs.worker_process import worker_baseline
from tests.cli.conftest import Command
from tests.data.support import byte_core
from tests.models.test_hf_folder import folder_and_gguf
from tests.support.records import record_of
from tests.support.tiny_chat import byte_level_metadata, write_messages, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny, write_tiny_parts

SCREEN = 40  # lines


def inspected(command: Command, what: object) -> dict[str, Any]:
    """The facts as JSON. The text output fits on a screen and has no control characters."""
    told = command("inspect", what)
    assert told.code == 0, told.err
    assert len(told.out.splitlines()) <= SCREEN
    assert not {c for c in told.out if c < " " and c != "\n"}
    facts = json.loads(command("inspect", what, "--json").out)
    assert facts["kind"] in told.out.replace("\n", " ")
    for line in facts["next"]:
        assert line in told.out
    return dict(facts)


def test_a_model(command: Command, chat_model: Path) -> None:
    facts = inspected(command, chat_model)
    assert (facts["kind"], facts["trainable"], facts["reason"]) == ("GGUF model", True, None)
    memory = f"{facts['least_memory_bytes'] // 10**6}MB"
    wanted = ["--data", "notes.jsonl", "--out", "run"]
    assert facts["next"][0].split() == ["featherback", "train", str(chat_model), *wanted]
    assert command("plan", chat_model, "--memory", memory, "--json").code == 0


def test_a_split_model(command: Command, tmp_path: Path) -> None:
    parts = write_tiny_parts(tmp_path, [4, 5, 3])
    assert inspected(command, parts[1])["kind"] == "GGUF model in 4 files"


def test_a_folder_as_it_would_be_quantised(
    command: Command, tmp_path: Path, chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts after --quantize, without quantising."""
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))
    folder, _ = folder_and_gguf(tmp_path, tiny(TINY_LLAMA, vocab_size=259))
    (folder / "tokenizer.json").write_text(byte_core().to_str())
    plain = inspected(command, folder)
    small = json.loads(command("inspect", folder, "--quantize", "q8_0", "--json").out)
    assert not (tmp_path / "cache").exists(), "looking converted it"
    assert (plain["formats"], small["formats"], small["quantize"]) == (["F32"], ["Q8_0"], "q8_0")
    assert small["matrix_bytes"] < plain["matrix_bytes"] / 3
    assert small["next"][0].endswith(f"{folder} --data notes.jsonl --out run --quantize q8_0")
    opened = load(folder, quantize="q8_0")
    assert list(formats(opened)) == small["formats"]
    assert sum(matrix.nbytes for matrix in matrices(opened)) == small["matrix_bytes"]
    config = TrainConfig(model=str(folder), data=("d",), out="o", quantize="q8_0").for_model(opened)
    again = least_memory(config, opened, worker_baseline())  # a bare process is not always as large
    assert abs(small["least_memory_bytes"] - again) <= MB


def test_what_cannot_be_quantised(command: Command, tmp_path: Path, chat_model: Path, messages: Path) -> None:
    for arguments, complaint in (
        ((chat_model, "--quantize", "q4_0"), "is a GGUF file, whose weights are used as they are; remove --quantize"),
        ((messages, "--quantize", "q4_0"), "Remove --quantize, which is only for Hugging Face folders."),
        (
            (messages, "--model", chat_model, "--quantize", "q4_0"),
            "With --model, examples of the data are shown. Remove",
        ),
        ((chat_model, "--quantize", "q5"), "'q5'"),
    ):
        done = command("inspect", *arguments)
        assert done.code == 2
        assert complaint in done.err


def test_a_model_that_cannot_be_trained(command: Command, tmp_path: Path) -> None:
    facts = inspected(command, write_tiny(tmp_path / "m.gguf", TINY_LLAMA))
    assert facts["trainable"] is False
    assert "contains no tokenizer" in facts["reason"]
    metadata = byte_level_metadata() | {"tokenizer.ggml.pre": "kimi-k2"}
    facts = inspected(command, write_tiny_chat(tmp_path / "n.gguf", metadata))
    assert "needs the pre-tokenizer 'kimi-k2'" in facts["reason"]


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"tokenizer.ggml.token_type": np.array([1, 2], np.int32)}, "259 tokens but 2 token types"),
        ({"tokenizer.ggml.tokens": np.arange(259)}, "tokenizer.ggml.tokens does not hold strings"),
    ],
)
def test_a_model_whose_tokenizer_does_not_open(
    command: Command, tmp_path: Path, metadata: dict[str, Any], says: str
) -> None:
    """Training would fail with the same sentence."""
    model = write_tiny_chat(tmp_path / "tiny.gguf", metadata=metadata)
    facts = json.loads(command("inspect", model, "--json").out)
    assert facts["trainable"] is False
    assert says in facts["reason"]
    data = write_messages(tmp_path / "data.jsonl", 8)
    outcome = command("train", model, "--data", data, "--out", tmp_path / "out")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (2, f"error: {facts['reason']}")


def test_metadata_that_would_fill_screens(command: Command, tmp_path: Path) -> None:
    model = load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA))
    gguf.FORMAT.save(LoRA(model, rank=2), tmp_path / "a.gguf")
    file = GGUFFile(tmp_path / "a.gguf")
    metadata = dict(file.metadata) | {f"key {i}\n\x1b[2J": "x\n\x9b" * 500 for i in range(200)}
    tensors = [tensor_of_array(name, np.zeros(info.shape)) for name, info in file.tensors.items()]
    write_gguf(tmp_path / "b.gguf", metadata, tensors)
    assert inspected(command, tmp_path / "b.gguf")["ranks"] == [2]


def test_adapters(command: Command, tmp_path: Path, chat_model: Path) -> None:
    adapter = LoRA(load(chat_model), rank=3)
    peft.FORMAT.save(adapter, tmp_path / "p", str(chat_model))
    gguf.FORMAT.save(adapter, tmp_path / "g.gguf")
    mlx.FORMAT.save(adapter, tmp_path / "m")
    facts = inspected(command, tmp_path / "p")
    assert "PEFT" in facts["kind"]
    assert (facts["r"], facts["trainable"]) == (3, True)
    assert facts["least_memory_bytes"] > 10**7
    assert f"featherback chat {chat_model} --adapter {tmp_path / 'p'}" in facts["next"]
    assert inspected(command, tmp_path / "p" / "adapter_model.safetensors")["r"] == 3
    facts = inspected(command, tmp_path / "m")
    assert "an MLX directory" in facts["kind"]
    assert facts["trainable"] is True
    facts = inspected(command, tmp_path / "g.gguf")
    assert "a GGUF LoRA" in facts["kind"]
    assert facts["next"][0] == f"featherback chat MODEL --adapter {tmp_path / 'g.gguf'}"
    assert "that the adapter was trained on" in facts["notes"][0]
    other = write_tiny_chat(tmp_path / "other.gguf", {"general.name": "other"})
    config = tmp_path / "p" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(chat_model), str(other)).replace('"r": 3', '"r": 4'))
    facts = inspected(command, tmp_path / "p")
    assert facts["trainable"] is False
    config.with_name("adapter_model.safetensors").unlink()
    facts = inspected(command, tmp_path / "p")
    assert (facts["kind"], facts["trainable"]) == ("adapter, without its weights", False)


@pytest.mark.parametrize(
    ("status", "says"),
    [("finished", "chat {model} --adapter {run}"), ("interrupted", "train {model} --out {run} --resume")],
)
def test_a_run(command: Command, tmp_path: Path, chat_model: Path, status: str, says: str) -> None:
    (tmp_path / "r").mkdir()
    record = record_of(status=status, model=str(chat_model), rank=4, steps=1)
    (tmp_path / "r" / "run.json").write_text(json.dumps(encode(record)))
    facts = inspected(command, tmp_path / "r")
    assert (facts["kind"], facts["status"]) == ("run", status)
    assert f"featherback {says.format(model=chat_model, run=tmp_path / 'r')}" == facts["next"][0]


def test_data_and_tokenizers(command: Command, tmp_path: Path, messages: Path) -> None:
    facts = inspected(command, messages)
    assert f"featherback train MODEL --data {messages} --out run" in facts["next"]
    without_suffix = shutil.copy(messages, tmp_path / "rows")
    assert inspected(command, without_suffix)["format"] == "JSON lines"
    (tmp_path / "a.txt").write_text("one\n")
    assert inspected(command, tmp_path / "a.txt")["format"] == "plain text"
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(byte_core().to_str())
    for path in (folder, folder / "tokenizer.json"):
        assert inspected(command, path)["kind"] == "tokenizer"


@pytest.mark.parametrize("name", ["picture.png", "nothing", "model.bin"])
def test_what_nobody_knows(command: Command, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x89PNG\r\n" * 9) if name != "nothing" else (tmp_path / name).mkdir()
    code, _, err = command("inspect", tmp_path / name)
    assert (code, len(err.splitlines())) == (2, 1)
    for kind in KINDS.names:
        assert KINDS[kind].title in err


# --- models ---


def _lm_studio(home: Path, name: str) -> Path:
    path = home / ".lmstudio" / "models" / name
    path.parent.mkdir(parents=True)
    return path


def test_models(command: Command, home: Path) -> None:
    good = write_tiny_chat(_lm_studio(home, "me/good/m.gguf"))
    _lm_studio(home, "me/broken/m.gguf").write_bytes(good.read_bytes()[:5000])
    long = "a-name-that-is-longer-than-its-column-" * 3
    write_tiny(_lm_studio(home, f"me/{long}/m.gguf"), tiny(TINY_LLAMA))
    write_tiny_chat(_lm_studio(home, "me/new\x1b[2J\nline/m.gguf"), {"general.architecture": "mamba"})
    digest, manifests = "a" * 64, home / ".ollama/models/manifests/registry.ollama.ai/library"
    (manifests / "m").mkdir(parents=True)
    kind = "application/vnd.ollama.image.model"
    layers = [{"mediaType": kind, "digest": f"sha256:{digest}", "size": good.stat().st_size}]
    (manifests / "m" / "latest").write_text(json.dumps({"layers": layers}))
    (manifests / "m" / "wrong").write_text("[]")
    (home / ".ollama/models/blobs").mkdir()
    shutil.copy(good, home / ".ollama/models/blobs" / f"sha256-{digest}")
    rows = {row["name"]: row for row in json.loads(command("models", "--json").out)}
    trainable = {name for name, row in rows.items() if row["trainable"]}
    assert trainable == {"lmstudio:me/good", "ollama:m:latest"}
    assert len(rows) == 7
    row = rows["ollama:m:latest"]
    assert (row["architecture"], row["type"], row["bytes"]) == ("llama", "F32", good.stat().st_size)
    told = command("models").out
    assert max(map(len, told.splitlines())) <= max(80, len(f"lmstudio:me/{long}"))
    assert not set(told) & set("\x1b")
    for says in (
        "it is truncated",
        "it contains no tokenizer",
        "it has the architecture 'mamba', which is not supported",
        "featherback fetch smollm2-135m",
        "no list of layers",
        f"\nlmstudio:me/{long}\n ",
    ):
        assert " ".join(says.split()) in " ".join(told.split()), says
    assert command("plan", "ollama:m", "--memory", "1GB", "--json").code == 0


def test_no_models(command: Command, home: Path) -> None:
    [row] = json.loads(command("models", "--json").out)
    assert (row["name"], row["trainable"]) == ("smollm2-135m", False)
    assert not (home / "ours").exists(), "looking made a folder"


@pytest.fixture(scope="module")
def trained(chat_model: Path, messages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("trained") / "run"
    options: dict[str, Any] = {"steps": 1, "rank": 2, "progress": False, "samples": 0}
    return train(chat_model, str(messages), out, **options).path


def test_what_a_run_leaves_is_known(command: Command, trained: Path, tmp_path: Path) -> None:
    facts = inspected(command, trained / "report.html")
    assert (facts["kind"], facts["run"]) == ("report of a run, to be opened in a browser", str(trained))
    assert facts["next"][0] == f"featherback inspect {trained}"
    moved = shutil.copy(trained / "report.html", tmp_path / "mine.html")
    assert inspected(command, moved)["next"] == []

    facts = inspected(command, trained / "run.yaml")
    assert facts["kind"] == "file of training options"
    assert facts["options"]["rank"] == 2
    assert facts["plan"] is True
    assert facts["next"] == [
        f"featherback train --config {trained / 'run.yaml'} --out another-run", f"featherback inspect {trained}",
    ]  # fmt: skip


def test_options_that_cannot_be_used(command: Command, tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text("rang: 4\n")
    done = command("inspect", tmp_path / "o.yaml")
    assert done.code == 2
    assert "o.yaml, line 1: " in done.err
    assert "Did you mean `rank`" in done.err


def test_a_page_of_somebody_else(command: Command, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!DOCTYPE html><title>Mine</title><p>Hello")
    assert "data" in inspected(command, tmp_path / "page.html")["kind"]


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("gguf", "adapter, "),
        ("peft", "adapter, "),
        ("mlx", "adapter, "),
        ("merged", "GGUF model"),
        ("ollama", "folder for Ollama"),
    ],
)
def test_what_is_exported_is_known(command: Command, trained: Path, tmp_path: Path, target: str, kind: str) -> None:
    out = tmp_path / ("x.gguf" if target in ("gguf", "merged") else "x")
    done = command("export", trained, "--to", target, "--out", out)
    assert done.code == 0, done.err
    facts = inspected(command, out)
    assert facts["kind"].startswith(kind)
    assert facts["next"]
    if target == "ollama":
        assert facts["next"][0] == done.out.splitlines()[0]
        assert facts["next"][1] == f"featherback inspect {out / 'adapter.gguf'}"
        assert Path(facts["adapter"]) == Path("./adapter.gguf")
