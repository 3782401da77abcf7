"""Keys and values in segments: in a file, in several pieces, quantised, layer by layer. Nothing changes the results but
quantisation, and that is measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine import kernels
from featherback.engine.backend.cpu import CPU
from featherback.engine.formats.quantize import quantize
from featherback.engine.formats.types import TensorType
from featherback.engine.host.interrupt import StoppedError
from featherback.engine.host.piece_file import PieceFile
from featherback.errors import FeatherbackError
from featherback.infer import key_cache
from featherback.infer.decoder import Decoder
from featherback.infer.key_cache import SEGMENT, KeyForm, KeysInFile
from featherback.infer.layout import Layout
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.models.rope.longrope import LongRope
from featherback.nn.branch import KeyHeads
from tests.support.families import MODELS
from tests.support.tiny_models import TINY_LLAMA, TINY_PHI4, TINY_WIDE, tiny, write_tiny

assert isinstance(TINY_PHI4.rope_scaling, LongRope)
CONFIGS = {
    **MODELS,
    "phi4-mini": tiny(TINY_PHI4, rope_scaling=replace(TINY_PHI4.rope_scaling, original_context=48)),
    "mistral": tiny(windows=(7, 150)),
}
RAM, FILE = Layout(chunk=48), Layout(cache="file", chunk=48)
LONG = 2 * SEGMENT + 70  # three segments, the last partly filled
WIDE = tiny(TINY_WIDE)  # heads of whole blocks


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """One segment to a piece."""
    monkeypatch.setattr(key_cache, "PIECE", 1)


def _model(folder: Path, config: ModelConfig) -> Model:
    return models.load(write_tiny(folder / "m.gguf", config))


def _tokens(model: Model, count: int = LONG) -> list[int]:
    longest = model.config.max_position_embeddings
    return np.random.default_rng(1).integers(0, model.config.vocab_size, min(count, longest)).tolist()


def _logits(model: Model, tokens: list[int], layout: Layout, folder: Path, **options: Any) -> np.ndarray:
    """Return the logits of a long prompt, of a few tokens together, and of single ones, (T, V)."""
    decoder = Decoder(model, None, len(tokens), options.pop("compute", "fp32"), layout, folder, **options)
    ends = [len(tokens) - 8, len(tokens) - 5, *range(len(tokens) - 5, len(tokens) + 1)]
    found = [decoder.forward(tokens[a:b], every=True) for a, b in zip([0, *ends], ends) if a < b]
    decoder.close()
    return np.concatenate(found)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_cache_in_a_file_has_the_same_bits(tmp_path: Path, config: ModelConfig) -> None:
    model = _model(tmp_path, config)
    tokens = _tokens(model)
    for compute in ("fp32", "bf16"):
        ram, file = (_logits(model, tokens, layout, tmp_path, compute=compute) for layout in (RAM, FILE))
        np.testing.assert_array_equal(ram, file)


@pytest.mark.parametrize("fault", ["first piece again", "state", "a row too early"])
def test_a_planted_fault_in_the_pieces_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model = _model(tmp_path, TINY_LLAMA)
    tokens = _tokens(model)
    expected = _logits(model, tokens, RAM, tmp_path)
    attention, cache_rows, read = kernels.cached_attention, kernels.cache_rows, PieceFile.read

    def without_state(*arguments: Any, **options: Any) -> None:
        attention(*arguments, **(options | {"begins": True}))

    def too_early(k: Any, v: Any, start: int, *rest: Any) -> None:
        cache_rows(k, v, start - (start % SEGMENT > 0), *rest)

    def first_again(self: PieceFile, out: Any, offset: int) -> None:
        read(self, out, 0)

    if fault == "state":
        monkeypatch.setattr(CPU(compute="fp32").ops.__class__, "cached_attention", staticmethod(without_state))
    elif fault == "a row too early":
        monkeypatch.setattr(CPU(compute="fp32").ops.__class__, "cache_rows", staticmethod(too_early))
    else:
        monkeypatch.setattr(PieceFile, "read", first_again)
    assert not np.allclose(_logits(model, tokens, FILE, tmp_path), expected, atol=1e-4)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("layout", [RAM, FILE, Layout("by_matrix", "file", 64, None, 256)], ids=str)
def test_a_prompt_passes_layer_by_layer(tmp_path: Path, config: ModelConfig, layout: Layout) -> None:
    """With the bits of a prompt whose chunks pass one after the other."""
    model = _model(tmp_path, config)
    tokens = _tokens(model)
    whole = Decoder(model, None, len(tokens), "fp32", layout, tmp_path)
    found = whole.forward(tokens, every=True)
    whole.close()
    by_chunk = Decoder(model, None, len(tokens), "fp32", layout, tmp_path)
    grows = [rotary.uses_long_factors(len(tokens)) for rotary in model.rotaries]
    if grows == [rotary.uses_long_factors(1) for rotary in model.rotaries]:  # else chunks know a shorter text
        parts = [by_chunk.forward(tokens[at : at + 64], every=True) for at in range(0, len(tokens), 64)]
        np.testing.assert_array_equal(found, np.concatenate(parts))
    by_chunk.rewind(0)
    np.testing.assert_array_equal(by_chunk.forward(tokens, every=True), found)
    by_chunk.close()


@pytest.mark.parametrize("layout", [RAM, FILE], ids=str)
def test_a_stopped_prompt_leaves_the_cache_as_it_was(tmp_path: Path, layout: Layout) -> None:
    model = _model(tmp_path, TINY_LLAMA)
    tokens = _tokens(model)
    decoder = Decoder(model, None, len(tokens), "fp32", layout, tmp_path)
    decoder.forward(tokens[:20])
    left = 9

    def stop() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise StoppedError("stop")

    with pytest.raises(StoppedError):
        decoder.forward(tokens[20:], check=stop)
    assert decoder.tokens == tokens[:20]
    fresh = Decoder(model, None, len(tokens), "fp32", layout, tmp_path)
    fresh.forward(tokens[:20])
    np.testing.assert_array_equal(decoder.forward(tokens[20:31]), fresh.forward(tokens[20:31]))
    decoder.close()
    fresh.close()


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
def test_quantised_keys_and_values(tmp_path: Path, kv: str) -> None:
    """The same bits in memory and in a file; close to float32; q without its rotation is found."""
    model = _model(tmp_path, WIDE)
    tokens = _tokens(model)
    exact = _logits(model, tokens, RAM, tmp_path)
    ram, file = (_logits(model, tokens, layout, tmp_path, kv=kv) for layout in (RAM, FILE))
    np.testing.assert_array_equal(ram, file)
    error = np.linalg.norm(ram - exact) / np.linalg.norm(exact)
    assert 0 < error < {"q8_0": 0.01, "q4_0": 0.15}[kv]
    hadamard, calls = kernels.hadamard, 0

    def not_of_q(x: Any, size: int) -> None:
        nonlocal calls
        calls += 1
        if calls % 4 != 1:  # q, k, v, output
            hadamard(x, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CPU(compute="fp32").ops.__class__, "hadamard", staticmethod(not_of_q))
        wrong = _logits(model, tokens, RAM, tmp_path, kv=kv)
    assert np.linalg.norm(wrong - exact) / np.linalg.norm(exact) > 2 * error


@pytest.mark.parametrize("kind", [TensorType.Q8_0, TensorType.Q4_0], ids=str)
def test_rows_are_encoded_as_ggml_does(kind: TensorType) -> None:
    k, v = (np.random.default_rng(seed).normal(0, 3, (5, 128)).astype(np.float32) for seed in (0, 1))
    form = KeyForm(2, 64, kind)
    cache = np.zeros(form.nbytes(5), np.uint8)
    kernels.cache_rows(k, v, 0, cache, int(kind), 2)
    rows = cache.reshape(2, 2, SEGMENT, form.row_bytes)[:, :, :5]
    for at, x in enumerate((k, v)):
        for head in range(2):
            expected = quantize(x[:, head * 64 : head * 64 + 64], kind).reshape(5, -1)
            if kind is TensorType.Q8_0:  # scales are rounded up here, so codes may differ by one
                codes = [
                    np.delete(each.reshape(5, 2, 34), (0, 1), axis=2).view(np.int8)
                    for each in (rows[head, at], expected)
                ]
                assert np.abs(codes[0].astype(int) - codes[1]).max() <= 1
            else:
                np.testing.assert_array_equal(rows[head, at], expected)


def test_types_that_do_not_fit(tmp_path: Path) -> None:
    model = _model(tmp_path, TINY_LLAMA)
    with pytest.raises(FeatherbackError, match="it stores blocks of 32 numbers, and this model's heads have"):
        Decoder(model, kv="q8_0")
    with pytest.raises(FeatherbackError, match="Did you mean `q8_0`"):
        Decoder(model, kv="q8")


def test_only_two_pieces_are_in_memory(tmp_path: Path) -> None:
    """The scratch memory of a cache in a file does not depend on the length of the text."""
    model = _model(tmp_path, tiny(max_position_embeddings=1 << 20))
    short, long = (Decoder(model, None, tokens, "fp32", FILE, tmp_path) for tokens in (1 << 12, 1 << 18))
    assert short.needs.scratch == long.needs.scratch
    assert short.needs.total == long.needs.total
    short.close()
    long.close()


def test_errors_of_the_file_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the thread that reads, too; its memory is not freed before it is done."""
    with pytest.raises(FeatherbackError, match="Cannot keep the cache in"):
        PieceFile(tmp_path / "missing", 10, "the cache")
    file = PieceFile(tmp_path, 1000, "the cache")
    with pytest.raises(FeatherbackError, match="could not be read back completely"):
        file.read(np.zeros(1001, np.uint8), 0)
    failing = file.start(lambda: file.read(np.zeros(8, np.uint8), 996))
    with pytest.raises(FeatherbackError, match=r"the cache in .* could not be read back"):
        failing.result()
    file.close()


def test_a_windowed_layer_reads_only_its_window(tmp_path: Path) -> None:
    form = KeyForm.of(KeyHeads(1, 4), "f32")
    keys = KeysInFile(form, PieceFile(tmp_path, form.nbytes(1000), "the cache"), 0)
    assert keys.count(7 * SEGMENT, 1000) == 1
    assert keys.count(0, 1000) == 8
