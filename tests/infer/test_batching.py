"""The batcher against the single decoder: each answer is that of its request alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine import kernels
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.infer import joint, scheduler
from featherback.infer.batching import Batcher, BusyError, Request, Ticket
from featherback.infer.cache import cache_bytes
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_tokens
from featherback.infer.key_cache import SEGMENT
from featherback.infer.layout import DECODE, FAST, Layout, layouts
from featherback.infer.loaded import loaded_bytes
from featherback.infer.prefixes import Match
from featherback.infer.sampler import Sampler
from featherback.infer.tickets import Emitted, emitted
from featherback.models.adapter import Adapter, LoRA
from featherback.models.architecture.config import ModelConfig
from featherback.models.form import Form
from featherback.models.model import Model
from featherback.models.streams import floats_of
from tests.engine.kernels.native import REFERENCE, VECTOR_SETS, using
from tests.infer.test_decoder import CONFIGS
from tests.support.layouts import some_layouts
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.tiers import some
from tests.support.tiny_models import TINY_LLAMA, TINY_PHI4, TINY_QWEN2, write_tiny


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


def _adapter(model: Model, seed: int, **options: Any) -> Adapter:
    """An adapter of random values, which changes every answer."""
    adapter, random = Adapter(model, Form.of(**({"rank": 3, "alpha": 6.0} | options))), np.random.default_rng(seed)
    state = {name: value + random.normal(0, 0.3, value.shape) for name, value in adapter.state().items()}
    adapter.load_state({name: value.astype(np.float32) for name, value in state.items()})
    return adapter


def _answers(model: Model, requests: Sequence[Request], layout: Layout = Layout(), **options: Any) -> list[list[int]]:  # noqa: B008
    """The answers to requests that are all submitted at once."""
    batcher = Batcher(model, compute="fp32", layout=layout, **options)
    try:
        return [_tokens(ticket) for ticket in [batcher.submit(request) for request in requests]]
    finally:
        batcher.close()


def _alone(model: Model, request: Request, layout: Layout = Layout(), kv: str = "f32") -> list[int]:  # noqa: B008
    decoder = Decoder(model, request.adapter, compute="fp32", layout=layout, kv=kv)
    return list(generate_tokens(decoder, request.prompt, Sampler(), request.max_tokens, request.end_ids))


def _staggered(model: Model, requests: Sequence[Request], layout: Layout) -> list[list[Emitted]]:
    """Answers in which each prompt is computed in the chunks of a single decoder; the rest is computed together."""
    batcher, answers, found = Batcher(model, compute="fp32", layout=layout, capacity=64), [], []
    for request in requests:
        answers.append(iter(batcher.submit(request)))
        found.append([next(answers[-1])])
    for each, answer in zip(found, answers):
        each.extend(answer)
    batcher.close()
    return found


def _tokens(ticket: Ticket) -> list[int]:
    return [each.token for each in ticket]


def test_each_answer_is_that_of_its_request_alone(model: Model, batcher: Batcher) -> None:
    adapters = [None, _adapter(model, 1), _adapter(model, 2, rank=5, alpha=10.0)]
    requests = [_request(i, 3 + 2 * i, adapter=adapters[i % 3]) for i in range(9)]
    tickets = [batcher.submit(request) for request in requests]
    found = [_tokens(ticket) for ticket in tickets]
    assert found == [_alone(model, request) for request in requests]
    assert len({tuple(each) for each in found}) == len(found)
    for ticket, request in zip(tickets, requests):
        assert ticket.finish_reason == "length"
        assert (ticket.usage.prompt_tokens, ticket.usage.completion_tokens) == (len(request.prompt), 12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_family(tmp_path: Path, config: ModelConfig) -> None:
    """Three texts of different lengths at different positions, one of them longer than a chunk."""
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    adapter = _adapter(model, 1)
    requests = [_request(i, length, 8, adapter=adapter if i == 1 else None) for i, length in enumerate((3, 14, 29))]
    found = _answers(model, requests, Layout(chunk=8), capacity=64)
    assert found == [_alone(model, request) for request in requests]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_family_to_the_last_bit(tmp_path: Path, config: ModelConfig) -> None:
    """Log-probabilities are equal, not only the tokens: no sum depends on what else is in a pass."""
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    layout = Layout(chunk=8)
    requests = [_request(i, length, 24, logprobs=2) for i, length in enumerate((3, 14, 21))]
    for request, each in zip(requests, _staggered(model, requests, layout)):
        decoder, following = Decoder(model, compute="fp32", layout=layout), list(request.prompt)
        for token, logprob, top in each:
            logits = decoder.forward(following)
            assert (token, logprob, top) == emitted(logits, token, 2)
            following = [token]


@pytest.mark.parametrize("kv", ["f32", "q8_0", "q4_0"])
def test_texts_of_several_segments(tmp_path: Path, kv: str) -> None:
    """Texts that share more than a segment, with keys and values of every type."""
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI4))
    shared = _request(9, SEGMENT + 20).prompt
    requests = [replace(each, prompt=[*shared, *each.prompt]) for each in (_request(i, 3 + 9 * i) for i in range(3))]
    batcher = Batcher(model, compute="fp32", kv=kv)
    tickets = [batcher.submit(request) for request in requests]
    assert [_tokens(ticket) for ticket in tickets] == [_alone(model, request, kv=kv) for request in requests]
    assert [ticket.usage.cached_tokens for ticket in tickets] == [0, len(shared), len(shared)]
    batcher.close()


def test_unknown_keys_and_values(model: Model) -> None:
    with pytest.raises(FeatherbackError, match="--kv is q9; expected one of: f32, q8_0, q4_0"):
        Batcher(model, kv="q9")


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_fast_decoding_is_that_of_the_single_decoder(tmp_path: Path, compute: str) -> None:
    """To the last bit, and not that of exact decoding. Requests together round in passes for which that is faster."""
    model = models.load(write_tiny(tmp_path / "m.gguf", types=TensorType.Q4_0))
    exact, fast = (Layout(decode=way) for way in DECODE)
    requests = [_request(i, 5 + i, logprobs=1) for i in range(3)]

    def alone(request: Request, layout: Layout, answer: Sequence[Emitted]) -> list[Emitted]:
        decoder, following, found = Decoder(model, compute=compute, layout=layout), list(request.prompt), []
        for token, _, _ in answer:
            found.append(emitted(decoder.forward(following), token, 1))
            following = [token]
        return found

    batcher = Batcher(model, compute=compute, layout=fast)
    answers = [list(batcher.submit(request)) for request in requests]
    batcher.close()
    for request, answer in zip(requests, answers):
        assert answer == alone(request, fast, answer)
        assert answer[1:] != alone(request, exact, answer)[1:]


@pytest.mark.parametrize("isa", [REFERENCE, *VECTOR_SETS])
def test_fast_decoding_of_requests_together(tmp_path: Path, isa: str) -> None:
    """Each text is that of the single decoder."""
    model = models.load(write_tiny(tmp_path / "m.gguf", types=TensorType.Q4_0))
    fast, requests = Layout(decode=FAST), [_request(i, 20 + i, 24) for i in range(7)]
    with using(isa):
        assert all(kernels.rounds(int(TensorType.Q4_0), rows) for rows in range(1, 17))
        found = [[token for token, _, _ in answer] for answer in _staggered(model, requests, fast)]
        assert found == [_alone(model, request, fast) for request in requests]


KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "another rank": {"rank": 5, "targets": ("q_proj", "down_proj")},
    "rslora": {"rank": 4, "rslora": True},
    "dora": {"dora": True},
    "ia3": {"adapter": "ia3"},
    "last layer": {"layers": ("last:1",)},
    "spartan": {"adapter": "spartan", "parents": 4, "cells": 8, "selected_parents": 2},
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("layout", [Layout(), *(each for each in layouts() if each.cache == "ram")][1:3], ids=str)
def test_every_kind_in_one_pass(tmp_path: Path, biased: bool, layout: Layout) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_QWEN2 if biased else TINY_LLAMA))
    requests = [
        _request(i, 4 + i, adapter=adapter)
        for i, adapter in enumerate(
            [None, *(_adapter(model, i, **options) for i, options in enumerate(KINDS.values()))]
        )
    ]
    expected = [_alone(model, request) for request in requests]
    assert _answers(model, requests, layout) == expected
    assert len({tuple(_alone(model, replace(requests[0], adapter=each.adapter))) for each in requests}) == len(requests)


def test_adapters_are_those_of_transformers(tmp_path: Path) -> None:
    """Each token is the likeliest by the logits of transformers and PEFT on the same prefix."""
    path = write_tiny(tmp_path / "m.gguf")
    theirs, model = reference_model(path), models.load(path)
    states = [random_adapter(theirs, rank=4, seed=seed) for seed in (0, 1)]
    requests = []
    for number, state in enumerate(states):
        adapter = LoRA(model, rank=4, alpha=8)
        adapter.load_state(state)
        requests.append(_request(number, adapter=adapter))
    for request, state, found in zip(requests, states, _answers(model, requests)):
        logits = reference(theirs, state, [[*request.prompt, *found]], alpha=8).logits[0][len(request.prompt) - 1 : -1]
        assert found == logits.argmax(-1).tolist()


def test_a_planted_swap_of_adapters_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [_request(i, adapter=_adapter(model, i)) for i in range(2)]
    real = joint.adapted
    monkeypatch.setattr(joint, "adapted", lambda w, layer, adapters: real(w, layer, adapters[::-1]))
    assert all(wrong != _alone(model, request) for wrong, request in zip(_answers(model, requests), requests))


def test_a_planted_view_of_other_keys_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sequence uses the keys and values of the first."""
    requests = [_request(i) for i in range(2)]
    real = joint.JoinedRows

    def mixed(parts: Any, k: Any, v: Any) -> Any:
        return real([parts[0], (parts[1][0], parts[0][1])], k, v)

    monkeypatch.setattr(joint, "JoinedRows", mixed)
    assert _answers(model, requests) != [_alone(model, request) for request in requests]


