"""Guessed tokens: the same text and the same logits as without them, to the last bit, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine.formats.types import TensorType
from featherback.infer import key_cache
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_tokens
from featherback.infer.key_cache import SEGMENT
from featherback.infer.layout import DECODE, Layout
from featherback.infer.lookup import GUESSES, LEAST, Lookup, Repetition
from featherback.infer.needs import needs, rows_of_logits
from featherback.infer.sampler import Sampler
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.runs.decoders import Within, open_decoder
from tests.infer.test_decoder import CONFIGS
from tests.support.families import MODELS, cases
from tests.support.layouts import some_layouts
from tests.support.tiers import some
from tests.support.tiny_models import TINY_WIDE, tiny, write_tiny

PROMPT, ANSWER = 12, 40  # one family's rotations change after 48 tokens
Rows = list[np.ndarray]


class Recording(Sampler):
    """A sampler that keeps the logits that it is given, each (V,)."""

    seen: Rows

    def __call__(self, logits: np.ndarray) -> int:
        self.__dict__.setdefault("seen", []).append(logits.copy())
        return super().__call__(logits)


def _answer(decoder: Decoder, prompt: list[int], count: int, temperature: float = 0.0) -> tuple[list[int], Rows]:
    sampler = Recording(temperature, seed=3)
    tokens = list(generate_tokens(decoder, prompt, sampler, count))
    return tokens, sampler.seen


def _adapter(model: Model, kind: str) -> LoRA | None:
    if kind == "no adapter":
        return None
    adapter, random = LoRA(model, rank=2, alpha=4, dora=kind == "dora"), np.random.default_rng(0)
    state = {name: value + random.normal(0, 0.05, value.shape) for name, value in adapter.state().items()}
    adapter.load_state({name: value.astype(np.float32) for name, value in state.items()})
    return adapter


def _guessing(text: list[int]) -> Callable[[Repetition, int], list[int]]:
    """Return a `Repetition.next` that guesses from a known text: right, partly right, and wrong in turns."""
    random = np.random.default_rng(5)

    def following(self: Repetition, count: int) -> list[int]:
        at = len(self._text) // 4
        found = text[at : at + int(random.integers(0, count + 1))]
        if at > len(text) - 12:  # near the end of the answer, so that the cache has more than that
            found = text[at : at + count]
        elif found and random.integers(2):
            at = random.integers(len(found))
            found[at] = int(not found[at])
        return found

    return following


def _same(
    monkeypatch: pytest.MonkeyPatch, open_one: Callable[[int], Decoder], prompt: list[int], count: int = ANSWER
) -> None:
    """An answer with guesses has the tokens and the logits of one without, greedy and drawn.

    So has the answer to a longer text, whose beginning is in the cache, and perhaps tokens that were guessed too early.
    """
    for temperature in (0.0, 1.0):
        plain, lookup = open_one(0), open_one(GUESSES)
        tokens, expected = _answer(plain, prompt, count, temperature)
        assert len(tokens) == count
        longer = [*prompt, *tokens, *reversed(tokens[-6:])]
        passes = _counted(lookup)
        with monkeypatch.context() as patch:
            patch.setattr(Repetition, "next", _guessing(longer))
            patch.setattr("featherback.infer.lookup.LEAST", 0)
            patch.setattr("featherback.infer.lookup.MOST", 0)
            found, logits = _answer(lookup, prompt, count, temperature)
        assert found == tokens
        np.testing.assert_array_equal(logits, expected)
        assert len(passes) < 0.9 * count
        assert max(passes[1:]) == 1 + GUESSES
        expected, logits = (_answer(decoder, longer, 3, temperature) for decoder in (plain, lookup))
        assert logits[0] == expected[0]
        np.testing.assert_array_equal(logits[1], expected[1])
        plain.close()
        lookup.close()


def _counted(decoder: Decoder) -> list[int]:
    """Return a list to which each later pass adds its number of tokens."""
    passes, forward = list[int](), decoder.forward

    def counting(tokens: list[int], *more: Any, **how: Any) -> np.ndarray:
        passes.append(len(tokens))
        return forward(tokens, *more, **how)

    decoder.forward = counting  # type: ignore[method-assign]
    return passes


def _prompt(config: ModelConfig, count: int) -> list[int]:
    return np.random.default_rng(1).integers(0, config.vocab_size, count).tolist()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("types", [TensorType.F32, TensorType.Q4_0])
@pytest.mark.parametrize("compute", ["fp32", "int16", "bf16"])
@pytest.mark.parametrize("decode", DECODE)
@pytest.mark.parametrize("kind", ["no adapter", "lora", "dora"])
def test_guesses_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: ModelConfig, types: TensorType, compute: str, decode: str,
    kind: str,
) -> None:  # fmt: skip
    model = models.load(write_tiny(tmp_path / "m.gguf", config, types))
    adapter, layout = _adapter(model, kind), Layout(decode=decode)
    if Decoder(model, guesses=GUESSES).guesses:
        _same(monkeypatch, lambda n: Decoder(model, adapter, None, compute, layout, guesses=n), _prompt(config, PROMPT))


@pytest.mark.parametrize("kv", ["f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("layout", some(some_layouts(), 2), ids=str)
def test_caches_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, kv: str) -> None:
    """Across the ends of segments and of pieces in a file."""
    monkeypatch.setattr(key_cache, "PIECE", 1)
    model = models.load(write_tiny(tmp_path / "m.gguf", tiny(TINY_WIDE, max_position_embeddings=512), TensorType.Q4_0))
    prompt = _prompt(model.config, 2 * SEGMENT - 9)
    _same(
        monkeypatch, lambda n: Decoder(model, None, 450, "fp32", layout, tmp_path, kv, guesses=n), prompt, SEGMENT + 20
    )


def test_a_planted_fault_of_the_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong guesses that stay in the cache."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    rewind = Decoder.rewind

    def too_late(self: Decoder, count: int) -> int:
        return rewind(self, min(len(self.tokens), count + 1))

    monkeypatch.setattr(Decoder, "rewind", too_late)
    with pytest.raises(AssertionError):
        _same(monkeypatch, lambda n: Decoder(model, None, None, "fp32", guesses=n), _prompt(model.config, PROMPT))


def test_a_repetition_takes_fewer_passes(tmp_path: Path) -> None:
    """A greedy text that repeats itself, which those of small models soon do."""
    model = models.load(write_tiny(tmp_path / "m.gguf", tiny(max_position_embeddings=512)))
    prompt = _prompt(model.config, 5)
    tokens, _ = _answer(Decoder(model), prompt, 400)
    lookup = Decoder(model, guesses=GUESSES)
    passes = _counted(lookup)
    found, _ = _answer(lookup, prompt, 400)
    assert found == tokens
    assert len(passes) < 280


class Blank:
    """A decoder without a model. `counts`: the tokens of each pass."""

    guesses, capacity = GUESSES, 10**6

    def __init__(self) -> None:
        self.tokens, self.counts, self.unsure = list[int](), list[int](), 0

    def stretched(self, length: int) -> list[bool]:
        return []

    def rewind(self, count: int) -> None:
        del self.tokens[count:]
        self.unsure = 0

    def forward(self, tokens: list[int], every: bool, check: Any) -> np.ndarray:
        self.tokens += tokens
        self.counts.append(len(tokens))
        return np.zeros((len(tokens), 1), np.float32)


def test_wrong_guesses_become_rare() -> None:
    """The last two tokens always occurred before, but what followed them is never next."""
    blank, twin, token = Blank(), Repetition([]), 0
    lookup = Lookup(blank, [])  # type: ignore[arg-type]
    text = []
    for _ in range(400):
        text.append(token)
        lookup.forward(token)
        assert blank.tokens[: len(text)] == text
        twin.append(token)
        token = (twin.next(1)[0] + 1) % 5 if twin.length else token
    assert sum(count > 1 for count in blank.counts) == 1


def test_repetitions_are_those_of_a_search() -> None:
    random = np.random.default_rng(0)
    for vocabulary in (2, 5, 70_000):
        text = random.integers(0, vocabulary, 50).tolist()
        text += text[10:40]
        repetition = Repetition(text[:20])
        for at in range(20, len(text)):
            repetition.append(text[at])
            so_far = text[: at + 1]
            places = [
                i for i in range(LEAST, len(so_far)) if so_far[i - LEAST : i] == so_far[-LEAST:]
            ]  # after an earlier occurrence
            length = repetition.length
            assert bool(length) == bool(places)
            if length:
                start = repetition._next // 4
                assert start in places
                assert so_far[start - length : start] == so_far[-length:]
                assert repetition.next(3) == so_far[start : start + 3]
                if length == LEAST:
                    assert start == places[-1]
    assert Repetition([256, 1]).length == 0
    shifted = Repetition([0x01020304, 0x05060708, 9])  # bytes that look like a token between two others
    for token in (0x08010203, 0x04050607):
        shifted.append(token)
    assert shifted.length == 0


def test_who_may_guess(tmp_path: Path) -> None:
    """Neither models with recurrent states or experts, nor the smallest decoder."""

    def guesses(config: ModelConfig, within: Within) -> int:
        model = models.load(write_tiny(tmp_path / "m.gguf", config))
        decoder = open_decoder(model, None, 40, "fp32", within)
        decoder.close()
        return decoder.guesses

    assert guesses(MODELS["llama"], Within()) == GUESSES
    assert guesses(MODELS["llama"], Within(memory=1 << 34)) == GUESSES
    assert guesses(MODELS["llama"], Within(memory="least")) == 0
    assert guesses(MODELS["llama"], Within(lookup=False)) == 0
    assert guesses(MODELS["lfm2"], Within()) == 0
    assert guesses(cases()["olmoe"][0], Within()) == 0
    model = models.load(write_tiny(tmp_path / "m.gguf", MODELS["llama"]))
    plain, lookup = (needs(model, None, 40, "fp32", Layout(), "f32", rows_of_logits(n)) for n in (0, GUESSES))
    assert lookup.total - plain.total == (rows_of_logits(GUESSES) - 1) * model.config.vocab_size * 4
