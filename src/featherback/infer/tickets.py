"""Requests for answers, and the tickets on which the answers arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Condition
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError
from featherback.infer.sampler import likeliest
from featherback.models.adapter import Adapter

Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = ("mean", "last")
FinishReason = Literal["stop", "length", "cancelled"]


class BusyError(FeatherbackError):
    """Raised for a request that cannot be accepted now. The same request may be accepted later."""


@dataclass(frozen=True)
class Request:
    """What one answer needs.

    `client`: requests of one client are answered one after the other, in the order of submission, and clients take
    turns. "": the request is a client of its own, so that it waits for no other answer. `logprobs`: how many of the
    most likely tokens to report beside each token; 0: only the token's own log-probability; None: nothing.
    `holds`: bytes that whoever asks needs for what the answer brings, from the first pass until `Ticket.release`.
    `sampler` is used for this request only, because drawing changes it. Requests with the same `adapter` object share
    its values.
    """

    prompt: Sequence[int]
    sampler: Callable[[NDArray[np.float32]], int]
    max_tokens: int
    end_ids: Collection[int] = ()
    adapter: Adapter | None = None
    client: str = ""
    logprobs: int | None = None
    holds: int = 0


class Emitted(NamedTuple):
    """A token of an answer."""

    token: int
    logprob: float | None = None  # natural logarithm of its probability at temperature 1; None: not asked for
    top: Sequence[tuple[int, float]] = ()  # the most likely tokens with their log-probabilities, the likeliest first


@dataclass(frozen=True)
class Usage:
    """How many tokens a request has used so far."""

    prompt_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt that were not computed, because an earlier request had computed them."""
    completion_tokens: int = 0


class Ticket:
    """The answer to a request. It may be read and cancelled in any thread.

    Iterating yields the tokens as they come, without the end token. It ends with the answer, and raises `error` if the
    answer failed.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.usage = Usage(len(request.prompt))
        self.finish_reason: FinishReason | None = None
        """Why the answer ended: an end token, `max_tokens` or a full context, or `cancel`. None: not yet, or failed."""
        self.error: Exception | None = None
        """Why the answer failed: a FeatherbackError, unless there is a bug."""
        self.cancelled = self.released = False
        self._changed = Condition()
        self._emitted: deque[Emitted] = deque()
        self._listener: Callable[[], object] | None = None

    @property
    def client(self) -> str:
        """The client of the request."""
        return self.request.client

    @property
    def done(self) -> bool:
        """Whether the answer has ended. Some of its tokens may not have been read yet."""
        return self.finish_reason is not None or self.error is not None

    def __iter__(self) -> Iterator[Emitted]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._emitted or self.done)
            found, ended = self.take(), self.done
            yield from found
            if ended and not self._emitted:
                break
        if self.error is not None:
            raise self.error

    def take(self) -> list[Emitted]:
        """Return the tokens that have come since the last call, without waiting."""
        with self._changed:
            found = [*self._emitted]
            self._emitted.clear()
        return found

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` after each change: a token or the end. It is called once now, later in the batcher's thread,
        and must return at once.
        """
        self._listener = listener
        listener()

    def cancel(self) -> None:
        """End the answer before the next pass and free its memory. Does nothing if the answer has ended."""
        self.cancelled = True

    def release(self) -> None:
        """Note that what the answer brought is not held any more."""
        self.released = True

    # The rest is for the batcher.

    def emit(self, token: Emitted) -> None:
        """Add a token to the answer."""
        with self._changed:
            self.usage = replace(self.usage, completion_tokens=self.usage.completion_tokens + 1)
            self._emitted.append(token)
            self._changed.notify_all()
        self._tell()

    def finish(self, reason: FinishReason | None = None, error: Exception | None = None) -> None:
        """End the answer, with a reason or an error."""
        with self._changed:
            self.finish_reason, self.error = reason, error
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener()


class HiddenStates(Ticket):
    """The last hidden states of a text, which are computed like a prompt: all of them, their mean, or the last one."""

    def __init__(self, request: Request, pooling: Pooling | None) -> None:
        super().__init__(request)
        self._pooling, self._states = pooling, list[NDArray[Any]]()

    def result(self) -> NDArray[Any]:
        """Wait for the hidden states (T, D), or what they are pooled to (D,), and return it. Raises `error` if there
        is one.
        """
        for _ in self:  # there are no tokens
            pass
        if self.finish_reason == "cancelled":
            raise BusyError("The model has been closed, so it takes no more requests.")
        if self._pooling is None:
            return np.concatenate(self._states)
        return self._states[0] / (len(self.request.prompt) if self._pooling == "mean" else 1)

    def add(self, states: NDArray[np.float32]) -> None:
        """Add the states (n, D) of the next tokens. For the batcher."""
        if self._pooling is None:
            self._states.append(states)
        elif self._pooling == "last":
            self._states = [states[-1].astype(np.float64)]
        else:
            self._states = [sum(self._states, states.sum(axis=0, dtype=np.float64))]

    def restart(self) -> None:
        """Forget the states, because they are computed again. For the batcher."""
        self._states.clear()


def emitted(logits: NDArray[np.float32], token: int, alternatives: int | None) -> Emitted:
    """Return a token that was chosen from logits (vocab,), with the log-probabilities that the request asks for."""
    if alternatives is None:
        return Emitted(token)
    top = float(logits.max())
    log_sum = top + float(np.log(np.exp(logits - top, dtype=np.float64).sum()))
    likely = likeliest(logits, alternatives) if alternatives else ()
    found = [(int(each), float(logits[each]) - log_sum) for each in likely]
    return Emitted(token, float(logits[token]) - log_sum, found)