def test_a_shared_prefix_is_computed_once(model: Model) -> None:
    batcher = Batcher(model, compute="fp32")
    prefix = _request(7, 40).prompt
    requests = [replace(_request(i), prompt=[*prefix, *_request(i).prompt]) for i in range(4)]
    tickets = [batcher.submit(request) for request in requests]
    assert [_tokens(ticket) for ticket in tickets] == [_alone(model, request) for request in requests]
    assert [ticket.usage.cached_tokens for ticket in tickets] == [0, 40, 40, 40]
    turn = replace(requests[0], prompt=[*requests[0].prompt, *_alone(model, requests[0]), 1, 2, 3, 4])
    again = batcher.submit(turn)
    assert _tokens(again) == _alone(model, turn)
    assert again.usage.cached_tokens == len(requests[0].prompt) + 11  # the last token of an answer is not computed
    adapter = _adapter(model, 1)
    other = batcher.submit(replace(turn, adapter=adapter))
    assert _tokens(other) == _alone(model, other.request)
    assert other.usage.cached_tokens == 0
    batcher.close()


def test_a_planted_prefix_of_another_adapter_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _request(3, 20)
    second = replace(first, adapter=_adapter(model, 1))
    monkeypatch.setattr(
        scheduler, "best_match", lambda wanted, sources, _: Match(sources[0], 19, True) if sources else None
    )
    batcher = Batcher(model, compute="fp32")
    _tokens(batcher.submit(first))
    assert _tokens(batcher.submit(second)) != _alone(model, second)
    batcher.close()


