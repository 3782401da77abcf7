"""Encode examples as token ids and masks. Later examples are started while an earlier one is finished.

The template's process renders conversations, and this process tokenizes them. Threads tokenize long texts block by
block. The tokens do not depend on the number of threads.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.containers.base import Document
from featherback.data.example import Bad, Example
from featherback.data.report import Synonym
from featherback.data.templates.chat import TRAINING_MOMENT, ChatTemplate, RewrittenError, one_answer_each
from featherback.data.templates.renderer import Renderer
from featherback.data.tokenizers.tokenizer import Ids, Tokenizer
from featherback.errors import FeatherbackError

_BLOCK = 1 << 16  # characters tokenized at once; this takes about 20 bytes per character
_BLOCK_AT_MOST = 4 * _BLOCK
_PIECE = re.compile("[^\n]{0,65535}\n|[^\n]{1,65536}")  # a line, or part of a long one
_SPACE = re.compile(r"(?<=\S) (?=\S)")
_MOST_THREADS = 4  # each takes about 1 MB
_AHEAD = 48  # most short examples in progress at once
_AHEAD_CHARACTERS = 1 << 17  # most characters in progress at once


@dataclass(frozen=True)
class Encoded:
    """An example as tokens."""

    ids: Ids
    mask: NDArray[np.bool_]
    """For each token, whether it is supervised."""
    spells_control: bool
    """Whether the text contains the name of a control token (it is encoded as plain text)."""
    rejected: Encoded | None = None
    """For a pair: the prompt with the rejected answer. The other fields hold the chosen one."""


class Encoder:
    """Encodes examples with a model's tokenizer and, for a chat model, its template.

    `ends`: whether a text ends with the end token, as texts do that a model learns to write. `renderer`: renders the
    template, for others as well; None to start one.
    """

    def __init__(self, tokenizer: Tokenizer, ends: bool = True, renderer: Renderer | None = None) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._template = ChatTemplate(tokenizer, renderer, TRAINING_MOMENT) if tokenizer.is_chat else None
        self._threads = min(_cores(), _MOST_THREADS)
        self.split = 0
        """Conversations that became several examples."""
        self._pool = ThreadPoolExecutor(self._threads)  # starts threads only when there is text to encode

    @property
    def renamed(self) -> dict[Synonym, int]:
        """The number of messages per role that the template does not know and that was replaced by its other name."""
        return {} if self._template is None else dict(self._template.renamed)

    @property
    def written_date(self) -> str | None:
        """The date that the template writes into the data; None if it writes none."""
        writes = self._template is not None and "strftime_now" in (self._tokenizer.chat_template or "")
        return f"{TRAINING_MOMENT:%Y-%m-%d}" if writes else None

    def start(self) -> None:
        """Start the template's process, if there is one."""
        if self._template is not None:
            self._template.start()

    def encode(self, example: Example) -> Encoded:
        """Encode one example. A text ends with the end token, and all of it is supervised."""
        return self._begin(example)()

    def encode_all(self, examples: Iterable[Example | Bad]) -> Iterator[tuple[Example, Encoded] | Example | Bad]:
        """Encode examples in order.

        If the template rewrites earlier turns, a conversation becomes one example for each trained answer. Examples
        that cannot be encoded come out as Bad, and long texts unchanged, for `stream`. An error while reading the
        examples is raised in order, as FeatherbackError.
        """
        waiting: deque[tuple[Example | Bad, Callable[[], Encoded] | None, int]] = deque()
        source = iter(examples)
        ahead, failure, ended = 0, None, False
        while waiting or not ended:
            while not ended and len(waiting) < _AHEAD and ahead < _AHEAD_CHARACTERS:
                try:
                    example = next(source)
                except StopIteration:
                    ended = True
                except FeatherbackError as error:
                    ended, failure = True, error
                else:
                    size = sum(map(len, _texts(example)))
                    ahead += size
                    finish = None  # None: passed through unchanged
                    if not isinstance(example, Bad) and not _is_streamed(example):
                        finish = self._begin_or_fail(example)
                    waiting.append((example, finish, size))
                    del example, finish
            if waiting:
                example, finish, size = waiting.popleft()
                ahead -= size
                if isinstance(example, Bad) or finish is None:
                    yield example
                else:
                    yield from self._encoded(example, finish)
        if failure is not None:
            raise failure

    def stream(self, pieces: Iterable[str]) -> Iterator[tuple[Ids, bool]]:
        """Encode a document in parts: BOS if the model uses it, the text, the end token. All of it is supervised.

        Each part comes with a flag: whether its text contains the name of a control token.
        """
        waiting: deque[Callable[[], tuple[Ids, bool]]] = deque()
        for begun in self._submit_blocks(pieces):
            waiting.append(begun)
            if len(waiting) > self._threads:
                yield waiting.popleft()()
        for finish in waiting:
            yield finish()
        yield self._end, False

    def close(self) -> None:
        """Stop the threads and drop blocks that have not started."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encoded(self, example: Example, finish: Callable[[], Encoded]) -> Iterator[tuple[Example, Encoded] | Bad]:
        try:
            yield example, finish()
        except RewrittenError as error:
            parts = list(one_answer_each(example.messages or ()))
            if example.rejected is not None or (len(parts) == 1 and len(parts[0]) == len(example.messages or ())):
                yield Bad(example.where, str(error))
                return
            self.split += 1
            for part in parts:
                yield from self._encoded(one := replace(example, messages=part), self._begin_or_fail(one))
        except FeatherbackError as error:
            yield Bad(example.where, str(error))

    def _begin_or_fail(self, example: Example) -> Callable[[], Encoded]:
        try:
            return self._begin(example)
        except FeatherbackError as error:
            return _raising(error)

    def _begin(self, example: Example) -> Callable[[], Encoded]:
        """Start the work on an example in other threads and processes.

        The returned function waits for it and finishes.
        """
        if example.rejected is not None:
            chosen, rejected = self._begin(replace(example, rejected=None)), self._begin(example.rejected)
            return lambda: replace(chosen(), rejected=rejected())
        if example.text is not None:
            parts = list(self._submit_blocks(_pieces(example.text)))
            return lambda: self._joined(part() for part in parts)
        turns: Any = example.messages
        if turns is None:
            if self._template is None:
                return lambda: self._pair(example)
            system = [] if example.system is None else [{"role": "system", "content": example.system}]
            said = [] if example.is_open else [{"role": "assistant", "content": example.completion or ""}]
            turns = [*system, {"role": "user", "content": example.prompt or ""}, *said]
        template = self._template or ChatTemplate(self._tokenizer)  # which raises the error for a missing template
        pending = template.begin(turns, example.tools)
        return lambda: Encoded(*template.encode_arrays(template.finish(pending)), self._spells_control(example))

    def _pair(self, example: Example) -> Encoded:
        """Prompt and completion for a model without a chat template."""
        if example.system is not None:
            raise FeatherbackError('"system" needs a model with a chat template, and this model has none.')
        prompt, completion = example.prompt or "", example.completion or ""
        # Encoded separately, as in generation: the prompt's tokens are fixed before the answer begins.
        given = self._tokenizer.encode_array(prompt, bos=True)
        answer = self._tokenizer.encode_array(completion, continues=bool(prompt))
        ids = np.concatenate([given, answer, self._end])
        return Encoded(ids, np.arange(ids.size) >= given.size, self._spells_control(example))

    def _joined(self, parts: Iterable[tuple[Ids, bool]]) -> Encoded:
        pieces, spelled = zip(*parts, (self._end, False), strict=True)
        ids = np.concatenate(pieces)
        return Encoded(ids, np.ones(ids.size, np.bool_), any(spelled))

    def _submit_blocks(self, pieces: Iterable[str]) -> Iterator[Callable[[], tuple[Ids, bool]]]:
        for i, block in enumerate(_blocks(pieces)):
            yield self._pool.submit(self._block, block, i == 0).result

    def _block(self, text: str, first: bool) -> tuple[Ids, bool]:
        ids = self._tokenizer.encode_array(text, bos=first, continues=not first)
        return ids, next(self._tokenizer.control_tokens(text), None) is not None

    def _spells_control(self, example: Example) -> bool:
        text = "\0".join(_texts(example))  # no token's name contains \0
        return next(self._tokenizer.control_tokens(text), None) is not None

    @property
    def _end(self) -> Ids:
        eos = self._tokenizer.eos_id
        return np.array([] if eos is None or not self._ends else [eos], np.uint32)


def document_of(example: Example) -> Document:
    """Wrap the text of an example as a document, for `Encoder.stream`."""
    return Document(example.where, _pieces(example.text or ""))


def _pieces(text: str) -> Iterator[str]:
    return (match[0] for match in _PIECE.finditer(text))


def _is_streamed(example: Example) -> bool:
    """Whether the example is a long text of valid Unicode.

    Invalid text takes the other path, which rejects all of it.
    """
    if example.text is None or len(example.text) <= _BLOCK_AT_MOST:
        return False
    try:
        return all(piece.encode() for piece in _pieces(example.text))
    except UnicodeEncodeError:
        return False


def _texts(example: Example | Bad) -> Iterator[str]:
    if isinstance(example, Bad):
        return
    for each in example.sides:
        yield from (text for text in (each.prompt, each.completion, each.text, each.system) if text)
        yield from (message["content"] for message in each.messages or ())


def _raising(error: FeatherbackError) -> Callable[[], Encoded]:
    def finish() -> Encoded:
        raise error

    return finish


def _cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Join lines, or pieces of lines, into blocks.

    A block ends only where every supported tokenizer splits too, so that the tokens are those of the whole text. After
    a long stretch without such a place, a block may end after any piece, which can change a token there.
    """
    parts: list[str] = []
    size = 0
    for piece in pieces:
        if size >= _BLOCK and (at := _first_cut(parts[-1], piece, size >= _BLOCK_AT_MOST)) is not None:
            yield "".join([*parts, piece[:at]])
            piece = piece[at:]
            parts, size = [], 0
        if piece:
            parts.append(piece)
            size += len(piece)
    if parts:
        yield "".join(parts)


def _first_cut(before: str, piece: str, anywhere: bool) -> int | None:
    """Return the first place in a piece where all tokenizers split, given the text before it.

    If there is none, the result is None, or 0 if the cut may be `anywhere`. All tokenizers split before a space that is
    followed by a letter, and after a line break without other white space around it.
    """
    after_line = before.endswith("\n") and piece[:1] != " "
    if after_line and len(before) > 1 and not before[-2].isspace() and not piece[:1].isspace():
        return 0
    if piece[:1] == " " and piece[1:2].isalpha() and (before.endswith("\n") or not before[-1].isspace()):
        return 0
    found = (space.start() for space in _SPACE.finditer(piece) if piece[space.end()].isalpha())
    return next(found, 0 if anywhere else None)
