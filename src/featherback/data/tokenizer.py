"""Text to token ids and back, with special tokens under the caller's control.

Text from a user or a data set may spell a control token such as <|im_end|>. Whether that text *becomes* the
token is never left to the tokenizer: control tokens are found here, and only where the caller says the text
may hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    import tokenizers

Span = tuple[int, int]
"""Half-open range of characters of a text."""

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
    """A vocabulary with its facts. Build one with `tokenizer_loader.load_tokenizer`."""

    core: tokenizers.Tokenizer
    """Encodes stretches of plain text only: no special token, no leading-space rule, no post-processing."""
    control: dict[str, int]
    """Control tokens (<s>, <|im_start|> ...): matched only where special tokens are asked for."""
    always: dict[str, int] = field(default_factory=dict)
    """Tokens that are matched in any text (GGUF's user-defined ones)."""
    space_prefix: SpacePrefix = "never"
    """SentencePiece's leading space: before no stretch of text, the first, or each after a special token."""
    space_once: bool = False
    """Put no leading space before a text that begins with one."""
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
    """Control tokens that swallow white space to their left, right."""

    def __post_init__(self) -> None:
        self.core.encode_special_tokens = True
        self._special = self.control | self.always
        self._names = {i: name for name, i in self._special.items()}
        self._any_pattern = self._pattern(self._special)
        self._always_pattern = self._pattern(self.always)

    def _pattern(self, tokens: Iterable[str]) -> re.Pattern[str] | None:
        alternatives = []
        for name in sorted(tokens, key=len, reverse=True):
            left, right = self.widths.get(name, (False, False))
            alternatives.append(r"\s*" * left + f"({re.escape(name)})" + r"\s*" * right)
        return re.compile("|".join(alternatives)) if alternatives else None

    @property
    def n_vocab(self) -> int:
        """Number of ids, those of the added tokens included."""
        return int(self.core.get_vocab_size(with_added_tokens=True))

    @property
    def is_chat(self) -> bool:
        return self.chat_template is not None

    def encode(
        self, text: str, special: bool = False, bos: bool = False, continues: bool = False
    ) -> list[int]:
        """Token ids of a text. `special`: control tokens spelled in it become tokens. `bos`: begin with BOS
        if the model is used with one. `continues`: the text goes on from earlier text, so it gets no leading
        space."""
        ids = [self.bos_id] if bos and self.add_bos and self.bos_id is not None else []
        for token, start, end in self._stretches(text, special, ()):
            if token is not None:
                ids.append(token)
            else:
                ids.extend(self._encode_plain(text[start:end], start == 0, continues and start == 0)[0])
        return ids

    def encode_with_offsets(
        self, text: str, special: bool = False, protected: Sequence[Span] = ()
    ) -> tuple[list[int], list[Span]]:
        """Token ids and the characters each stands for. With `special`, a control token's text becomes the
        token unless it touches a `protected` span (sorted, disjoint)."""
        ids: list[int] = []
        offsets: list[Span] = []
        for token, start, end in self._stretches(text, special, protected):
            if token is not None:
                ids.append(token)
                offsets.append((start, end))
            else:
                plain, places = self._encode_plain(text[start:end], start == 0)
                ids.extend(plain)
                offsets.extend((start + a, start + b) for a, b in places)
        return ids, offsets

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Text of the tokens; `special` shows control tokens, else they are left out."""
        kept = [int(i) for i in ids if special or self._names.get(int(i)) not in self.control]
        return str(self.core.decode(kept, skip_special_tokens=False))

    def stream(self) -> StreamDecoder:
        """A decoder for tokens that come one at a time."""
        return StreamDecoder(self)

    def name(self, token: int) -> str | None:
        """The text of a control or user-defined token; None for any other."""
        return self._names.get(token)

    def control_tokens(self, text: str) -> Iterator[tuple[int, int, int]]:
        """The control tokens spelled in `text`: (token, start, end)."""
        for token, start, end in self._stretches(text, True, ()):
            if token is not None and self._names[token] in self.control:
                yield token, start, end

    def _stretches(
        self, text: str, special: bool, protected: Sequence[Span]
    ) -> Iterator[tuple[int | None, int, int]]:
        """Cut at special tokens: (token, start, end), token None for plain text, of which none is empty."""
        pattern = self._any_pattern if special else self._always_pattern
        done = at = 0
        guards = iter(protected)
        guard = next(guards, None)
        while pattern and (match := pattern.search(text, at)):
            start, end = match.span()
            name = match[match.lastindex or 0]
            while guard and guard[1] <= start:
                guard = next(guards, None)
            if guard and guard[0] < end and name in self.control:
                at = start + 1
                continue
            if done < start:
                yield None, done, start
            yield self._special[name], start, end
            done = at = end
        if done < len(text):
            yield None, done, len(text)

    def _encode_plain(self, text: str, first: bool, continues: bool = False) -> tuple[list[int], list[Span]]:
        """Ids and places of text without special tokens."""
        prefix = self.space_prefix == "each" or (self.space_prefix == "first" and first)
        if continues or (self.space_once and text.startswith((" ", "▁"))):
            prefix = False
        try:
            encoding = self.core.encode(" " + text if prefix else text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):  # which of them depends on the library's version
            raise FeatherbackError(
                "The text holds half a surrogate pair, which is not valid Unicode."
            ) from None
        if not prefix:
            return encoding.ids, encoding.offsets
        return encoding.ids, [(max(a - 1, 0), max(b - 1, 0)) for a, b in encoding.offsets]


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
