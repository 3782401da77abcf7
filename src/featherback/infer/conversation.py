"""A conversation: the messages so far, with a cache that carries over from turn to turn."""

from __future__ import annotations

from collections.abc import Iterator

from featherback.core.naming import argument
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.host.interrupt import StoppedError
from featherback.errors import FeatherbackError
from featherback.infer import ANSWER_TOKENS
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_text
from featherback.infer.passes import Check, go_on
from featherback.infer.sampler import Sampler


class Conversation:
    """Turns of a user and the assistant. Tokens of earlier turns that are in the cache are not computed again.

    `messages`: all turns so far, {"role": ..., "content": ...}, beginning with the system message if there is one.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        sampler: Sampler,
        system: str | None = None,
    ) -> None:
        self.decoder, self.tokenizer, self.template, self.sampler = decoder, tokenizer, template, sampler
        self.system = system
        self.reset()

    def reset(self) -> None:
        """Remove all messages but the system message."""
        self.messages: list[dict[str, str]] = (
            [] if self.system is None else [{"role": "system", "content": self.system}]
        )

    def ask(self, text: str, max_tokens: int = ANSWER_TOKENS) -> str:
        """Return the assistant's answer to `text` as one string. Otherwise like `answer`."""
        return "".join(self.answer(text, max_tokens))

    def answer(self, text: str, max_tokens: int = ANSWER_TOKENS, check: Check = go_on) -> Iterator[str]:
        """Yield the assistant's answer to `text`, piece by piece. Afterwards question and answer join `messages`.

        `check` is called before each token and may raise StoppedError: the answer then ends there, and the part so far
        joins `messages`. Raises FeatherbackError if the conversation does not fit in the decoder's capacity.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self.template.encode_prompt(messages)
        room = self.decoder.capacity - len(prompt)
        if room < 1:
            raise FeatherbackError(
                f"The conversation is {len(prompt)} tokens long, but the context holds {self.decoder.capacity}. "
                f"Start a new conversation, or use a larger {argument('context')}."
            )
        pieces: list[str] = []
        try:
            for piece in generate_text(
                self.decoder, self.tokenizer, prompt, self.sampler, min(max_tokens, room), check
            ):
                pieces.append(piece)
                yield piece
        except StoppedError:
            if not pieces:
                return
        self.messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]

    def __repr__(self) -> str:
        name, used, room = self.decoder.model.path.name, len(self.decoder.tokens), self.decoder.capacity
        return f"Conversation({name!r}, {len(self.messages)} messages, {used} of {room} tokens used)"
