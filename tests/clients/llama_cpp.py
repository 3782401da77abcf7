"""The real llama.cpp reads what we export: `make test-llamacpp`. Not part of the suite, as it has to be built first.

Tiny models are F32 throughout and so is llama.cpp's cache: nothing is rounded but sums, in another order. Of SmolLM2
the text must be the same. Both sides round the activations that meet its 4-bit weights, each in its own way, so its
logits are compared twice: with those weights, where the difference must be small beside what the adapter changes, and
with the weights in F32, where only the head, in 8 bits, rounds activations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import GGML_TYPE_F32, Llama

import featherback as fb
from featherback import models
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.formats.types import TensorType
from featherback.exports import formats
from featherback.exports.formats import gguf
from featherback.exports.merged_gguf import MergedGGUF
from featherback.infer.decoder import Decoder
from featherback.infer.prompt import encode_prompt
from featherback.models.adapter import LoRA, Pair
from tests.support.families import FAMILIES, cases, of_peer
from tests.support.tiny_models import TINY_LLAMA, llama3, tiny, write_tiny

CASES = of_peer(lambda family: family.llama_cpp) | {
    "llama3-rope": tiny(TINY_LLAMA, rope_scaling=llama3(TINY_LLAMA)),
    "mixtral": cases()["mixtral"][0],
}
TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60, 3, 17]
UNUSUAL = {(0, "o_proj"): Pair(2, 6.0), (1, "down_proj"): Pair(7, 12.0), (0, "down_proj"): None}
QUESTIONS = ("What is the capital of France?", "Name a colour.")
ANSWER = "Ahoy! Ask the parrot on my shoulder; I only sail the ship."
STEPS, ANSWER_TOKENS = 20, 12
BESIDE_THE_CHANGE = 0.25
HEAD_ALONE = 0.02  # of the logits' spread: activations in 8 bits are off by 1/254 of the largest of 32, at most


def _llama(path: Path, lora: Path | None = None, context: int = 128) -> Llama:
    """llama.cpp with the cache in float32 and attention as written, so that only weights decide how it rounds."""
    return Llama(
        str(path),
        lora_path=None if lora is None else str(lora),
        n_ctx=context,
        n_threads=2,
        logits_all=True,
        flash_attn=False,
        type_k=GGML_TYPE_F32,
        type_v=GGML_TYPE_F32,
        verbose=False,
    )


def _their_logits(llama: Llama, tokens: Sequence[int]) -> np.ndarray:
    llama.reset()
    llama.eval(list(tokens))
    return np.array(llama.scores[: len(tokens)])


def _our_logits(model: fb.Model, adapter: LoRA | None, tokens: Sequence[int]) -> np.ndarray:
    return Decoder(model, adapter, compute="fp32").forward(list(tokens), every=True)


def _filled(model: fb.Model, **options: Any) -> LoRA:
    adapter = LoRA(model, 4, 12, **options)
    rng = np.random.default_rng(3)
    adapter.load_state(
        {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in adapter.shapes().items()}
    )
    return adapter


@pytest.mark.parametrize("unusual", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_tiny_models(tmp_path: Path, name: str, unusual: bool) -> None:
    """Base and GGUF LoRA, and the merged GGUF; with one rank and alpha, and with several."""
    path = write_tiny(tmp_path / "m.gguf", CASES[name], metadata={"tokenizer.ggml.model": "none"})
    model = models.load(path)
    there = {place: pair for place, pair in UNUSUAL.items() if place[1] in model.family.projections}
    adapter = _filled(model, exceptions=there if unusual else {}, rslora=unusual)
    gguf.FORMAT.save(adapter, tmp_path / "a.gguf")
    MergedGGUF(adapter).write(tmp_path / "merged.gguf")
    ours, base = _our_logits(model, adapter, TOKENS), _our_logits(model, None, TOKENS)
    bound = FAMILIES[CASES[name].architecture].llama_cpp_bound
    for theirs, wanted in (
        (_llama(path), base),
        (_llama(path, tmp_path / "a.gguf"), ours),
        (_llama(tmp_path / "merged.gguf"), ours),
    ):
        np.testing.assert_allclose(_their_logits(theirs, TOKENS), wanted, rtol=0, atol=bound * np.abs(wanted).max())
    assert np.abs(ours - base).max() > 8 * bound * np.abs(base).max(), "the adapter changed nothing"


@pytest.mark.parametrize("name", [name for name, config in CASES.items() if hasattr(config, "experts_used")])
def test_experts_and_routers(tmp_path: Path, name: str) -> None:
    """Pairs of every expert and of the router, as 3-D GGUF LoRA tensors, and merged."""
    path = write_tiny(tmp_path / "m.gguf", CASES[name], metadata={"tokenizer.ggml.model": "none"})
    model = models.load(path)
    adapter = _filled(model, targets="all,experts,router")
    gguf.FORMAT.save(adapter, tmp_path / "a.gguf")
    MergedGGUF(adapter).write(tmp_path / "merged.gguf")
    ours, usual = (_our_logits(model, each, TOKENS) for each in (adapter, _only_usual(adapter)))
    bound = FAMILIES[CASES[name].architecture].llama_cpp_bound
    for theirs in (_llama(path, tmp_path / "a.gguf"), _llama(tmp_path / "merged.gguf")):
        np.testing.assert_allclose(_their_logits(theirs, TOKENS), ours, rtol=0, atol=bound * np.abs(ours).max())
    assert np.abs(ours - usual).max() > 8 * bound * np.abs(ours).max(), "the pairs of experts changed nothing"


def _only_usual(adapter: LoRA) -> LoRA:
    """The same adapter without experts and router."""
    usual = LoRA(adapter.model, 4, 12)
    usual.load_state({name: adapter.state()[name] for name in usual.shapes()})
    return usual


@pytest.mark.parametrize("name", ["llama"])
def test_a_planted_permutation_fault_is_caught(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "hf_to_gguf_rows", lambda heads, rows: np.arange(rows))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_tiny_models(tmp_path, name, False)


class Trained:
    """SmolLM2 and an adapter that was trained until its greedy answers changed."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.model = models.load(path)
        self.tokenizer = load_tokenizer(path)
        self.prompts = [encode_prompt(self.tokenizer, question) for question in QUESTIONS]
        rows = [
            {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": ANSWER}]} for q in QUESTIONS
        ]
        data = folder / "pirate.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run = fb.train(
            self.model, data, folder / "run", steps=STEPS, seq_len=64, learning_rate=3e-3, targets="all", progress=False
        )
        self.adapter = run.adapter
        self.lora = folder / "a.gguf"
        gguf.FORMAT.save(self.adapter, self.lora)

    def answers(self, model: fb.Model, adapter: LoRA | None) -> list[list[int]]:
        """Our greedy answers, as ids."""
        found = []
        for prompt in self.prompts:
            decoder = Decoder(model, adapter, 256, compute="fp32")
            logits, ids = decoder.forward(prompt), []
            for _ in range(ANSWER_TOKENS):
                ids.append(int(np.argmax(logits)))
                logits = decoder.forward(ids[-1:])
            found.append(ids)
        return found

    def their_answers(self, llama: Llama) -> list[list[int]]:
        """llama.cpp's."""
        found = []
        for prompt in self.prompts:
            llama.reset()
            llama.eval(prompt)
            ids: list[int] = []
            for _ in range(ANSWER_TOKENS):
                ids.append(int(np.argmax(llama.scores[llama.n_tokens - 1])))
                llama.eval(ids[-1:])
            found.append(ids)
        return found


