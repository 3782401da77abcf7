"""Decoding for several requests at once: tokens per second of 1 to 16 requests, in one process.

The counts take turns, so that other work on the machine slows all of them. Only decoding is timed, after the first
token of every answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

COUNTS = (1, 2, 4, 8, 16)
PROMPT, ANSWER, ROUNDS = 16, 32, 3  # tokens, tokens, times that each count is measured
RANK = 8


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row without adapters, one with the same adapter for all requests, and one with another for each."""
    return {
        "base": partial(_row, place, 0),
        "one-adapter": partial(_row, place, 1),
        "adapter-each": partial(_row, place, max(COUNTS)),
    }


def _row(place: Place, adapters: int) -> Row:
    """Tokens per second by count, the median of all rounds, and the median ratio to a single request's."""
    from featherback import models
    from featherback.engine import kernels
    from featherback.infer import CHAT_DECODE
    from featherback.infer.batching import Batcher
    from featherback.infer.layout import Layout
    from featherback.models.adapter import LoRA
    from featherback.models.hub.locate import locate

    model = models.load(locate(place.chat_model))
    loaded = [LoRA(model, rank=RANK, seed=seed) for seed in range(adapters)] or [None]
    batcher = Batcher(model, capacity=PROMPT + ANSWER, layout=Layout(decode=CHAT_DECODE))
    answer = max(4, place.steps(ANSWER))
    try:
        for count in COUNTS:  # adapters and weights are read
            _speed(batcher, count, loaded, 4)
        rounds = [
            {count: _speed(batcher, count, loaded, answer) for count in COUNTS} for _ in range(place.steps(ROUNDS))
        ]
    finally:
        batcher.close()
    return {
        "model": model.path.name,
        "threads": kernels.threads(),
        "decode": CHAT_DECODE,
        "tokens_per_second": {str(n): round(median(each[n] for each in rounds), 1) for n in COUNTS},
        "ratios": {str(n): round(median(each[n] / each[1] for each in rounds), 2) for n in COUNTS},
    }


def _speed(batcher: Any, count: int, adapters: list[Any], answer: int) -> float:
    """Tokens per second of `count` requests together."""
    from featherback.infer.batching import Request
    from featherback.infer.sampler import Sampler

    vocabulary = batcher.model.config.vocab_size
    prompts = [[(7 * i + 13 * number + 100) % vocabulary for i in range(PROMPT)] for number in range(count)]
    tickets = [
        batcher.submit(Request(prompt, Sampler(), answer, adapter=adapters[number % len(adapters)]))
        for number, prompt in enumerate(prompts)
    ]
    for ticket in tickets:
        next(iter(ticket))
    done = sum(ticket.usage.completion_tokens for ticket in tickets)
    start = time.perf_counter()
    for ticket in tickets:
        list(ticket)
    return (count * answer - done) / (time.perf_counter() - start)
