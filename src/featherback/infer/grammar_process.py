"""Follow JSON schemas in separate, limited processes: `python -m featherback.infer.grammar_process`.

A schema is a program for llguidance, and nothing about its text says how long that program runs or how much memory it
takes, when it is compiled or later, at any token (docs/decisions/serving.md). So this process makes the tables of a
vocabulary once, and forks a process for each request, whose CPU time and memory the system limits.

Standard input is a socket. It first carries the vocabulary, and then orders of 8 bytes: 0, with a socket's descriptor,
asks for a process that follows a schema on that socket, and is answered with its id; an id asks for that process to be
killed, and is answered with its exit status.
"""

from __future__ import annotations

import gc
import marshal
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from featherback.core.system import limits, processes, signals

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

COMPILE_SECONDS, TOKEN_SECONDS = 1.0, 0.5
"""CPU time for a schema, and for each token of its answers."""
ORDER, SCHEMA, TAKEN, ABOUT = (struct.Struct(form) for form in ("<q", "<qI", "<cIi", "<cI"))
"""An order; memory and number of answers before a schema; a token and its answer; a kind and its answer."""
MASK, FAILED, ENCODE = b"M", b"!", b"E"
"""Kinds: the tokens that may come next, as bits; a message of llguidance; a text of which the token ids are needed."""
TOKEN, IDS = b"T", b"I"
"""Kinds of what comes back: a token of an answer; the token ids of a text."""

_SPACE = r" |\n {0,24}"
"""White space between parts of a JSON text. Any amount would be valid, and a small model might write nothing else."""
_STATES = 10_000  # of the automaton that divides a text into parts
_LONGEST_TEXT = 4096  # bytes of a text whose token ids are needed; only the first id decides
_SIZE = struct.Struct("<I")


def send(stream: socket.socket, *parts: bytes) -> None:
    """Send a message."""
    stream.sendall(b"".join((_SIZE.pack(sum(map(len, parts))), *parts)))


def receive(stream: socket.socket) -> bytes:
    """Return a message. Raises EOFError if the other side has gone."""
    [size] = _SIZE.unpack(_exactly(stream, _SIZE.size))
    return _exactly(stream, size)


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        with suppress(ConnectionError):
            if piece := stream.recv(size - len(found)):
                found += piece
                continue
        raise EOFError
    return bytes(found)


def main() -> None:
    """Make the tables, then follow orders until standard input ends."""
    signals.ignore_interrupts()  # the parent process handles Ctrl-C
    limits.leave_no_core()
    orders = socket.socket(fileno=0)
    vocabulary = _Vocabulary(*marshal.loads(receive(orders)))
    from llguidance import LLTokenizer, TokenizerWrapper

    tables = LLTokenizer(TokenizerWrapper(vocabulary), eos_token=vocabulary.end_ids)
    vocabulary.tokens.clear()
    gc.collect()
    gc.freeze()  # so that the collector does not write on memory that the processes share
    used, children = limits.address_space(), set[int]()
    orders.sendall(ORDER.pack(0))
    while True:
        words, descriptors, *_ = socket.recv_fds(orders, ORDER.size, 1, socket.MSG_WAITALL)
        if not words:
            break
        [pid] = ORDER.unpack(words)
        if pid:
            os.kill(pid, signal.SIGKILL)
            children.remove(pid)
            orders.sendall(ORDER.pack(os.waitpid(pid, 0)[1]))
            continue
        if (pid := os.fork()) == 0:
            orders.close()
            _follow(socket.socket(fileno=descriptors[0]), tables, vocabulary, used)
        os.close(descriptors[0])
        children.add(pid)
        orders.sendall(ORDER.pack(pid))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


class _Vocabulary:
    """A vocabulary in the form that llguidance's TokenizerWrapper reads."""

    def __init__(
        self, tokens: list[bytes], end_ids: list[int], bos_id: int | None, special_token_ids: list[int]
    ) -> None:
        self.tokens, self.end_ids, self.special_token_ids = tokens, end_ids, special_token_ids
        self.eos_token_id, self.bos_token_id = end_ids[0], bos_id
        self.encode: Callable[[bytes], list[int]] = lambda text: []

    def __call__(self, text: bytes) -> list[int]:
        return self.encode(text)


def _follow(stream: socket.socket, tables: LLTokenizer, vocabulary: _Vocabulary, used: int | None) -> NoReturn:
    """Follow one schema until the other side has gone. `used`: bytes of address space before that."""
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        processes.name("schema")
        request, taken = receive(stream), deque[bytes]()
        memory, count = SCHEMA.unpack_from(request)
        if used is not None:
            limits.limit_memory(used + memory)

        def encode(text: bytes) -> list[int]:
            send(stream, ABOUT.pack(ENCODE, 0), text[:_LONGEST_TEXT])
            while not (reply := receive(stream)).startswith(IDS):
                taken.append(reply)
            return [*marshal.loads(reply[1:]), *tables.greedy_tokenize(text[_LONGEST_TEXT:].decode(errors="replace"))]

        vocabulary.encode = encode
        try:
            limits.limit_time(COMPILE_SECONDS)
            matcher = _compiled(tables, request[SCHEMA.size :].decode())
            mask = matcher.compute_bitmask()
            matchers = [matcher, *(matcher.deep_copy() for _ in range(1, count))]
            _answer(stream, 0, matcher, mask)
            while True:
                limits.limit_time(0)
                _, number, token = TAKEN.unpack(taken.popleft() if taken else receive(stream))
                limits.limit_time(TOKEN_SECONDS)
                matcher = matchers[number]
                mask = matcher.compute_bitmask() if matcher.consume_token(token) else b""
                _answer(stream, number, matcher, mask)
        except MemoryError:
            os.abort()
        except ValueError as error:
            send(stream, ABOUT.pack(FAILED, 0), str(error).encode())
    except BaseException:  # panics of the library are not Exceptions; the exit status tells
        os._exit(1)
    os._exit(0)


def _compiled(tables: LLTokenizer, schema: str) -> LLMatcher:
    """Return the matcher of a schema, at the start of an answer. Raises ValueError."""
    from llguidance import LLMatcher, LLParserLimits

    text = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": _SPACE})
    most = LLParserLimits(max_lexer_states=_STATES, verbose_errors=False)
    matcher = LLMatcher(tables, text, log_level=0, limits=most)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def _answer(stream: socket.socket, number: int, matcher: LLMatcher, mask: bytes) -> None:
    """Send the tokens that may come next in an answer, or why none may."""
    if matcher.is_error() or not any(mask):
        send(stream, ABOUT.pack(FAILED, number), b"The schema is too complex, or no value fits it")
    else:
        send(stream, ABOUT.pack(MASK, number), mask)


if __name__ == "__main__":
    main()