def test_a_text_that_outgrows_the_original_context(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI4))
    requests = [_request(0, 30, 20), _request(1, 5, 20), _request(2, 45, 10)]
    assert _answers(model, requests, capacity=64) == [_alone(model, request) for request in requests]


def test_one_broken_adapter_fails_alone(model: Model) -> None:
    broken = _adapter(model, 1)
    flat = np.full(broken.layer_size, np.inf, np.float32)
    broken.parameters.write(0, flat)
    batcher = Batcher(model, compute="fp32")
    tickets = [batcher.submit(_request(i, adapter=adapter)) for i, adapter in enumerate([None, broken, None])]
    with pytest.raises(FeatherbackError, match="not finite"):
        list(tickets[1])
    assert isinstance(tickets[1].error, FeatherbackError)
    for ticket in (tickets[0], tickets[2]):
        assert _tokens(ticket) == _alone(model, ticket.request)
    batcher.close()


def test_a_long_prompt_does_not_stall_answers(model: Model) -> None:
    """Between two chunks of a prompt, every answer gets a token."""
    batcher = Batcher(model, compute="fp32", layout=Layout(chunk=8))
    answering = batcher.submit(_request(0, most=200))
    next(iter(answering))
    long = batcher.submit(_request(1, 160, 1))
    list(long)
    assert answering.usage.completion_tokens > 160 // 8
    batcher.close()


