"""Answers that are JSON, or JSON of a schema: only tokens that a grammar allows are drawn.

llguidance keeps a grammar's state, and says which tokens may follow. It runs in processes of its own
(`grammar_process.py`), one for each request, which are stopped if a schema takes too much time or memory.
"""

from __future__ import annotations

import json
import marshal
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.core.messages import receive, send
from featherback.core.sizes import MB, shown_mb
from featherback.core.system import branches, signals
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer import grammar_process
from featherback.infer.grammar_process import (
    ABOUT,
    COMPILE_SECONDS,
    ENCODE,
    IDS,
    MASK,
    SCHEMA,
    TAKEN,
    TOKEN,
    TOKEN_SECONDS,
)

MOST_BYTES = 64_000
"""The longest schema as JSON."""
MEMORY = 64 * MB
"""The most bytes that following one schema may take."""
MEMORY_IN_BUDGET, PROCESS = 7 * MB, 5 * MB
"""The same within a memory budget, and what a process takes besides, because it changes what it shares: measured."""
_SAID = {
    "recursion limit": "The schema is nested too deeply.",
    "coerce_one_of": "The schema has a oneOf whose choices overlap. Use anyOf.",
    "determine if regex is empty": "Too many patterns of the schema apply to the same text.",
    "retriever": 'A $ref of the schema must point into the schema, such as "#/$defs/name".',
}
"""A part of a message of llguidance -> our sentence."""
_LONGEST = 300
"""The most characters of a message of llguidance."""
_SMALL_HEAP = {"MALLOC_MMAP_THRESHOLD_": "16384"}
"""Makes glibc return what was used to make the tables, which processes could use beyond their limit."""


def check_installed() -> None:
    """Raise FeatherbackError if llguidance is not installed."""
    if find_spec("llguidance") is None:
        raise FeatherbackError(
            "JSON mode needs llguidance, which this Python does not have: pip install 'featherback[serve]'."
        )


class Grammars:
    """Follows schemas with the tokens of a tokenizer, in processes that end with this object. Used in any thread.

    Raises FeatherbackError if llguidance is not installed, or if the tokenizer does not give the bytes of its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, memory: int = MEMORY) -> None:
        """`memory`: the most bytes that following one schema may take. Returns when the tables are made."""
        check_installed()
        if not tokenizer.end_ids:
            raise FeatherbackError("JSON mode needs a token that ends an answer, and the model's file names none.")
        self._tokenizer, self.memory = tokenizer, memory
        tokens = [tokenizer.core.token_bytes(token) for token in range(tokenizer.n_vocab)]
        words = (tokens, sorted(tokenizer.end_ids), tokenizer.bos_id, [*tokenizer.control.values()])
        with _ended():
            self._processes = branches.Branches(grammar_process.__name__, marshal.dumps(words), _SMALL_HEAP)
        self.each = self._processes.each
        """What a process takes besides, because Windows' processes do not share the tables."""
        self.close = weakref.finalize(self, self._processes.close)

    def start(self, schema: Mapping[str, Any], count: int = 1) -> Schema:
        """Begin to compile a schema for `count` answers in a process of its own, and return at once.

        Raises FeatherbackError if the schema is too long.
        """
        text = json.dumps(schema).encode()
        if len(text) > MOST_BYTES:
            raise FeatherbackError(f"The schema has {len(text)} bytes; at most {MOST_BYTES} are supported.")
        with _ended():
            number, stream = self._processes.begin()
        send(stream, SCHEMA.pack(self.memory, count), text)
        return Schema(self, self._tokenizer, number, stream, count)

    def json(self, schema: Mapping[str, Any], count: int = 1) -> Schema:
        """Return the compiled schema. Raises FeatherbackError as `start` and `Schema.read` do."""
        compiling = self.start(schema, count)
        while not compiling.read():
            pass
        return compiling

    def end(self, number: int) -> int:
        """End a process that follows a schema, and return its exit status."""
        with _ended():
            return self._processes.end(number)


@contextmanager
def _ended() -> Iterator[None]:
    try:
        yield
    except OSError:
        raise FeatherbackError("The process of JSON mode has ended. Start the server again.") from None


