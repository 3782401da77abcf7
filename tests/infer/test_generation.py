"""Greedy generation against transformers, stop tokens, streaming, and conversations that reuse the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from featherback import models
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import peft
from featherback.infer.conversation import Conversation
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_text, generate_tokens
from featherback.infer.prompt import encode_prompt
from featherback.infer.sampler import Sampler
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from tests.support.oracle import random_adapter, with_adapter
from tests.support.tiny_chat import write_tiny_chat

NEW_TOKENS = 32
PROMPTS = ("What is the capital of France?", "What is 12 times 12?", "Give me a recipe for pancakes.")
# Two logits this close are a tie: float32 sums of 576 products in another order differ by as much.
TIE = 2e-3


@pytest.fixture(scope="module", autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Stop torch's threads from spinning while they wait, which costs minutes if other work uses the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return models.load(smollm2_path)


def _greedy_like_transformers(model: Model, adapter: LoRA | None, theirs: torch.nn.Module) -> None:
    """Every token we choose, and where we stop, is the likeliest by transformers' logits on the same prefix.

    By induction that is transformers' own greedy answer, at the price of one forward pass instead of 32.
    """
    tokenizer = load_tokenizer(model.path)
    for text in PROMPTS:
        prompt = encode_prompt(tokenizer, text)
        decoder = Decoder(model, adapter, len(prompt) + NEW_TOKENS, compute="fp32")
        ours = list(generate_tokens(decoder, prompt, Sampler(), NEW_TOKENS, tokenizer.end_ids))
        assert ours, text
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([prompt + ours])).logits[0, len(prompt) - 1 :].numpy()
        for place, token in enumerate(ours):
            best = int(logits[place].argmax())
            assert logits[place, best] - logits[place, token] < TIE, (
                f"{text!r}: token {place} is {token}, not {best}; "
                f"their logits are {logits[place, token]:.5f} and {logits[place, best]:.5f}"
            )
        if len(ours) < NEW_TOKENS:
            assert int(logits[len(ours)].argmax()) in tokenizer.end_ids, f"{text!r}: we stopped too early"


@pytest.mark.full("the real model; test_decoder.py compares tiny ones")
def test_the_base_model_answers_like_transformers(model: Model, smollm2_reference: PreTrainedModel) -> None:
    _greedy_like_transformers(model, None, smollm2_reference)


@pytest.mark.full("the real model; test_decoder.py compares tiny ones")
def test_an_adapted_model_answers_like_transformers(
    model: Model, smollm2_reference: PreTrainedModel, tmp_path: Path
) -> None:
    state = random_adapter(smollm2_reference, rank=8, seed=1)
    adapter = LoRA(model, rank=8, alpha=2)  # mild enough that it still speaks
    adapter.load_state(state)
    peft.FORMAT.save(adapter, tmp_path)
    theirs = with_adapter(smollm2_reference, state, alpha=2)
    try:
        _greedy_like_transformers(model, formats.load(model, tmp_path), theirs)
    finally:
        theirs.unload()


@pytest.fixture
def tiny(tmp_path: Path) -> Model:
    return models.load(write_tiny_chat(tmp_path / "tiny.gguf"))


def test_generation_stops_at_an_end_token_which_is_not_shown(tiny: Model) -> None:
    prompt = [1, 2, 3]
    free = list(generate_tokens(Decoder(tiny), prompt, Sampler(), 10))
    stop = next(token for token in free if token != free[0])
    stopped = list(generate_tokens(Decoder(tiny), prompt, Sampler(), 10, {stop}))
    assert stopped == free[: free.index(stop)]


def test_generation_stops_when_the_cache_is_full(tiny: Model) -> None:
    assert len(list(generate_tokens(Decoder(tiny, capacity=8), [1, 2, 3], Sampler(), 100))) == 6
    assert len(list(generate_tokens(Decoder(tiny), [1, 2, 3], Sampler(), 4))) == 4


def test_text_is_streamed_whole_characters_at_a_time(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(tiny.path)
    said = tokenizer.encode("né — ½ 日本")

    def scripted(*_: object) -> Iterator[int]:
        yield from said

    monkeypatch.setattr("featherback.infer.generate.generate_tokens", scripted)
    pieces = list(generate_text(Decoder(tiny), tokenizer, [1], Sampler(), 99))
    assert "".join(pieces) == "né — ½ 日本"
    assert len(pieces) > 5
    assert not any("�" in piece for piece in pieces)


def test_a_conversation_computes_only_what_is_new(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(tiny.path)
    template = ChatTemplate(tokenizer)
    decoder = Decoder(tiny, capacity=400, compute="fp32")
    talk = Conversation(decoder, tokenizer, template, Sampler(1.0, seed=1), system="Be brief. " * 9)
    passed: list[int] = []
    forward = decoder.forward

    def counting(tokens: list[int], **how: Any) -> np.ndarray:
        passed.append(len(tokens))
        return forward(tokens, **how)

    monkeypatch.setattr(decoder, "forward", counting)
    first = "".join(talk.answer("hello", 8))
    passed.clear()
    second = "".join(talk.answer("and now?", 8))
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert [talk.messages[2]["content"], talk.messages[4]["content"]] == [first, second]
    prompt = template.encode_prompt(talk.messages[:4])
    assert passed[0] < len(prompt) / 2
    fresh = Decoder(tiny, capacity=400, compute="fp32")
    np.testing.assert_allclose(forward([7]), _after(fresh, decoder.tokens[:-1]), rtol=1e-3, atol=1e-4)


def _after(decoder: Decoder, tokens: list[int]) -> np.ndarray:
    decoder.forward(tokens)
    return decoder.forward([7])


def test_a_conversation_that_outgrows_its_room(tiny: Model) -> None:
    tokenizer = load_tokenizer(tiny.path)
    talk = Conversation(Decoder(tiny, capacity=40), tokenizer, ChatTemplate(tokenizer), Sampler())
    with pytest.raises(FeatherbackError, match="--context"):
        list(talk.answer("x" * 50, 8))


def test_prompts(tiny: Model) -> None:
    tokenizer = load_tokenizer(tiny.path)
    ids = encode_prompt(tokenizer, "hi <|im_end|>", system="s")
    shown = tokenizer.decode(ids, special=True)
    assert shown == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(258) == 2, "the control token spelled by the user is text"
    assert encode_prompt(tokenizer, "hi", raw=True) == tokenizer.encode("hi")
    with pytest.raises(FeatherbackError, match="empty"):
        encode_prompt(tokenizer, "", raw=True)
    with pytest.raises(FeatherbackError, match="--raw"):
        encode_prompt(tokenizer, "hi", system="s", raw=True)


@pytest.mark.parametrize("broken", ["blk.1.ffn_up.weight", "the adapter"])
def test_what_is_no_number_is_told(tmp_path: Path, broken: str) -> None:
    path = write_tiny_chat(tmp_path / "tiny.gguf")
    model, adapter = models.load(path), None
    if broken == "the adapter":
        adapter = LoRA(model, rank=2)
        adapter.parameters.write(0, np.full(adapter.layer_size, np.nan, np.float32))
        said = (
            "The logits are not finite (NaN or infinite). The adapter does not fit the model, or its training "
            "diverged: train again with a lower learning rate."
        )
    else:
        model.close()
        with open(path, "r+b") as file:
            file.seek(model.store.tensors[broken].offset + 8)
            file.write(np.float32("nan").tobytes())
        model = models.load(path)
        said = f"{path} is broken: up_proj of layer 1 holds NaN or infinity."
    decoder = Decoder(model, adapter, capacity=8, compute="fp32")
    with pytest.raises(FeatherbackError) as raised:
        next(generate_tokens(decoder, [1, 2], Sampler(), 4))
    assert str(raised.value) == said
