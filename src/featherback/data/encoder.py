"""From examples to token ids and masks, with every core: while one example is finished, later ones are under way.

Conversations are rendered by the template's process and tokenized here; text is tokenized by threads, block by block.
The tokens do not depend on how many threads there are.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.containers.base import Document
from featherback.data.example import Bad, Example
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.tokenizer import Ids, Tokenizer
from featherback.errors import FeatherbackError

_BLOCK = 1 << 16  # characters tokenized at once; an encoding takes some 20 bytes a character while it is made
_BLOCK_AT_MOST = 4 * _BLOCK
_PIECE = re.compile("[^\n]{0,65535}\n|[^\n]{1,65536}")  # a line, or part of a long one
_SPACE = re.compile(r"(?<=\S) (?=\S)")
_MOST_THREADS = 4  # each takes a megabyte
_AHEAD = 48  # examples under way at once, if they are short
_AHEAD_CHARACTERS = 1 << 17  # and if they are long


@dataclass(frozen=True)
class Encoded:
    """An example as tokens."""

    ids: Ids
    mask: NDArray[np.bool_]
    """Which of them are supervised."""
    spells_control: bool
    """Whether the example's text spells a control token (it is encoded as the text it is)."""


class Encoder:
    """Encodes examples with a model's tokenizer and, for a chat model, its template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer) if tokenizer.is_chat else None
        self._threads = min(_cores(), _MOST_THREADS)
        self._pool = ThreadPoolExecutor(self._threads)  # a thread begins with the first block of text

    @property
    def renamed(self) -> dict[str, int]:
        """Messages whose role the template does not know and that were given its other name: role -> how many."""
        return {} if self._template is None else dict(self._template.renamed)

    def start(self) -> None:
        """Have all processes that will be at work."""
        if self._template is not None:
            self._template.start()

    def encode(self, example: Example) -> Encoded:
        """An example by itself. A text ends with the end token; all of it is supervised."""
        return self._begin(example)()

    def encode_all(self, examples: Iterable[Example | Bad]) -> Iterator[tuple[Example, Encoded] | Example | Bad]:
        """Examples in order, those that cannot be encoded as what is wrong with them, and long texts as they are, for
        `stream`. What is wrong with reading them is raised in its turn: FeatherbackError."""
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
                    finish = None  # it stays as it is
                    if not isinstance(example, Bad) and not _is_streamed(example):
                        finish = self._begun(example)
                    waiting.append((example, finish, size))
                    del example, finish
            if waiting:
                example, finish, size = waiting.popleft()
                ahead -= size
                yield example if isinstance(example, Bad) or finish is None else _encoded(example, finish)
        if failure is not None:
            raise failure

    def stream(self, pieces: Iterable[str]) -> Iterator[tuple[Ids, bool]]:
        """One document, part by part: BOS if the model uses it, the text, the end token. All of it is supervised. With
        each part, whether it spells a control token."""
        waiting: deque[Callable[[], tuple[Ids, bool]]] = deque()
        for begun in self._blocks_begun(pieces):
            waiting.append(begun)
            if len(waiting) > self._threads:
                yield waiting.popleft()()
        for finish in waiting:
            yield finish()
        yield self._end, False

    def close(self) -> None:
        """End the threads; blocks that nobody waits for are not begun."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Encoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begun(self, example: Example) -> Callable[[], Encoded]:
        try:
            return self._begin(example)
        except FeatherbackError as error:
            return _raising(error)

    def _begin(self, example: Example) -> Callable[[], Encoded]:
        """Set off what others can do for an example; what is returned waits for them and does the rest."""
        if example.text is not None:
            parts = list(self._blocks_begun(_pieces(example.text)))
            return lambda: self._joined(part() for part in parts)
        turns: Any = example.messages
        if turns is None:
            if self._template is None:
                return lambda: self._pair(example)
            system = [] if example.system is None else [{"role": "system", "content": example.system}]
            turns = [
                *system,
                {"role": "user", "content": example.prompt or ""},
                {"role": "assistant", "content": example.completion or ""},
            ]
        template = self._template or ChatTemplate(self._tokenizer)  # the latter explains what is missing
        asked = template.begin(turns, example.tools)
        return lambda: Encoded(*template.encode_arrays(template.finish(asked)), self._spells_control(example))

    def _pair(self, example: Example) -> Encoded:
        """Prompt and completion for a model without a chat template."""
        if example.system is not None:
            raise FeatherbackError('"system" needs a model with a chat template, which this one has not.')
        prompt, completion = example.prompt or "", example.completion or ""
        # Encoded apart, because that is what generation will see: the prompt's tokens, and then its own.
        given = self._tokenizer.encode_array(prompt, bos=True)
        answer = self._tokenizer.encode_array(completion, continues=bool(prompt))
        ids = np.concatenate([given, answer, self._end])
        return Encoded(ids, np.arange(ids.size) >= given.size, self._spells_control(example))

    def _joined(self, parts: Iterable[tuple[Ids, bool]]) -> Encoded:
        pieces, spelled = zip(*parts, (self._end, False), strict=True)
        ids = np.concatenate(pieces)
        return Encoded(ids, np.ones(ids.size, np.bool_), any(spelled))

    def _blocks_begun(self, pieces: Iterable[str]) -> Iterator[Callable[[], tuple[Ids, bool]]]:
        for i, block in enumerate(_blocks(pieces)):
            yield self._pool.submit(self._block, block, i == 0).result

    def _block(self, text: str, first: bool) -> tuple[Ids, bool]:
        ids = self._tokenizer.encode_array(text, bos=first, continues=not first)
        return ids, next(self._tokenizer.control_tokens(text), None) is not None

    def _spells_control(self, example: Example) -> bool:
        text = "\0".join(_texts(example))  # which no token's name holds
        return next(self._tokenizer.control_tokens(text), None) is not None

    @property
    def _end(self) -> Ids:
        return np.array([] if self._tokenizer.eos_id is None else [self._tokenizer.eos_id], np.uint32)