class Schema:
    """A schema that a process follows in one answer or several. Used by one thread at a time."""

    def __init__(self, owner: Grammars, tokenizer: Tokenizer, number: int, stream: socket.socket, count: int) -> None:
        self._tokenizer, self._stream, self._ends, self._memory = tokenizer, stream, tokenizer.end_ids, owner.memory
        self._masks: dict[int, bytes] = {}  # of each answer, unless the process is computing it; b"": none may follow
        self._compiled, self._failure = False, FeatherbackError("The answer has ended.")
        self._count = count
        self.close = weakref.finalize(self, _stop, owner, number, stream)
        """Ends the process. Nobody may read or write any more. May be called several times."""

    def answer(self, number: int) -> Grammar:
        """Return what may follow in one of the answers."""
        return Grammar(self, number)

    def fileno(self) -> int:
        """The descriptor that can be read when `read` will not wait."""
        return self._stream.fileno()

    def read(self) -> bool:
        """Wait for a message of the process. Return whether the schema is compiled.

        Raises FeatherbackError if it is not valid, uses a keyword that llguidance does not support, or takes too much
        time or memory, and if no value fits it.
        """
        try:
            message = receive(self._stream)
        except (EOFError, OSError):
            if (status := self.close()) is not None:
                self._failure = self._ended(status)
            raise self._failure from None
        (kind, number), rest = ABOUT.unpack_from(message), message[ABOUT.size :]
        if kind == ENCODE:
            ids = self._tokenizer.encode(rest.decode(errors="replace"), continues=True)
            self._send(IDS + marshal.dumps(ids))
        elif self._compiled:
            self._masks[number] = rest if kind == MASK else b""
        elif kind == MASK:
            self._masks, self._compiled = dict.fromkeys(range(self._count), rest), True
        else:
            self.close()
            raise FeatherbackError(_sentence(rest.decode(errors="replace")))
        return self._compiled

    def mask(self, number: int) -> bytes:
        """Return which tokens may come next in an answer, as bits. Raises FeatherbackError if none may."""
        while number not in self._masks:
            self.read()
        if not self._masks[number]:
            raise FeatherbackError("The answer cannot go on: the schema is too complex.")
        return self._masks[number]

    def take(self, number: int, token: int) -> None:
        """Append a token to an answer. Its next mask is computed while the caller does other work."""
        if token not in self._ends:
            self.mask(number)  # whatever was taken before must be answered
            del self._masks[number]
            self._send(TAKEN.pack(TOKEN, number, token))

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # the process ended, as `read` will find
            send(self._stream, message)

    def _ended(self, status: int) -> FeatherbackError:
        """Return the error for the end of the process with an exit status."""
        if status == signals.TOO_LONG:
            limit = (
                f"{TOKEN_SECONDS:g} s of CPU time for a token"
                if self._compiled
                else f"{COMPILE_SECONDS:g} s of CPU time"
            )
        elif status in signals.NO_MEMORY:
            limit = f"{shown_mb(self._memory)} of memory"
        else:
            return FeatherbackError(f"The schema cannot be followed: llguidance ended with status {status}.")
        return FeatherbackError(f"The schema needs more than {limit} and was stopped.")


@dataclass(frozen=True)
class Grammar:
    """What may follow the tokens of one answer so far."""

    schema: Schema
    number: int

    def allowed(self, count: int) -> NDArray[np.bool_]:
        """Return which of `count` tokens may come next. Raises FeatherbackError if the schema takes too much."""
        mask = np.frombuffer(self.schema.mask(self.number), np.uint8)
        found = np.zeros(count, np.bool_)
        bits = np.unpackbits(mask, count=min(count, 8 * mask.size), bitorder="little")
        found[: bits.size] = bits
        return found

    def take(self, token: int) -> None:
        """Append a token that is allowed."""
        self.schema.take(self.number, token)


@dataclass
class Constrained:
    """A sampler that draws tokens that a grammar allows."""

    sampler: Callable[[NDArray[np.float32]], int]
    grammar: Grammar

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Return the next token's id, from logits (vocab,)."""
        token = self.sampler(np.where(self.grammar.allowed(logits.size), logits, -np.float32(np.inf)))
        self.grammar.take(token)
        return token


def _stop(owner: Grammars, number: int, stream: socket.socket) -> int:
    """End a process that follows a schema, and return its exit status."""
    stream.close()
    with suppress(FeatherbackError):
        return owner.end(number)
    return 0


def _sentence(said: str) -> str:
    """Return one sentence about what llguidance says."""
    for mark, sentence in _SAID.items():
        if mark in said:
            return sentence
    if said.startswith("regex"):
        said = f"A pattern of the schema is not valid: {said.rpartition('error:')[2]}"
    return f"{' '.join(said.split()).rstrip('.')[:_LONGEST]}."