@pytest.fixture(scope="module")
def trained(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(smollm2_path, tmp_path_factory.mktemp("smollm2"))


def _distance(theirs: np.ndarray, ours: np.ndarray) -> float:
    """Root mean square of the difference, relative to the spread of our logits."""
    return float(np.sqrt(np.square(theirs - ours).mean()) / ours.std())


def test_the_same_greedy_text(trained: Trained) -> None:
    before, after = (trained.answers(trained.model, adapter) for adapter in (None, trained.adapter))
    assert all(a != b for a, b in zip(before, after, strict=True)), "the adapter changed no answer"
    llama = _llama(trained.path, trained.lora, 256)
    assert trained.their_answers(llama) == after
    tokens = trained.prompts[0] + after[0]
    base, ours = (_our_logits(trained.model, a, tokens) for a in (None, trained.adapter))
    change, distance = _distance(base, ours), _distance(_their_logits(llama, tokens), ours)
    print(f"4 bits: logits differ by {distance:.4f} of their spread; the adapter changes them by {change:.4f}")
    assert distance < BESIDE_THE_CHANGE * change


def test_the_logits_of_exact_weights(trained: Trained, tmp_path: Path) -> None:
    """The same values in F32: their file is the merge of an adapter that changes nothing."""
    MergedGGUF(LoRA(trained.model), TensorType.F32).write(tmp_path / "f32.gguf")
    tokens = trained.prompts[0] + trained.answers(trained.model, trained.adapter)[0]
    ours = _our_logits(models.load(tmp_path / "f32.gguf"), trained.adapter, tokens)
    distance = _distance(_their_logits(_llama(tmp_path / "f32.gguf", trained.lora, 256), tokens), ours)
    print(f"F32: logits differ by {distance:.5f} of their spread")
    assert distance < HEAD_ALONE


@pytest.mark.parametrize("kind", [None, TensorType.Q8_0])
def test_the_merged_model_in_llama_cpp(trained: Trained, tmp_path: Path, kind: TensorType | None) -> None:
    """It computes what we do with the same file; in 8 bits it also says what the adapter does."""
    merged = MergedGGUF(trained.adapter, kind)
    merged.write(tmp_path / "merged.gguf")
    llama = _llama(tmp_path / "merged.gguf", context=256)
    tokens = trained.prompts[0] + trained.answers(trained.model, trained.adapter)[0]
    ours = _our_logits(models.load(tmp_path / "merged.gguf"), None, tokens)
    base = _our_logits(trained.model, None, tokens)
    assert _distance(_their_logits(llama, tokens), ours) < BESIDE_THE_CHANGE * _distance(base, ours)
    if kind is not None:
        assert trained.their_answers(llama) == trained.answers(trained.model, trained.adapter)


def test_their_file_is_read(trained: Trained) -> None:
    """What llama.cpp loaded is what we read back, bit for bit."""
    again = formats.load(trained.model, trained.lora).state()
    for name, values in trained.adapter.state().items():
        assert np.array_equal(again[name], values), name
