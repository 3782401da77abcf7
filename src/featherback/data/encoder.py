"""From an example to token ids and a mask."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from featherback.data.chat import ChatTemplate
from featherback.data.readers import Example
from featherback.data.tokenizer import Tokenizer
from featherback.errors import FeatherbackError

Encoded = tuple[list[int], list[bool]]
_BLOCK = (
    1 << 16
)  # characters tokenized at once; an encoding takes some 150 bytes a character while it is made
_BLOCK_AT_MOST = 4 * _BLOCK
_LINE = re.compile("[^\n]*\n|[^\n]+")


class Encoder:
    """Encodes examples with a model's tokenizer and, for a chat model, its template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer) if tokenizer.is_chat else None

    @property
    def renamed(self) -> dict[str, int]:
        """Messages whose role the template does not know and that were given its other name: role -> how many."""
        return {} if self._template is None else dict(self._template.renamed)

    def encode(self, example: Example) -> Encoded:
        """Token ids of messages, or of prompt and completion, and which of them are supervised."""
        if example.messages is not None:
            template = self._template or ChatTemplate(self._tokenizer)  # the latter explains what is missing
            return template.encode(template.training(example.messages))
        prompt, completion = example.prompt or "", example.completion or ""
        if self._template is not None:
            system = [] if example.system is None else [{"role": "system", "content": example.system}]
            turns = [
                *system,
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": completion},
            ]
            return self._template.encode(self._template.training(turns))
        if example.system is not None:
            raise FeatherbackError('"system" needs a model with a chat template, which this one has not.')
        # Encoded apart, because that is what generation will see: the prompt's tokens, and then its own.
        given = self._tokenizer.encode(prompt, bos=True)
        answer = self._tokenizer.encode(completion, continues=bool(prompt)) + self._end
        return given + answer, [False] * len(given) + [True] * len(answer)

    def stream(self, lines: Iterable[str]) -> Iterator[list[int]]:
        """Token ids of one document, part by part: BOS if the model uses it, the text, the end token. All of
        it is supervised."""
        for i, block in enumerate(_blocks(lines)):
            yield self._tokenizer.encode(block, bos=i == 0, continues=i > 0)
        yield self._end

    def document(self, text: str) -> Iterator[list[int]]:
        """`stream` for a text in memory."""
        return self.stream(match[0] for match in _LINE.finditer(text))

    def spells_control(self, example: Example) -> bool:
        """Whether the example's text spells a control token (it is encoded as the text it is)."""
        texts = [
            example.prompt,
            example.completion,
            example.text,
            example.system,
            *(m["content"] for m in example.messages or ()),
        ]
        return any(next(self._tokenizer.control_tokens(text), None) for text in texts if text)

    @property
    def _end(self) -> list[int]:
        return [] if self._tokenizer.eos_id is None else [self._tokenizer.eos_id]


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to blocks.

    A block ends only where every supported tokenizer cuts as well, so that the blocks have the tokens of the
    whole. Where there is no such place for long, it ends at any line break, which may change a token there.
    """
    parts: list[str] = []
    size = 0
    for line in lines:
        if size >= _BLOCK and (size >= _BLOCK_AT_MOST or _is_cut(parts[-1], line)):
            yield "".join(parts)
            parts, size = [], 0
        parts.append(line)
        size += len(line)
    if parts:
        yield "".join(parts)


def _is_cut(line: str, following: str) -> bool:
    """Whether tokenizers cut between two lines: the break is the only white space there, or the next line
    begins with one space and a letter (the space goes with the letter, whatever is before)."""
    if following[:1] == " ":
        return following[1:2].isalpha()
    return len(line) > 1 and not line[-2].isspace() and not following[:1].isspace()