def test_memory_stays_within_its_limit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two and a half requests, so that some wait, and prefixes and unused adapters are dropped."""
    adapters = [None, *(_adapter(model, i) for i in range(3))]
    requests = [_request(i, 20, adapter=adapters[i % 4]) for i in range(16)]
    one = cache_bytes(model.blocks, 32, "f32") + loaded_bytes(adapters[1])
    limit, most, real = int(2.5 * one), 0, scheduler.Scheduler.step

    def step(self: scheduler.Scheduler) -> list[Ticket]:
        nonlocal most
        most = max(most, self._used)
        ended = real(self)
        most = max(most, self._used)
        return ended

    monkeypatch.setattr(scheduler.Scheduler, "step", step)
    assert _answers(model, requests, memory=limit) == [_alone(model, request) for request in requests]
    assert one < most <= limit


def test_a_request_that_can_never_fit(model: Model) -> None:
    batcher = Batcher(model, compute="fp32", memory=cache_bytes(model.blocks, SEGMENT, "f32"))
    with pytest.raises(BusyError, match=rf"The request needs .* for {SEGMENT + 1} tokens .*, but only .* --memory"):
        batcher.submit(_request(length=20, most=SEGMENT - 19))
    assert len(_tokens(batcher.submit(_request(length=20, most=12)))) == 12
    batcher.close()


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", some(some_layouts("ram"), 2), ids=str)
def test_passes_take_what_they_were_counted_to(tmp_path: Path, compute: str, layout: Layout) -> None:
    """Never more, and at least 0.8 of it, with every kind of adapter, as soon as all slots were in use."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapters = [_adapter(model, i, **options) for i, options in enumerate(KINDS.values())]
    capacity, slots = 64, 9
    batcher = Batcher(model, capacity=capacity, compute=compute, layout=layout, slots=slots)
    used = batcher._scheduler
    tickets = [batcher.submit(_request(i, 40, 24, adapter=each)) for i, each in enumerate([None, None, *adapters])]
    for ticket in tickets:
        list(ticket)
    arena = used._passes.machine.scratch
    assert arena.high_water <= used._scratch
    for _ in range(2):  # prompts that fill a chunk of any size
        parts = [_request(9 + i, 56 if i < 4 else 8, 2) for i in range(slots)]
        for ticket in [batcher.submit(part) for part in parts]:
            list(ticket)
    assert arena.high_water >= 0.8 * used._scratch
    batcher.close()


def test_nothing_of_a_forgotten_adapter_stays(model: Model) -> None:
    batcher = Batcher(model, compute="fp32")
    scheduled, adapter = batcher._scheduler, _adapter(model, 1)
    prompts = [_request(0, adapter=adapter), _request(1)]
    for ticket in [batcher.submit(request) for request in prompts]:
        list(ticket)
    assert len(scheduled._adapters) == 1
    assert len(list(scheduled._prefixes)) == 2
    batcher.forget(adapter)
    _tokens(batcher.submit(prompts[1]))
    assert not scheduled._adapters
    assert [kept.adapter for kept in scheduled._prefixes] == [None]
    values = [weakref.ref(_adapter(model, 2))]  # gone already
    adapter = _adapter(model, 2)
    values.append(weakref.ref(adapter))
    _tokens(batcher.submit(_request(0, adapter=adapter)))
    del adapter, ticket
    gc.collect()
    _tokens(batcher.submit(prompts[1]))
    assert not scheduled._adapters
    assert [value() for value in values] == [None, None]
    batcher.close()


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


def test_a_bug_in_the_thread_ends_every_answer(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = Batcher(model, slots=1)
    tickets = [batcher.submit(_request(i, most=10**6)) for i in range(3)]
    next(iter(tickets[0]))

    def fail(self: scheduler.Scheduler) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(scheduler.Scheduler, "_start", fail)
    for ticket in tickets:
        with pytest.raises(RuntimeError, match="planted"):
            list(ticket)
    with pytest.raises(RuntimeError, match="planted"):
        batcher.submit(_request())
    batcher.close()


def test_hidden_states(model: Model, batcher: Batcher) -> None:
    tokens = [3, 1, 4, 1, 5]
    found = batcher.embed(tokens).result()
    decoder = Decoder(model, compute="fp32")
    assert found.shape == (5, model.config.hidden_size)
    np.testing.assert_allclose(
        found @ floats_of(model.head.weight).T, decoder.forward(tokens, every=True), rtol=1e-3, atol=1e-4
    )
