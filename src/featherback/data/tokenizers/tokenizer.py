"""Text to token ids and back, with special tokens under the caller's control.

Text from a user or a data set may spell a control token such as <|im_end|>. Whether that text *becomes* the
token is never left to the tokenizer: control tokens are found here, and only where the caller says the text
may hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from featherback._native import PLAIN, SPACED, NameFinder
from featherback.errors import FeatherbackError

Span = tuple[int, int]
"""Half-open range of characters of a text."""


Part = tuple[int, int, int]
"""Of a text: a token and the characters [start, end) that spell it; PLAIN for text to encode, SPACED for text to encode
as if a space stood before it, which is no character of the text."""

Ids = NDArray[np.uint32]


class Core(Protocol):
    """What a tokenizer does with stretches of plain text: no special token, no leading-space rule, nothing put around
    them. Half a surrogate pair raises UnicodeEncodeError."""

    @property
    def n_vocab(self) -> int:
        """Number of ids, those of special tokens included."""

    def encode(self, text: str, parts: Sequence[Part], places: bool) -> tuple[Ids, NDArray[np.uint32] | None]:
        """Token ids of the parts, which follow one another; with `places` also the half-open range of characters of
        `text` that each stands for, (n, 2). Threads may call it at the same time."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the tokens, special ones included."""


SpacePrefix = Literal["never", "first", "each"]

# Control tokens that end a turn or a document, in the model families of today. A file names one or two of
# them as "eos" and "eot"; a chat model may still end its turn with another, and a decoder that misses it
# never stops.
END_TOKENS = frozenset(
    (
        *("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>"),
        *("<end_of_turn>", "<|eot|>", "<|eom|>", "<|return|>", "<|end_of_turn|>", "<|endofturn|>"),
        "<｜end▁of▁sentence｜>",
    )
)


@dataclass
class Tokenizer:
    """A vocabulary with its facts. Build one with `loader.load_tokenizer`."""

    core: Core
    control: dict[str, int]
    """Control tokens (<s>, <|im_start|> ...): matched only where special tokens are asked for."""
    always: dict[str, int] = field(default_factory=dict)
    """Tokens that are matched in any text (GGUF's user-defined ones)."""
    space_prefix: SpacePrefix = "never"
    """SentencePiece's leading space: before no stretch of text, the first, or each after a special token."""
    space_like: str = ""
    """Characters that a text begins with that gets no leading space."""
    add_bos: bool = False
    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: frozenset[int] = frozenset()
    """Every token at which generation stops."""
    chat_template: str | None = None
    template_source: str = "The model's chat template"
    """What errors call it, with its file."""
    special_names: dict[str, str] = field(default_factory=dict)
    """What a chat template may refer to: bos_token, eos_token, unk_token, pad_token."""
    widths: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    """Special tokens that swallow white space to their left, right."""
    note: str | None = None
    """What the user should know of how it was read."""

    def __post_init__(self) -> None:
        self._special = self.control | self.always
        self._names = {i: name for name, i in self._special.items()}
        self._special_names, self._always_names = list(self._special), list(self.always)
        self._special_finder = NameFinder(self._special_names)
        self._always_finder = NameFinder(self._always_names)

    @property
    def n_vocab(self) -> int:
        """Number of ids, those of the added tokens included."""
        return self.core.n_vocab

    @property
    def is_chat(self) -> bool:
        return self.chat_template is not None

    def encode(self, text: str, special: bool = False, bos: bool = False, continues: bool = False) -> list[int]:
        """Token ids of a text. `special`: control tokens spelled in it become tokens. `bos`: begin with BOS
        if the model is used with one. `continues`: the text goes on from earlier text, so it gets no leading
        space."""
        found: list[int] = self.encode_array(text, special, bos, continues).tolist()
        return found

    def encode_array(self, text: str, special: bool = False, bos: bool = False, continues: bool = False) -> Ids:
        """`encode` without a Python number for each token; threads may call it at the same time."""
        begin = [(self.bos_id, 0, 0)] if bos and self.add_bos and self.bos_id is not None else []
        with _whole_characters():
            return self.core.encode(text, [*begin, *self._parts(text, special, (), continues)], False)[0]

    def encode_with_offsets(
        self, text: str, special: bool = False, protected: Sequence[Span] = ()
    ) -> tuple[Ids, NDArray[np.uint32]]:
        """Token ids and the half-open range of characters each stands for, (n, 2). With `special`, a control token's
        text becomes the token unless it touches a `protected` span (sorted, disjoint)."""
        with _whole_characters():
            ids, places = self.core.encode(text, self._parts(text, special, protected), True)
        assert places is not None
        return ids, places

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Text of the tokens; `special` shows control tokens, else they are left out."""
        kept = [int(i) for i in ids if special or self._names.get(int(i)) not in self.control]
        return self.core.decode(kept)

    def stream(self) -> StreamDecoder:
        """A decoder for tokens that come one at a time."""
        return StreamDecoder(self)

    def name(self, token: int) -> str | None:
        """The text of a control or user-defined token; None for any other."""
        return self._names.get(token)

    def control_tokens(self, text: str) -> Iterator[tuple[int, int, int]]:
        """The control tokens spelled in `text`: (token, start, end)."""
        with _whole_characters():
            for token, start, end in self._stretches(text, True, ()):
                if token is not None and self._names[token] in self.control:
                    yield token, start, end

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
            for token, start, end in self._stretches(text, special, protected)
        ]

    def _stretches(self, text: str, special: bool, protected: Sequence[Span]) -> Iterator[tuple[int | None, int, int]]:
        """Cut at special tokens: (token, start, end), token None for plain text, of which none is empty."""
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
        """Whether a space goes before the stretch that begins at `start`."""
        rule = self.space_prefix
        if continues or rule == "never" or (rule == "first" and start):
            return False
        return text[start] not in self.space_like


@contextmanager
def _whole_characters() -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError:
        raise FeatherbackError("The text holds half a surrogate pair, which is not valid Unicode.") from None


class StreamDecoder:
    """Decode one token at a time: `push` returns the text that has become certain."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # where the decoded window begins: one certain piece before what is not yet told
        self._told = 0

    def push(self, token: int) -> str:
        """Text added by this token; empty while it ends inside a character."""
        self._ids.append(token)
        before = self._tokenizer.decode(self._ids[self._start : self._told])
        now = self._tokenizer.decode(self._ids[self._start :])
        if now.endswith("�") or len(now) <= len(before):
            return ""
        self._start, self._told = self._told, len(self._ids)
        return now[len(before) :]

    def flush(self) -> str:
        """The rest, with a replacement character for an unfinished one."""
        before = self._tokenizer.decode(self._ids[self._start : self._told])
        rest = self._tokenizer.decode(self._ids[self._start :])[len(before) :]
        self._start = self._told = len(self._ids)
        return rest
