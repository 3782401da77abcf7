"""The batcher against the single decoder: each answer is that of its request alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.infer.batching import Batcher, BusyError, Request, Ticket
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_tokens
from featherback.infer.sampler import Sampler
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.models.streams import floats_of
from tests.support.tiny_models import write_tiny


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return models.load(write_tiny(tmp_path / "m.gguf"))


@pytest.fixture
def batcher(model: Model) -> Iterator[Batcher]:
    opened = Batcher(model, compute="fp32")
    yield opened
    opened.close()


def _request(seed: int = 0, length: int = 5, most: int = 12, **more: Any) -> Request:
    prompt = np.random.default_rng(seed).integers(0, 101, length).tolist()
    return Request(prompt, more.pop("sampler", Sampler()), most, **more)


def _adapter(model: Model, seed: int, rank: int = 3) -> LoRA:
    adapter, random = LoRA(model, rank=rank, alpha=6), np.random.default_rng(seed)
    state = {name: random.normal(0, 0.3, value.shape) for name, value in adapter.state().items()}
    adapter.load_state({name: value.astype(np.float32) for name, value in state.items()})
    return adapter


def _alone(model: Model, request: Request) -> list[int]:
    decoder = Decoder(model, request.adapter, compute="fp32")
    return list(generate_tokens(decoder, request.prompt, Sampler(), request.max_tokens, request.end_ids))


def _tokens(ticket: Ticket) -> list[int]:
    return [each.token for each in ticket]


def test_each_answer_is_that_of_its_request_alone(model: Model, batcher: Batcher) -> None:
    adapters = [None, _adapter(model, 1), _adapter(model, 2, rank=5)]
    requests = [_request(i, 3 + 2 * i, adapter=adapters[i % 3]) for i in range(9)]
    tickets = [batcher.submit(request) for request in requests]
    found = [_tokens(ticket) for ticket in tickets]
    assert found == [_alone(model, request) for request in requests]
    assert len({tuple(each) for each in found}) == len(found)
    for ticket, request in zip(tickets, requests):
        assert ticket.finish_reason == "length"
        assert (ticket.usage.prompt_tokens, ticket.usage.completion_tokens) == (len(request.prompt), 12)


def test_an_end_token_ends_the_answer(model: Model, batcher: Batcher) -> None:
    whole = _alone(model, _request())
    stop = whole[4]
    ticket = batcher.submit(_request(end_ids=[stop]))
    assert _tokens(ticket) == whole[: whole.index(stop)]
    assert ticket.finish_reason == "stop"


def test_log_probabilities(model: Model, batcher: Batcher) -> None:
    request = _request(logprobs=3)
    first = next(iter(batcher.submit(request)))
    logits = Decoder(model, compute="fp32").forward(request.prompt).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum())
    best = np.argsort(-expected)[:3]
    assert [token for token, _ in first.top] == best.tolist()
    assert [value for _, value in first.top] == pytest.approx(expected[best].tolist(), abs=1e-5)
    assert first.logprob == pytest.approx(expected[first.token], abs=1e-5)
    assert next(iter(batcher.submit(_request()))).logprob is None


def test_a_cancelled_answer_ends(batcher: Batcher) -> None:
    ticket, after = batcher.submit(_request(most=10**6)), batcher.submit(_request(1))
    next(iter(ticket))
    ticket.cancel()
    list(ticket)
    assert ticket.finish_reason == "cancelled"
    assert len(_tokens(after)) == 12


def test_a_prompt_that_cannot_be_answered(model: Model, batcher: Batcher) -> None:
    with pytest.raises(FeatherbackError, match="The prompt is empty"):
        batcher.submit(Request([], Sampler(), 3))
    with pytest.raises(FeatherbackError, match="The prompt has 2000 tokens, but the context holds"):
        batcher.submit(_request(length=2000))
    with pytest.raises(FeatherbackError, match="A token id is 99999"):
        batcher.submit(Request([99999], Sampler(), 3))
    with pytest.raises(FeatherbackError, match="--max-tokens"):
        batcher.submit(_request(most=0))


def test_the_queue_is_limited(model: Model) -> None:
    batcher = Batcher(model, waiting=2)
    try:
        tickets = [batcher.submit(_request(i, most=10**6)) for i in range(2)]
        with pytest.raises(BusyError, match="2 requests are waiting already"):
            tickets += [batcher.submit(_request(i, most=10**6)) for i in range(40)]
    finally:
        batcher.close()
    assert {ticket.finish_reason for ticket in tickets} <= {"cancelled", "length"}
    with pytest.raises(BusyError, match="closed"):
        batcher.submit(_request())


def test_hidden_states(model: Model, batcher: Batcher) -> None:
    tokens = [3, 1, 4, 1, 5]
    found = batcher.embed(tokens)
    decoder = Decoder(model, compute="fp32")
    assert found.shape == (5, model.config.hidden_size)
    np.testing.assert_allclose(
        found @ floats_of(model.head.weight).T, decoder.forward(tokens, every=True), rtol=1e-3, atol=1e-4
    )
