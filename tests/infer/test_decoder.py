"""The decoder against transformers: logits with and without an adapter, in one pass and token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from featherback import models
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_tokens
from featherback.infer.layout import DECODE, FAST, Layout, layouts
from featherback.infer.passes import FEW
from featherback.infer.sampler import Sampler
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from featherback.models.rope.linear import Linear
from featherback.models.rope.longrope import LongRope
from featherback.runs.decoders import Within
from tests.support.families import MODELS
from tests.support.layouts import some_layouts
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.tiny_models import (
    TINY_GEMMA3,
    TINY_LLAMA,
    TINY_PHI3,
    TINY_PHI4,
    TINY_QWEN2,
    TINY_WIDE,
    YARN,
    tiny,
    write_tiny,
)

assert isinstance(TINY_PHI4.rope_scaling, LongRope)
CONFIGS = {
    **MODELS,
    "phi4-mini": tiny(TINY_PHI4, rope_scaling=replace(TINY_PHI4.rope_scaling, original_context=48)),
    "wide, untied": tiny(TINY_WIDE, tie_word_embeddings=False),
    "mistral": tiny(windows=(7, 7)),
    "ministral": tiny(windows=(7, 0)),
    "phi3, window": tiny(TINY_PHI3, windows=(7, 7)),
    "qwen2, yarn": tiny(TINY_QWEN2, rope_scaling=YARN),
    "llama, linear": tiny(rope_scaling=Linear(4.0)),
}


def _tokens(config: ModelConfig, count: int) -> list[int]:
    return np.random.default_rng(1).integers(0, config.vocab_size, count).tolist()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("types", [TensorType.F32, TensorType.Q8_0])
def test_logits_are_those_of_transformers(tmp_path: Path, config: ModelConfig, types: TensorType) -> None:
    path = write_tiny(tmp_path / "m.gguf", config, types)
    theirs = reference_model(path)
    state = random_adapter(theirs, rank=4)
    tokens = _tokens(config, 33)
    expected = reference(theirs, state, [tokens], alpha=8).logits[0]
    model = models.load(path)
    adapter = LoRA(model, rank=4, alpha=8)
    base = Decoder(model, adapter, compute="fp32").forward(tokens, every=True)  # B = 0
    adapter.load_state(state)
    adapted = Decoder(model, adapter, compute="fp32").forward(tokens, every=True)
    np.testing.assert_allclose(adapted, expected, atol=2e-4 * np.abs(expected).max())
    assert np.abs(adapted - base).max() > 0.05 * np.abs(expected).max(), "the adapter changed nothing"
    half = Decoder(model, adapter, compute="bf16").forward(tokens, every=True)
    cosine = float((half * expected).sum() / np.linalg.norm(half) / np.linalg.norm(expected))
    assert cosine > 0.999


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, config: ModelConfig) -> None:
    """Each token is the likeliest by transformers' logits on the same prefix, so by induction the text is the same."""
    path = write_tiny(tmp_path / "m.gguf", config)
    prompt = _tokens(config, 5)
    ours = list(generate_tokens(Decoder(models.load(path), compute="fp32"), prompt, Sampler(), 40))
    assert len(ours) == 40
    with torch.no_grad():
        logits = reference_model(path)(torch.tensor([prompt + ours])).logits[0, len(prompt) - 1 : -1]
    assert ours == logits.argmax(-1).tolist()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("compute", ["fp32", "int16", "bf16"])
def test_the_cache_changes_nothing(tmp_path: Path, compute: str, config: ModelConfig) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    tokens = _tokens(model.config, 21)
    whole = Decoder(model, compute=compute).forward(tokens, every=True)
    single = Decoder(model, compute=compute)
    one_by_one = np.stack([single.forward([token]) for token in tokens])
    chunked = Decoder(model, compute=compute, layout=Layout(chunk=8)).forward(tokens, every=True)
    tolerance = {"fp32": 1e-5, "int16": 1e-3, "bf16": 2e-2}[compute] * np.abs(whole).max()
    np.testing.assert_allclose(one_by_one, whole, atol=tolerance)
    np.testing.assert_allclose(chunked, whole, atol=tolerance)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", ["no adapter", "lora", "dora"])
