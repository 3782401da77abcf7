"""Convert text to token ids and back. The caller decides where special tokens are recognised.

Text from a user or a data set may contain the name of a control token such as <|im_end|>. The tokenizer never decides
whether such text becomes the token. Control tokens are found here, and only where the caller allows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback._native import PLAIN, SPACED, NameFinder
from featherback.errors import FeatherbackError

Span = tuple[int, int]
"""Half-open range of characters of a text."""


Part = tuple[int, int, int]
"""A part of a text: (token id, start, end). PLAIN marks text to encode; SPACED, text to encode after an added space."""

Ids = NDArray[np.uint32]


class Core(Protocol):
    """Encodes plain text, without special tokens, leading-space rule or post-processing.

    Half a surrogate pair raises UnicodeEncodeError.
    """

    @property
    def n_vocab(self) -> int:
        """The number of ids, including special tokens."""

    def encode(self, text: str, parts: Sequence[Part], places: bool) -> tuple[Ids, NDArray[np.uint32] | None]:
        """Encode consecutive parts of `text`. Thread-safe.

        With `places`, also return the range of characters [start, end) of each token, shape (n, 2).
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of the tokens, including special tokens."""

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes that a token stands for inside a text."""


SpacePrefix = Literal["never", "first", "each"]


@dataclass
class Tokenizer:
    """A vocabulary with its special tokens and rules. Load one with `loader.load_tokenizer`."""

    core: Core
    control: dict[str, int]
    """Control tokens (<s>, <|im_start|> ...), matched only where the caller allows special tokens."""
    always: dict[str, int] = field(default_factory=dict)
    """Tokens that are matched in any text (GGUF's user-defined ones)."""
    space_prefix: SpacePrefix = "never"
    """SentencePiece's leading space: never, before the first part, or also after each special token."""
    space_like: str = ""
    """A text that begins with one of these characters gets no leading space."""
    add_bos: bool = False
    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: frozenset[int] = frozenset()
    """All tokens at which generation stops."""
    chat_template: str | None = None
    template_source: str = "The model's chat template"
    """Name of the template in errors, with its file."""
    special_names: dict[str, str] = field(default_factory=dict)
    """Variables for the chat template: bos_token, eos_token, unk_token, pad_token."""
    widths: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Whether a special token removes white space to its left and right."""
    note: str | None = None
    """A note for the user if the `tokenizers` library encodes text."""
    corrections: tuple[str, ...] = ()
    """Notes for the user about what the files say wrongly, and what is done instead."""

    def __post_init__(self) -> None:
        self._special = self.control | self.always
        self._names = {i: name for name, i in self._special.items()}
        self._special_names, self._always_names = list(self._special), list(self.always)
        self._special_finder = NameFinder(self._special_names)
        self._always_finder = NameFinder(self._always_names)

    @property
    def n_vocab(self) -> int:
        """The number of ids, including added tokens."""
        return self.core.n_vocab

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes for the user about the tokenizer."""
        return (*([self.note] if self.note else []), *self.corrections)

    @property
    def is_chat(self) -> bool:
        return self.chat_template is not None

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest token."""
        return max(len(self.core.token_bytes(id)) for id in range(self.n_vocab))

    def encode(self, text: str, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]:
        """Encode a text as token ids.

        `special`: names of control tokens become tokens. `bos`: begin with BOS if the model uses it. `continues`: the
        text continues earlier text, so it gets no leading space.
        """
        found: list[int] = self.encode_array(text, special, bos, continues).tolist()
        return found

    def encode_array(self, text: str, special: bool = False, bos: bool = False, continues: bool = False) -> Ids:
        """Encode a text as an array, like `encode`. Thread-safe."""
        begin = [(self.bos_id, 0, 0)] if bos and self.add_bos and self.bos_id is not None else []
        with _reject_bad_text():
            return self.core.encode(text, [*begin, *self._parts(text, special, (), continues)], False)[0]

    def encode_with_offsets(
        self, text: str, special: bool = False, protected: Sequence[Span] = (), cuts: Sequence[int] = ()
    ) -> tuple[Ids, NDArray[np.uint32]]:
        """Encode a text as token ids and their ranges of characters [start, end), shape (n, 2).

        With `special`, the name of a control token becomes the token, unless it overlaps a `protected` span. These
        spans are sorted and disjoint. No token crosses one of the `cuts`, places in order: the text before it is
        encoded as if nothing followed.
        """
        with _reject_bad_text():
            ids, places = self.core.encode(text, self._cut_parts(text, special, protected, cuts), True)
        assert places is not None
        return ids, places

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Return the text of the tokens. Control tokens are included only with `special`."""
        kept = [int(i) for i in ids if special or self._names.get(int(i)) not in self.control]
        return self.core.decode(kept)

    def stream(self) -> StreamDecoder:
        """Return a decoder for tokens that arrive one at a time."""
        return StreamDecoder(self)

    def name(self, token: int) -> str | None:
        """Return the text of a control or user-defined token; None for other tokens."""
        return self._names.get(token)

    def control_tokens(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (token, start, end) for each control token whose name is in `text`."""
        with _reject_bad_text():
            for token, start, end in self._split(text, True, ()):
                if token is not None and self._names[token] in self.control:
                    yield token, start, end

    def _cut_parts(self, text: str, special: bool, protected: Sequence[Span], cuts: Sequence[int]) -> list[Part]:
        parts = list[Part]()
        for start, end in pairwise([0, *cuts, len(text)]):
            within = [(max(a, start) - start, min(b, end) - start) for a, b in protected if a < end and b > start]
            continues = bool(parts) and (parts[-1][0] in (PLAIN, SPACED) or self.space_prefix == "first")
            found = self._parts(text[start:end], special, within, continues)
            parts += [(kind, a + start, b + start) for kind, a, b in found]
        return parts

    def _parts(self, text: str, special: bool, protected: Sequence[Span], continues: bool = False) -> list[Part]:
        return [
            (
                token
                if token is not None
                else SPACED
                if self._is_spaced(text, start, continues and start == 0)
                else PLAIN,
                start,
                end,
            )
            for token, start, end in self._split(text, special, protected)
        ]

    def _split(self, text: str, special: bool, protected: Sequence[Span]) -> Iterator[tuple[int | None, int, int]]:
        """Split a text at special tokens.

        Yield (token, start, end); token is None for plain text, which is never empty.
        """
        names = self._special_names if special else self._always_names
        finder = self._special_finder if special else self._always_finder
        done = unguarded = 0
        guards = iter(protected)
        guard = next(guards, None)
        for number, start, end in finder.find(text) if names else ():
            if start < done:
                continue
            while guard and guard[1] <= start:
                unguarded = guard[1]
                guard = next(guards, None)
            name = names[number]
            if guard and guard[0] < end and name in self.control:
                continue
            left, right = self.widths.get(name, (False, False))
            while left and start > max(done, unguarded) and text[start - 1].isspace():
                start -= 1
            while right and end < (guard[0] if guard else len(text)) and text[end].isspace():
                end += 1
            if done < start:
                yield None, done, start
            yield self._special[name], start, end
            done = end
        if done < len(text):
            yield None, done, len(text)

    def _is_spaced(self, text: str, start: int, continues: bool) -> bool:
        """Whether a space is added before the part that begins at `start`."""
        rule = self.space_prefix
        if continues or rule == "never" or (rule == "first" and start):
            return False
        return text[start] not in self.space_like


@contextmanager
def _reject_bad_text() -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError:
        raise FeatherbackError("The text contains half a surrogate pair, which is not valid Unicode.") from None
    except ValueError as error:  # too long, or too hard for an expression of the file
        raise FeatherbackError(f"The tokenizer cannot encode {error}.") from None


class StreamDecoder:
    """Decodes one token at a time. `push` returns the text that can no longer change."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # start of the decoded window: one finished piece before the text that was not returned yet
        self._returned = 0

    def push(self, token: int) -> str:
        """Add a token and return its text; empty while the text ends inside a character."""
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._start : self._returned])
        now = self._tokenizer.decode(self._ids[self._start :])
        if now.endswith("�") or len(now) <= len(before):
            return ""
        self._start, self._returned = self._returned, len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """Return the remaining text, with a replacement character for an unfinished one."""
        before = self._tokenizer.decode(self._ids[self._start : self._returned])
        rest = self._tokenizer.decode(self._ids[self._start :])[len(before) :]
        self._start = self._returned = len(self._ids)
        return rest
