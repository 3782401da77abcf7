"""Answer many requests with one copy of the weights.

A thread makes one pass after another. In turns, it computes a chunk of prompts, and then the next token of every answer
in one pass over the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import TypeVar

import numpy as np

from featherback.core.naming import argument_is
from featherback.engine import kernels
from featherback.engine.host.scattered import check_ids
from featherback.errors import FeatherbackError
from featherback.infer.key_cache import EXACT
from featherback.infer.layout import Layout
from featherback.infer.prefix_files import PrefixFiles
from featherback.infer.sampler import Sampler
from featherback.infer.scheduler import Scheduler
from featherback.infer.tickets import POOLINGS, BusyError, Emitted, HiddenStates, Pooling, Request, Ticket, Usage
from featherback.infer.waiting import Waiting
from featherback.models.adapter import Adapter
from featherback.models.model import Model

__all__ = ["POOLINGS", "Batcher", "BusyError", "Emitted", "Pooling", "Request", "Ticket", "Usage"]

AnyTicket = TypeVar("AnyTicket", bound=Ticket)
WAITING, SLOTS = 1024, 16
"""Requests that may wait for an answer, and requests that are answered at the same time."""


class Batcher:
    """Answers requests in a thread of its own, until it is closed."""

    def __init__(
        self,
        model: Model,
        *,
        capacity: int | None = None,
        compute: str = "bf16",
        layout: Layout = Layout(),  # noqa: B008 - it cannot change
        kv: str = EXACT,
        slots: int = SLOTS,
        memory: int | None = None,
        waiting: int = WAITING,
        folder: Path | None = None,
        prefixes: PrefixFiles | None = None,
    ) -> None:
        """`capacity`: the most tokens of a prompt and its answer; None: as many as the model supports. `kv`: the type
        of keys and values. `slots`: how
        many requests are answered at the same time. `memory`: bytes for what changes with the requests: their caches
        and adapters, and prefixes of texts that are kept for later requests; None: no limit. `waiting`: how many
        requests may wait. `folder`: for files of requests that do not fit in the memory; None: they are rejected.
        `prefixes`: files for prefixes that later processes find; None: prefixes stay in memory.
        """
        kernels.check_compute(compute)
        self.on_close: Callable[[], object] = lambda: None  # what `close` calls last
        self.model = model
        most = model.config.max_position_embeddings
        self.capacity = min(capacity or most, most)
        self._most_waiting = waiting
        self._changed = Condition()
        self._waiting = Waiting[Ticket]()
        self._forgotten: list[Adapter] = []
        self._closed = False
        self._failure: Exception | None = None  # the bug that ended the thread
        self._scheduler = Scheduler(
            model, self.capacity, compute, layout, slots, memory, kv, self._wake, folder, prefixes
        )
        self._thread = Thread(target=self._run, name="featherback-batcher", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Ticket:
        """Queue a request and return its ticket. May be called in any thread.

        Raises BusyError if too many requests wait, BudgetError if the memory is too small for this one, and
        FeatherbackError if it can never be answered for another reason.
        """
        if request.max_tokens < 1:
            raise FeatherbackError(f"{argument_is('max_tokens', request.max_tokens)}; it must be at least 1.")
        if (size := len(request.prompt)) >= self.capacity:
            raise FeatherbackError(
                f"The prompt has {size} tokens, but the context holds {self.capacity}, and an answer needs at least "
                "one. Shorten the prompt."
            )
        return self._queue(Ticket(request))

    def embed(
        self, tokens: Sequence[int], adapter: Adapter | None = None, pooling: Pooling | None = None, holds: int = 0
    ) -> HiddenStates:
        """Queue a text, and return the ticket of its last hidden states, after the final norm.

        `pooling`: None: all of them are the result. Raises the errors of `submit`.
        """
        if (size := len(tokens)) > self.capacity:
            raise FeatherbackError(f"The text has {size} tokens, but the context holds {self.capacity}. Shorten it.")
        request = Request(tokens, Sampler(), 0, adapter=adapter, holds=holds)
        return self._queue(HiddenStates(request, pooling))

    def forget(self, adapter: Adapter) -> None:
        """Free what is kept of an adapter: its values, and prefixes that were computed with it.

        Requests that use it already are answered first. Later ones may use it again. An adapter object that nobody
        refers to any more is forgotten by itself.
        """
        with self._changed:
            self._forgotten.append(adapter)
            self._changed.notify_all()

    def close(self) -> None:
        """End all answers and free the memory."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self.on_close()

    def _queue(self, ticket: AnyTicket) -> AnyTicket:
        """Check what all requests have in common, and queue the ticket."""
        request = ticket.request
        if not request.prompt:
            raise FeatherbackError("The prompt is empty.")
        check_ids(np.asarray(request.prompt, np.int64), self.model.embed_tokens.rows)
        if request.adapter is not None and request.adapter.outputs:
            raise FeatherbackError("The adapter ends in a head that scores texts, so it cannot write any.")
        self._scheduler.check_size(ticket)
        self.model.check_open()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise BusyError("The model has been closed, so it takes no more requests.")
            if len(self._waiting) >= self._most_waiting:
                raise BusyError(f"{len(self._waiting)} requests are waiting already. Send this one again later.")
            self._waiting.add(ticket)
            self._changed.notify_all()
        return ticket

    def _run(self) -> None:
        try:
            self._answer()
        except Exception as error:  # a bug: nobody may wait for the thread any more
            self._failure = error
        with self._changed:
            self._closed = True
            left = [*self._waiting]
        try:
            self._scheduler.close(self._failure)
        finally:
            for ticket in left:
                ticket.finish("cancelled" if self._failure is None else None, self._failure)

    def _answer(self) -> None:
        """Answer requests until the batcher is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed:
                    break
                forgotten, self._forgotten = self._forgotten, []
            for adapter in forgotten:
                self._scheduler.forget(adapter)
            self._admit()
            ended = self._scheduler.step()
            with self._changed:
                for ticket in ended:
                    self._waiting.answered(ticket)

    def _wake(self) -> None:
        """Let the thread look for work. An adapter that nobody uses any more calls this, in any thread."""
        with self._changed:
            self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._closed or self._forgotten or self._scheduler.busy or self._waiting.next() is not None)

    def _admit(self) -> None:
        """Let waiting requests take part in the next passes, as long as slots and memory are free."""
        with self._changed:
            cancelled = [each for each in self._waiting if each.cancelled]
            for ticket in cancelled:
                self._waiting.remove(ticket)
            following = self._waiting.next()
        for ticket in cancelled:  # without the lock: who listens may submit
            ticket.finish("cancelled")
        while following is not None and self._scheduler.admit(following):  # without the lock: an adapter may be loaded
            with self._changed:
                self._waiting.take(following)
                following = self._waiting.next()
