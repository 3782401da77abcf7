"""Answer many requests with one copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition, Lock, Thread

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument_is
from featherback.engine.host.scattered import check_ids
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.infer.generate import check_logits, common
from featherback.infer.layout import Layout
from featherback.infer.tickets import BusyError, Emitted, Request, Ticket, Usage
from featherback.infer.waiting import Waiting
from featherback.models.adapter import Adapter
from featherback.models.model import Model

__all__ = ["Batcher", "BusyError", "Emitted", "Request", "Ticket", "Usage"]

WAITING = 1024
"""Requests that may wait for an answer."""


class Batcher:
    """Answers requests in a thread of its own, until it is closed."""

    def __init__(
        self,
        model: Model,
        *,
        capacity: int | None = None,
        compute: str = "bf16",
        layout: Layout = Layout(),  # noqa: B008 - it cannot change
        folder: Path | None = None,
        waiting: int = WAITING,
    ) -> None:
        """`capacity`: the most tokens of a prompt and its answer; None: as many as the model supports. `folder`: where
        cache files are created. `waiting`: how many requests may wait.
        """
        self.on_close: Callable[[], object] = lambda: None  # what `close` calls last
        self.model = model
        most = model.config.max_position_embeddings
        self.capacity = min(capacity or most, most)
        self._compute, self._layout, self._folder, self._most_waiting = compute, layout, folder, waiting
        self._changed = Condition()
        self._lock = Lock()  # held while the decoder is in use
        self._waiting = Waiting()
        self._closed = False
        self._decoder: tuple[Adapter | None, Decoder] | None = None
        self._thread = Thread(target=self._run, name="featherback-batcher", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Ticket:
        """Queue a request and return its ticket. May be called in any thread.

        Raises BusyError if too many requests wait, and FeatherbackError if this one can never be answered.
        """
        if not request.prompt:
            raise FeatherbackError("The prompt is empty.")
        check_ids(np.asarray(request.prompt, np.int64), self.model.embed_tokens.rows)
        if request.max_tokens < 1:
            raise FeatherbackError(f"{argument_is('max_tokens', request.max_tokens)}; it must be at least 1.")
        if (size := len(request.prompt)) >= self.capacity:
            raise FeatherbackError(
                f"The prompt has {size} tokens, but the context holds {self.capacity}, and an answer needs at least "
                "one. Shorten the prompt."
            )
        ticket = Ticket(request)
        with self._changed:
            if self._closed:
                raise BusyError("The model has been closed, so it takes no more requests.")
            if len(self._waiting) >= self._most_waiting:
                raise BusyError(f"{len(self._waiting)} requests are waiting already. Send this one again later.")
            self._waiting.add(ticket)
            self._changed.notify_all()
        return ticket

    def embed(self, tokens: Sequence[int], adapter: Adapter | None = None) -> NDArray[np.float32]:
        """Return the last hidden states (T, D) of `tokens`, after the final norm. Waits for its turn.

        Raises FeatherbackError like `submit`.
        """
        with self._lock:
            decoder = self._decoder_of(adapter)
            decoder.rewind(0)
            return decoder.hidden(tokens)

    def close(self) -> None:
        """End all answers and free the memory."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self.on_close()

    def _run(self) -> None:
        while (ticket := self._next()) is not None:
            try:
                if ticket.cancelled:
                    ticket.finish("cancelled")
                else:
                    with self._lock:
                        self._answer(ticket)
            except Exception as error:  # the others go on
                ticket.finish(error=error)
            with self._changed:
                self._waiting.answered(ticket)
        for ticket in self._waiting:
            ticket.finish("cancelled")
        if self._decoder is not None:
            self._decoder[1].close()

    def _next(self) -> Ticket | None:
        """Wait for the next ticket and take it. None once the batcher is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting.next() is not None)
            if self._closed or (ticket := self._waiting.next()) is None:
                return None
            self._waiting.take(ticket)
            return ticket

    def _answer(self, ticket: Ticket) -> None:
        request = ticket.request
        decoder = self._decoder_of(request.adapter)
        known = decoder.rewind(common(decoder.tokens, request.prompt[:-1]))
        ticket.usage = Usage(len(request.prompt), known)
        logits = decoder.forward(request.prompt[known:])
        for count in range(1, request.max_tokens + 1):
            check_logits(logits, self.model)
            token = request.sampler(logits)
            if token in request.end_ids or ticket.cancelled:
                ticket.finish("cancelled" if ticket.cancelled else "stop")
                return
            ticket.emit(emitted(logits, token, request.logprobs))
            if count == request.max_tokens or len(decoder.tokens) == decoder.capacity:
                break
            logits = decoder.forward([token])
        ticket.finish("length")

    def _decoder_of(self, adapter: Adapter | None) -> Decoder:
        """Return the decoder of an adapter. The one of the last request is kept."""
        if self._decoder is not None and self._decoder[0] is adapter:
            return self._decoder[1]
        if self._decoder is not None:
            self._decoder[1].close()
            self._decoder = None
        decoder = Decoder(self.model, adapter, self.capacity, self._compute, self._layout, self._folder)
        self._decoder = adapter, decoder
        return decoder


def emitted(logits: NDArray[np.float32], token: int, alternatives: int | None) -> Emitted:
    """Return a token that was chosen from logits (vocab,), with the log-probabilities that the request asks for."""
    if alternatives is None:
        return Emitted(token)
    top = float(logits.max())
    log_sum = top + float(np.log(np.exp(logits - top, dtype=np.float64).sum()))
    likely = np.argsort(-logits, kind="stable")[:alternatives]
    found = [(int(each), float(logits[each]) - log_sum) for each in likely]
    return Emitted(token, float(logits[token]) - log_sum, found)
