"""Every command that an export prints as what to type next, typed: `featherback`'s and Python's here, other programs'
as stand-ins that note what they are given."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import featherback as fb
from featherback import models
from featherback.cli.app import run as featherback
from featherback.exports import FORMATS, formats
from featherback.infer.decoder import Decoder
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from tests.support import modelfile
from tests.support.mlx_folder import mlx_folder
from tests.support.oracle import reference_model
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata, write_messages, write_tiny_base, write_tiny_chat
from tests.support.tiny_models import TINY_GEMMA2, TINY_LLAMA, TINY_QWEN2, TINY_QWEN3, TINY_WIDE, tiny, write_tiny

IDS = [1, 5, 9, 2, 77]
OTHERS = ("llama-cli", "mlx_lm.generate", "ollama")


class Terminal:
    """Where lines are typed. Of other programs there are stand-ins, which write down their words."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._log = capsys, folder / "typed"

    def export(self, *words: object) -> tuple[str, Path, list[str]]:
        """The first line that `featherback export` prints, what it wrote, and its notes."""
        assert featherback(["export", *map(str, words)]) == 0, self._capsys.readouterr().err
        line, wrote, *notes = self._capsys.readouterr().out.splitlines()
        return line, Path(wrote.removeprefix("wrote ")), notes

    def refused(self, *words: object) -> str:
        assert featherback(["export", *map(str, words)]) == 2
        return self._capsys.readouterr().err

    def type(self, line: str) -> dict[str, Any]:
        """What a line of Python leaves behind, by name; or as "words" what other programs were given."""
        program, *words = shlex.split(line)
        if program == "featherback":
            few = ["--max-tokens", "2"] if words[0] == "generate" else []
            status = featherback([*words, *few])
            assert status == 0, self._capsys.readouterr().err
            self._capsys.readouterr()
        elif program == "python":
            assert words[0] == "-ic"
            names: dict[str, Any] = {}
            exec(words[1], names)
            return names
        else:
            subprocess.run(line, shell=True, check=True)
            return {"words": self._log.read_text().splitlines()}
        return {}


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in OTHERS:
        (programs / name).write_text('#!/bin/sh\nprintf "%s\\n" "$(basename "$0")" "$@" >> "$TYPED"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("TYPED", str(tmp_path / "typed"))
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))
    return Terminal(tmp_path, capsys)


def _adapter(model: Path, out: Path) -> Path:
    """An adapter of random values, which names its base."""
    made = LoRA(models.load(model), 2)
    rng = np.random.default_rng(0)
    made.load_state({name: rng.normal(0, 0.1, s).astype(np.float32) for name, s in made.shapes().items()})
    FORMATS["peft"].save(made, out)
    return out


def _folder(path: Path, config: ModelConfig = TINY_LLAMA) -> Path:
    """A Hugging Face folder, without a tokenizer."""
    reference_model(write_tiny(path.with_name(f"{path.name}.of.gguf"), config)).save_pretrained(str(path))
    return path


def _agrees(found: Any, model: Path, adapter: Path) -> None:
    """PEFT and Featherback compute the same."""
    opened = models.load(model)
    ours = Decoder(opened, formats.load(opened, adapter), compute="fp32").forward(IDS, every=True)
    logits = found(input_ids=torch.tensor([IDS])).logits[0].detach().numpy()
    np.testing.assert_allclose(logits, ours, atol=1e-4)