def document_of(example: Example) -> Document:
    """A text as a document, for `Encoder.stream`."""
    return Document(example.where, _pieces(example.text or ""))


def _pieces(text: str) -> Iterator[str]:
    return (match[0] for match in _PIECE.finditer(text))


def _is_streamed(example: Example) -> bool:
    """Whether it is a long text, of whole characters: what is not is refused before any of it is encoded."""
    if example.text is None or len(example.text) <= _BLOCK_AT_MOST:
        return False
    try:
        return all(piece.encode() for piece in _pieces(example.text))
    except UnicodeEncodeError:
        return False


def _texts(example: Example | Bad) -> Iterator[str]:
    if isinstance(example, Bad):
        return
    several = (example.prompt, example.completion, example.text, example.system)
    yield from (text for text in several if text)
    yield from (message["content"] for message in example.messages or ())


def _encoded(example: Example, finish: Callable[[], Encoded]) -> tuple[Example, Encoded] | Bad:
    try:
        return example, finish()
    except FeatherbackError as error:
        return Bad(example.where, str(error))


def _raising(error: FeatherbackError) -> Callable[[], Encoded]:
    def finish() -> Encoded:
        raise error

    return finish


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Join lines, or pieces of lines, to blocks.

    A block ends only where every supported tokenizer cuts as well, so that the blocks have the tokens of the
    whole. Where there is no such place for long, it ends with any piece, which may change a token there.
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
    """The first place in a piece where tokenizers cut, given what stands before it; None if there is none, or the
    beginning if it may be `anywhere`.

    A space between other characters goes with a letter that follows. A line break is cut off where it is the only white
    space.
    """
    after_line = before.endswith("\n") and piece[:1] != " "
    if after_line and len(before) > 1 and not before[-2].isspace() and not piece[:1].isspace():
        return 0
    if piece[:1] == " " and piece[1:2].isalpha() and (before.endswith("\n") or not before[-1].isspace()):
        return 0
    found = (space.start() for space in _SPACE.finditer(piece) if piece[space.end()].isalpha())
    return next(found, 0 if anywhere else None)
