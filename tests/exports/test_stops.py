"""Exported folders stop where the model's answers end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer, GenerationConfig

from featherback import models
from featherback.exports import FORMATS
from featherback.exports.formats.base import Request
from featherback.exports.stops import find_stops, write_stops
from tests.data.support import byte_core
from tests.exports.test_merging import _filled
from tests.support.oracle import reference_model
from tests.support.tiny_chat import CHATML, N_VOCAB, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

END, IM_END = 256, 258


def _folder(path: Path, generation: dict[str, Any] | None, config_end: int = END) -> Path:
    """Write a model that ends documents with 256, and a tokenizer whose template ends answers with 258."""
    reference_model(write_tiny(path.parent / "m.gguf", tiny(TINY_LLAMA, vocab_size=N_VOCAB))).save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": config_end, "bos_token_id": 257}))
    (path / "generation_config.json").unlink()
    if generation is not None:
        (path / "generation_config.json").write_text(json.dumps(generation))
    core = byte_core(())
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    core.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "chat_template": CHATML}))
    return path


def _export(base: Path, out: Path, target: str) -> list[str]:
    return FORMATS[target].write(Request(_filled(models.load(base)), out)).notes


@pytest.mark.parametrize("generation", [None, {"eos_token_id": END, "temperature": 0.6}, {"eos_token_id": [-1, END]}])
def test_a_merged_folder_stops_at_the_end_of_answers(generation: dict[str, Any] | None, tmp_path: Path) -> None:
    notes = _export(_folder(tmp_path / "base", generation), tmp_path / "merged", "merged")
    assert "generation_config.json stops at <|im_end|> too" in notes[-1]
    read = GenerationConfig.from_pretrained(tmp_path / "merged")
    assert read.eos_token_id == [END, IM_END]
    assert read.temperature == (generation or {}).get("temperature")
    assert generation is not None or read.bos_token_id == 257
    answer = AutoTokenizer.from_pretrained(tmp_path / "merged").apply_chat_template(
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    )
    assert set(answer["input_ids"]) & set(read.eos_token_id), "an answer ends where generation stops"


def test_a_complete_configuration_is_copied(tmp_path: Path) -> None:
    base = _folder(tmp_path / "base", {"eos_token_id": [IM_END, END]})
    notes = _export(base, tmp_path / "merged", "merged")
    assert not any("generation_config" in note for note in notes)
    name = "generation_config.json"
    assert (base / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


@pytest.mark.parametrize("target", ["peft", "mlx"])
def test_an_adapter_says_that_its_base_does_not_stop(target: str, tmp_path: Path) -> None:
    notes = _export(_folder(tmp_path / "base", None), tmp_path / "out", target)
    assert any("does not stop at <|im_end|>" in note and "eos_token_id=[256, 258]" in note for note in notes)


@pytest.mark.parametrize("target", ["peft", "mlx"])
def test_an_adapter_of_a_complete_base_says_nothing(target: str, tmp_path: Path) -> None:
    notes = _export(_folder(tmp_path / "base", {"eos_token_id": [IM_END, END]}), tmp_path / "out", target)
    assert not any("does not stop" in note for note in notes)


def test_a_folder_without_a_tokenizer_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert write_stops(tmp_path) == find_stops(tmp_path).missing == []


def test_a_tokenizer_that_cannot_be_read_does_not_stop_an_export(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (note,) = write_stops(tmp_path)
    assert note.startswith("the model's end tokens are unknown: ")
    assert not (tmp_path / "generation_config.json").exists()


@pytest.mark.parametrize("tools", [False, True])
def test_a_modelfile_without_tools_says_so(tools: bool, tmp_path: Path) -> None:
    before = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" if tools else ""
    base = write_tiny_chat(tmp_path / "m.gguf", {"tokenizer.chat_template": before + CHATML})
    notes = _export(base, tmp_path / "out", "ollama")
    assert any("Ollama will reject requests with tools" in note for note in notes) == tools
    assert "TEMPLATE" in (tmp_path / "out" / "Modelfile").read_text(encoding="utf-8")
