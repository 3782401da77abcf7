"""A conversation: the messages so far, and a cache that is only ever extended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from featherback.core.naming import argument
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.host.interrupt import StoppedError
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.infer.defaults import ANSWER_TOKENS
from featherback.infer.generate import generate_text
from featherback.infer.sampler import Sampler


class Conversation:
    """Turns of a user and the assistant. What the cache holds of earlier turns is not computed again.

    `messages`: all of them, {"role": ..., "content": ...}, the system message first if there is one.
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
        """Forget all but the system message."""
        self.messages: list[dict[str, str]] = (
            [] if self.system is None else [{"role": "system", "content": self.system}]
        )

    def ask(self, text: str, max_tokens: int = ANSWER_TOKENS) -> str:
        """The assistant's answer to `text`; as `answer`, in one piece."""
        return "".join(self.answer(text, max_tokens))

    def answer(
        self, text: str, max_tokens: int = ANSWER_TOKENS, check: Callable[[], None] | None = None
    ) -> Iterator[str]:
        """The assistant's answer to `text`, piece by piece; both join the conversation once it is complete.

        `check` is called again and again, and may raise StoppedError: the answer ends there, and what was said joins
        the conversation. FeatherbackError if the conversation has grown beyond the decoder's capacity.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self.template.encode_prompt(messages)
        room = self.decoder.capacity - len(prompt)
        if room < 1:
            raise FeatherbackError(
                f"The conversation has {len(prompt)} tokens, and there is room for {self.decoder.capacity}: "
                f"begin a new one, or raise {argument('context')}."
            )
        said: list[str] = []
        try:
            for piece in generate_text(
                self.decoder, self.tokenizer, prompt, self.sampler, min(max_tokens, room), check
            ):
                said.append(piece)
                yield piece
        except StoppedError:
            if not said:
                return
        self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]

    def __repr__(self) -> str:
        name, used, room = self.decoder.model.path.name, len(self.decoder.tokens), self.decoder.capacity
        return f"Conversation({name!r}, {len(self.messages)} messages, {used} of {room} tokens used)"