BASES: dict[str, Callable[[Path], Path]] = {
    "gguf": write_tiny_chat,
    "gguf of a base model": write_tiny_base,
    "gguf without a tokenizer": write_tiny,
    "folder": lambda path: _folder(path.with_suffix("")),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("to", FORMATS.names)
def test_the_first_line_works(terminal: Terminal, tmp_path: Path, base: str, to: str) -> None:
    model = BASES[base](tmp_path / "my model.gguf")
    poet = _adapter(model, tmp_path / "my poet")
    if to == "ollama" and base in ("folder", "gguf without a tokenizer"):
        assert "Hugging Face folder" in (said := terminal.refused(poet, "--to", to)) or "tokenizer" in said
        return
    if to == "sentence_transformers":
        says = "contains no tokenizer.json" if base == "folder" else "Sentence Transformers reads Hugging Face folders"
        assert says in terminal.refused(poet, "--to", to)
        return
    line, out, _ = terminal.export(poet, "--to", to)
    found = terminal.type(line)
    if to == "peft":
        _agrees(found["model"], model, out)
    elif to == "gguf" and base != "folder":
        assert found["words"] == ["llama-cli", "-m", str(model), "--lora", str(out)]
    elif to == "ollama":
        made = ["ollama", "create", "my-poet", "-f", str(out / "Modelfile")]
        assert found["words"] == [*made, "ollama", "run", "my-poet"]
        modelfile.check_folder(out)
    elif to == "mlx" and base == "folder":
        given = ["--model", str(model), "--adapter-path", str(out), "--prompt", "Hello"]
        assert found["words"] == ["mlx_lm.generate", *given]
    else:
        assert found == {}  # a command of our own


@pytest.mark.parametrize(
    ("config", "opens"),
    [(TINY_QWEN2, True), (replace(TINY_QWEN3, head_dim=128), True), (TINY_QWEN3, False), (TINY_GEMMA2, False)],
    ids=["qwen2", "qwen3", "qwen3 of other heads", "gemma2"],
)
def test_peft_on_a_gguf_file(terminal: Terminal, tmp_path: Path, config: ModelConfig, opens: bool) -> None:
    """If transformers cannot compute the file's model, the command is Featherback's own, and a note says why."""
    model = write_tiny(tmp_path / "m.gguf", tiny(config, vocab_size=N_VOCAB), metadata=byte_level_metadata())
    line, out, notes = terminal.export(_adapter(model, tmp_path / "poet"), "--to", "peft")
    found = terminal.type(line)
    assert opens == line.startswith("python ")
    if opens:
        _agrees(found["model"], model, out)
    else:
        assert any("transformers cannot open m.gguf" in note and "--base-model" in note for note in notes)


@pytest.mark.parametrize("to", ["peft", "mlx"])
def test_a_base_that_is_named_as_on_the_hub(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """A folder of that name stands in for the Hub: both programs look for one first."""
    named = {"general.source.huggingface.repository": "some/Tiny"}
    model = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, metadata=named)
    (tmp_path / "some").mkdir()
    _folder(tmp_path / "some" / "Tiny")
    monkeypatch.chdir(tmp_path)
    line, out, _ = terminal.export(_adapter(model, tmp_path / "poet"), "--to", to, "--model", model)
    found = terminal.type(line)
    if to == "mlx":
        assert found["words"][:3] == ["mlx_lm.generate", "--model", "some/Tiny"]
    else:
        _agrees(found["model"], model, out)


def test_a_base_that_mlx_packed(terminal: Terminal, tmp_path: Path) -> None:
    """transformers cannot read its weights, so the line is one of our own."""
    wide = replace(TINY_WIDE, intermediate_size=256)
    mlx_folder(_folder(tmp_path / "floats", wide), tmp_path / "packed")
    for to, start in (("peft", "featherback "), ("mlx", "mlx_lm.generate "), ("gguf", "featherback ")):
        line, _, _ = terminal.export(_adapter(tmp_path / "packed", tmp_path / "poet"), "--to", to)
        assert line.startswith(start)
        terminal.type(line)


@pytest.mark.parametrize("to", ["merged", "gguf", "ollama"])
@pytest.mark.parametrize("kind", [None, "q8_0"])
def test_a_model_that_a_run_trained(terminal: Terminal, tmp_path: Path, to: str, kind: str | None) -> None:
    model = write_tiny_chat(tmp_path / "m.gguf")
    data = write_messages(tmp_path / "d.jsonl")
    run = fb.train(model, data, tmp_path / "my run", train="full", steps=2, progress=False).path
    line, out, notes = terminal.export(run, "--to", to, *([] if kind is None else ["--type", kind]))
    found = terminal.type(line)
    if to == "ollama":
        [source] = [value for name, _, value in modelfile.check_folder(out) if name == "FROM"]
        assert source == (str(run / "model.gguf") if kind is None else "./model.gguf")
        assert found["words"][-1] == ("my-run" if kind is None else "my-run-q8_0")
        out = run if kind is None else out / "model.gguf"
    elif to == "gguf":
        assert found["words"] == ["llama-cli", "-m", str(out)]
    stored = models.load(out).layer(0).matrices["q_proj"]
    assert stored.type.name == ("BF16" if kind is None else "Q8_0")
    assert any(" of the training survives" in note for note in notes) == (kind is not None)
    for target in ("peft", "mlx"):
        assert "is a whole model, not an adapter" in terminal.refused(run, "--to", target)


def test_a_folder_that_a_run_trained(terminal: Terminal, tmp_path: Path) -> None:
    run = fb.train(_folder(tmp_path / "base"), [[1, 2, 3, 4]] * 4, tmp_path / "run", train="full", steps=1,
                   progress=False).path  # fmt: skip
    line, out, notes = terminal.export(run, "--to", "merged", "--type", "f16")
    terminal.type(line)
    assert models.load(out).layer(0).matrices["q_proj"].type.name == "F16"
    assert any(" of the training survives" in note for note in notes)
    for target in ("gguf", "ollama"):
        assert "llama.cpp's convert_hf_to_gguf.py" in terminal.refused(run, "--to", target)