def test_layouts_change_nothing_but_memory(tmp_path: Path, config: ModelConfig, kind: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    adapter = None if kind == "no adapter" else LoRA(model, rank=2, alpha=4, dora=kind == "dora")
    if adapter is not None:
        random = np.random.default_rng(0)
        state = {name: random.normal(0, 0.05, value.shape) + value for name, value in adapter.state().items()}
        adapter.load_state({name: value.astype(np.float32) for name, value in state.items()})
    tokens, expected = _tokens(model.config, 29), None
    for layout in some_layouts():
        decoder = Decoder(model, adapter, 40, "fp32", layout, tmp_path)
        found = np.concatenate([decoder.forward(part, every=True) for part in (tokens[:20], tokens[20:])])
        if expected is None:
            expected = found
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
        decoder.close()


@pytest.mark.parametrize("layout", [*layouts(), Layout("streamed", "file", 8), Layout(decode=FAST)], ids=str)
@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_GEMMA3, TINY_PHI3], ids=["llama", "gemma3", "phi3"])
def test_a_decoder_takes_what_it_was_counted_to(tmp_path: Path, config: ModelConfig, layout: Layout) -> None:
    """To the byte: a full cache with the longest chunk, and with the most tokens that use all MLP columns."""
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    adapter, capacity = LoRA(model, rank=3, dora=True), min(layout.chunk + 8, config.max_position_embeddings)
    decoder = Decoder(model, adapter, capacity, "bf16", layout, tmp_path)
    first = capacity - min(capacity, layout.chunk)
    if first:
        decoder.forward(_tokens(config, first))
    decoder.forward(_tokens(config, capacity - first), every=True)
    decoder.rewind(capacity - min(capacity, FEW))
    decoder.forward(_tokens(config, min(capacity, FEW)), every=True)
    scratch, held = decoder.arenas
    assert scratch.high_water == decoder.needs.scratch
    assert held.high_water == decoder.needs.held
    assert decoder.needs.total > scratch.high_water + held.high_water
    decoder.close()


def test_a_text_that_outgrows_the_original_context(tmp_path: Path) -> None:
    """LongRoPE's factors depend on the text's length; the tokens equal those of transformers' own generation."""
    path = write_tiny(tmp_path / "m.gguf", TINY_PHI4)
    prompt, theirs, model = _tokens(TINY_PHI4, 30), reference_model(path), models.load(path)
    ours = list(generate_tokens(Decoder(model, compute="fp32"), prompt, Sampler(), 20))
    generated = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=20, eos_token_id=None)
    assert ours == generated[0, len(prompt) :].tolist()
    longer = prompt + ours
    with torch.no_grad():
        expected = {n: theirs(torch.tensor([longer[:n]])).logits[0].numpy() for n in (39, 40, 50)}
    decoder = Decoder(model, compute="fp32")
    for before, now in ((0, 39), (39, 40), (40, 50)):  # past 39, what came before is turned anew
        found = decoder.forward(longer[before:now], every=True)
        np.testing.assert_allclose(found, expected[now][before:], atol=2e-4 * np.abs(expected[now]).max())
    decoder.rewind(38)
    found = decoder.forward(longer[38:39])
    np.testing.assert_allclose(found, expected[39][-1], atol=2e-4 * np.abs(expected[39]).max())


@pytest.mark.parametrize("compute", ["fp32", "int16", "bf16"])
def test_fast_decoding_rounds_single_tokens_and_no_prompts(tmp_path: Path, compute: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", types=TensorType.Q4_0))
    tokens = _tokens(model.config, 40)
    exact, fast = (Decoder(model, compute=compute, layout=Layout(decode=decode)) for decode in DECODE)
    np.testing.assert_array_equal(fast.hidden(tokens[:30]), exact.hidden(tokens[:30]))
    for token in tokens[30:]:
        ours, rounded = exact.forward([token]), fast.forward([token])
        difference = np.abs(rounded - ours).max() / np.abs(ours).max()
        assert 1e-5 < difference < 0.05


def test_an_unknown_way_of_decoding() -> None:
    with pytest.raises(FeatherbackError, match="quick; expected one of: exact, fast"):
        Within(decode="quick")


def test_a_rewound_cache_forgets(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    decoder = Decoder(model, compute="fp32")
    first = decoder.forward([1, 2, 3])
    decoder.rewind(1)
    assert decoder.tokens == [1]
    assert np.abs(decoder.forward([9, 9]) - first).max() > 1e-3
    decoder.rewind(1)
    np.testing.assert_allclose(decoder.forward([2, 3]), first, rtol=1e-4, atol=1e-5)


def test_the_capacity_is_kept(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    decoder = Decoder(model, capacity=4)
    decoder.forward([1, 2, 3])
    with pytest.raises(FeatherbackError, match="The text is 5 tokens long, but the decoder's capacity is 4"):
        decoder.forward([4, 5])
    with pytest.raises(FeatherbackError, match="No tokens to decode"):
        decoder.forward([])
    assert Decoder(model, capacity=10**9).capacity == model.config.max_position_embeddings


def test_a_compute_that_nothing_computes_in(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    with pytest.raises(FeatherbackError, match=r"Unknown compute 'auto'; expected one of: bf16, int16, fp32\."):
        Decoder(model, compute="auto")
