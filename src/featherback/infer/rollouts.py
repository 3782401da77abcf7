"""Answers that a model writes in a training run: many at once, drawn by keys, with their log-probabilities.

The tokens of an answer depend on the key of its random numbers, the prompt and the adapter, not on the answers that are
written at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.noise import Key, bits
from featherback.engine.backend.counting import Work
from featherback.infer.cache import cache_bytes
from featherback.infer.joint_needs import HasLayout, decoding_work, joint_needs
from featherback.infer.key_cache import EXACT
from featherback.infer.layout import Layout
from featherback.infer.loaded import loaded_bytes
from featherback.infer.needs import CODE
from featherback.infer.sampler import Sampler
from featherback.infer.scheduler import Scheduler
from featherback.infer.tickets import Emitted, Request, Ticket
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model

_SCALE = 2.0**-53
SMALL = 64, 256, 256
"""Chunk, MLP tile and vocabulary tile of passes that do not keep the weights in memory."""


class Draws:
    """Draws tokens at temperature 1 from the whole vocabulary. A key draws the same tokens from the same logits."""

    def __init__(self, key: Key) -> None:
        self._key, self._drawn = key, 0

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Return the next token's id, from logits (vocab,)."""
        chance = int(bits(self._key, 1, self._drawn)[0] >> np.uint64(11)) * _SCALE
        self._drawn += 1
        sums = np.cumsum(np.exp(logits - logits.max(), dtype=np.float64))
        return min(int(np.searchsorted(sums, chance * sums[-1], side="right")), logits.size - 1)


class Asked(NamedTuple):
    """An answer that is wanted. `key`: of its random numbers; None: the likeliest tokens."""

    prompt: Sequence[int]
    key: Key | None


@dataclass
class Written:
    """An answer. Its tokens include the end token if it has `ended`."""

    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    """Natural logarithm of each token's probability when it was chosen, at temperature 1."""
    ended: bool = False


class _Answer(Ticket):
    """A ticket that also keeps the end token, which is learned like the others."""

    def __init__(self, request: Request, ends: Collection[int]) -> None:
        super().__init__(request)
        self.written, self._ends = Written(), ends

    def emit(self, token: Emitted) -> None:
        assert token.logprob is not None
        self.written.tokens.append(token.token)
        self.written.logps.append(token.logprob)
        if token.token in self._ends:
            self.written.ended = True
            self.cancel()


@dataclass(frozen=True)
class Desk:
    """What answers are written with. `capacity`: most tokens of a prompt with its answer. `slots`: answers at once."""

    model: Model
    adapter: HasLayout | None
    capacity: int
    compute: str
    layout: Layout
    slots: int

    @cached_property
    def memory(self) -> int:
        """Bytes for what changes with the answers: keys and values, and the adapter."""
        more = self._needs([self.adapter]).scratch - self._needs([]).scratch if self.adapter else 0
        return self.slots * cache_bytes(self.model.blocks, self.capacity, EXACT) + self._adapter_bytes + more

    @cached_property
    def private_bytes(self) -> int:
        """Bytes of memory that writing takes, without mapped weights."""
        needed = self._needs([])
        return needed.total - needed.weights + self.memory + CODE

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the model's file that are mapped."""
        return self._needs([]).weights

    @cached_property
    def work(self) -> Work:
        """The work of a pass for the next token of all answers."""
        return decoding_work(self.model, self.adapter, self.slots, self.capacity, self.compute, self.layout)

    def write(
        self, asked: Sequence[Asked], most: int, ends: Collection[int], check: Callable[[], None]
    ) -> list[Written]:
        """Return an answer of at most `most` tokens to each prompt. `check` is called between passes; it may raise."""
        adapter: Any = self.adapter
        tickets = [
            _Answer(
                Request(
                    each.prompt, Sampler() if each.key is None else Draws(each.key), most, adapter=adapter, logprobs=0
                ),
                ends,
            )
            for each in asked
        ]
        waiting = deque(tickets)
        with self._scheduler() as scheduler:
            while waiting or scheduler.busy:
                check()
                while waiting and scheduler.admit(waiting[0]):
                    waiting.popleft()
                scheduler.step()
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error
        return [ticket.written for ticket in tickets]

    @contextmanager
    def _scheduler(self) -> Iterator[Scheduler]:
        scheduler = Scheduler(
            self.model, self.capacity, self.compute, self.layout, self.slots, self.memory, EXACT, wake=lambda: None
        )
        try:
            yield scheduler
        finally:
            scheduler.close()

    def _needs(self, adapters: Sequence[HasLayout]) -> Any:
        return joint_needs(self.model, adapters, self.slots, self.capacity, self.compute, self.layout)

    @property
    def _adapter_bytes(self) -> int:
        adapter: Any = self.adapter
        return 0 if adapter is None else loaded_bytes(adapter)


def layout_of(plan: Plan) -> Layout:
    """Return the layout in which a run with this plan writes answers."""
    return Layout() if plan.weights == "resident" else Layout(plan.weights, "ram", *SMALL)


@dataclass(frozen=True)
class Writing:
    """The answers of a step, for the planner: `most` of up to `answer_tokens` tokens, with prompts of up to `capacity`.

    `beside`: further bytes of memory that writing takes, such as those of the tokenizer.
    """

    model: Model
    adapter: HasLayout | None
    capacity: int
    most: int
    answer_tokens: int
    beside: int
    _desks: dict[Any, Desk] = field(default_factory=dict, compare=False)

    def desk(self, plan: Plan) -> Desk:
        """Return what answers are written with under a plan."""
        assert plan.slots is not None
        layout, slots = layout_of(plan), min(plan.slots, self.most)
        key = layout, slots, plan.compute
        if key not in self._desks:
            self._desks[key] = Desk(self.model, self.adapter, self.capacity, plan.compute, layout, slots)
        return self._desks[key]

    def needs(self, plan: Plan) -> tuple[int, int]:
        """Return the bytes of memory that writing takes, and the bytes of the model's file that it maps."""
        desk = self.desk(plan)
        return desk.private_bytes + self.beside, desk.mapped_bytes

    def passes(self, plan: Plan) -> int:
        """Return the most passes over the weights in a step."""
        return -(-self.most // self.desk(plan).slots) * self.answer_tokens

    def work(self, plan: Plan) -> Work:
        """Return the work of a pass."""
        return self.desk(plan).work
