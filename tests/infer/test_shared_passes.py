"""The bits of an answer do not depend on what shares its passes: neither its tokens' nor its prompt's.

Passes are chosen here, step by step, and not by the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.engine import kernels
from featherback.engine.backend.cpu import DecodingOperations
from featherback.engine.formats.types import TensorType
from featherback.infer import scheduler
from featherback.infer.batching import Emitted, Request
from featherback.infer.decoder import Decoder
from featherback.infer.layout import EXACT, FAST, Layout
from featherback.infer.scheduler import Scheduler
from featherback.infer.tickets import Ticket, emitted
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from tests.engine.kernels.native import VECTOR_SETS, using
from tests.infer.test_batching import KINDS, _adapter, _request
from tests.infer.test_decoder import CONFIGS
from tests.support.families import cases
from tests.support.tiers import some
from tests.support.tiny_models import TINY_PHI4, write_tiny

WAYS = [("fp32", EXACT), ("bf16", EXACT), ("int16", EXACT), ("fp32", FAST), ("bf16", FAST), ("int16", FAST)]

EXPERTS = ("olmoe", "gpt-oss", "qwen2moe", "lfm2moe", "qwen3next")
FAMILIES = {**CONFIGS, **{name: cases()[name][0] for name in EXPERTS}}


def _answers(
    model: Model, requests: Sequence[Request], starts: Sequence[int], compute: str, layout: Layout, **options: Any
) -> list[list[Emitted]]:
    """The answers to requests of which each is admitted before the step that `starts` names."""
    settings = {"capacity": 160, "slots": len(requests), "memory": None, "kv": "f32", "wake": lambda: None} | options
    scheduler = Scheduler(model, compute=compute, layout=layout, **settings)
    tickets = [Ticket(request) for request in requests]
    for step in count():
        for ticket, start in zip(tickets, starts):
            if start == step:
                assert scheduler.admit(ticket)
        scheduler.step()
        if all(ticket.done for ticket in tickets):
            break
    scheduler.close()
    return [list(ticket) for ticket in tickets]


def _check(
    model: Model, requests: Sequence[Request], compute: str, decode: str, sizes: Sequence[int], **options: Any
) -> None:
    """Compare answers of a few groups of requests, whose prompts are computed in several ways, with the decoder's."""
    layout = Layout(decode=decode)
    alone = [_alone(model, request, compute, layout, options.get("kv", "f32")) for request in requests]
    for size in sizes:
        for starts in ([0] * size, [i % 4 for i in range(size)]):
            found = _answers(model, requests[:size], starts, compute, layout, **options)
            differing = [i for i, (one, other) in enumerate(zip(found, alone)) if one != other]
            assert not differing, f"of {size} requests, the answers to {differing} have other bits"


def _alone(model: Model, request: Request, compute: str, layout: Layout, kv: str) -> list[Emitted]:
    decoder = Decoder(model, request.adapter, 160, compute, layout, kv=kv)
    following, found = list(request.prompt), list[Emitted]()
    while len(found) < request.max_tokens:
        logits = decoder.forward(following)
        found.append(emitted(logits, request.sampler(logits), request.logprobs))
        following = [found[-1].token]
    decoder.close()
    return found


def _requests(number: int, most: int, **more: Any) -> list[Request]:
    lengths = [1, 70, 3, 130, 5, 66, 17, 4, *np.random.default_rng(0).integers(1, 90, number)][:number]
    requests = [_request(i, int(length), most, logprobs=3, **more) for i, length in enumerate(lengths)]
    return [replace(each, prompt=[i, *each.prompt[1:]]) for i, each in enumerate(requests)]  # no common beginnings


@pytest.mark.parametrize("isa", VECTOR_SETS)
@pytest.mark.parametrize(("compute", "decode"), WAYS)
def test_any_number_of_requests(tmp_path: Path, isa: str, compute: str, decode: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", types=TensorType.Q4_1))
    with using(isa):
        _check(model, _requests(33, 4), compute, decode, (1, 2, 3, 5, 8, 17, 33))


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize(("compute", "decode"), WAYS)
def test_every_family(tmp_path: Path, compute: str, decode: str, config: ModelConfig) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    _check(model, _requests(8, 3), compute, decode, (8,))


@pytest.mark.parametrize(("compute", "decode"), some(WAYS, 3))
@pytest.mark.parametrize("isa", VECTOR_SETS)
def test_every_kind_of_adapter(tmp_path: Path, isa: str, compute: str, decode: str) -> None:
    """One adapter for all requests, and several beside requests without one."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapters = [None, *(_adapter(model, i, **options) for i, options in enumerate(KINDS.values()))]
    with using(isa):
        mixed = [_request(i, 6 + 9 * i, 4, adapter=each, logprobs=3) for i, each in enumerate(adapters)]
        for requests in (mixed, _requests(5, 4, adapter=adapters[1])):
            _check(model, requests, compute, decode, (len(requests),))


@pytest.mark.parametrize("kv", ["q8_0", "q4_0"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_every_type_of_keys(tmp_path: Path, compute: str, kv: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI4))
    _check(model, _requests(8, 3), compute, EXACT, (8,), kv=kv)


@pytest.mark.parametrize(("compute", "decode"), WAYS)
def test_copied_prompts(tmp_path: Path, compute: str, decode: str) -> None:
    """The same prompt again, and prompts with the same beginning, while it is computed and later."""
    model = models.load(write_tiny(tmp_path / "m.gguf", types=TensorType.Q4_1))
    shared = replace(_request(0, 90, 4), logprobs=3)
    longer = [replace(shared, prompt=[*shared.prompt[:70], *range(i, i + size)]) for i, size in enumerate((1, 4, 30))]
    _check(model, [shared, *longer, shared, shared], compute, decode, (6,))


@pytest.mark.parametrize("compute", ["fp32", "bf16", "int16"])
def test_a_planted_order_of_sums_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: str) -> None:
    """Five rows and more are summed in another order."""
    model = models.load(write_tiny(tmp_path / "m.gguf", types=TensorType.Q4_1))
    monkeypatch.setattr(DecodingOperations, "linear", staticmethod(kernels.linear))
    with pytest.raises(AssertionError, match="of 8 requests"):
        _check(model, _requests(8, 3), compute, EXACT, (3, 8))


def test_a_planted_division_of_prompts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tokens of a prompt are computed as next tokens, if others wait."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    monkeypatch.setattr(scheduler, "piece", min)
    with pytest.raises(AssertionError, match="of 8 requests"):
        _check(model, _requests(8, 3), "bf16", EXACT, (8,))
