"""A conversation: the messages so far, and a cache that is only ever extended."""

from __future__ import annotations

from collections.abc import Iterator

from featherback.data.chat import ChatTemplate
from featherback.data.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.inference.decoder import Decoder
from featherback.inference.generate import generate_text
from featherback.inference.sampler import Sampler


class Conversation:
    """Turns of a user and the assistant. What the cache holds of earlier turns is not computed again."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        sampler: Sampler,
        system: str | None = None,
    ) -> None:
        self.decoder, self.tokenizer, self.template, self.sampler = decoder, tokenizer, template, sampler
        self.messages: list[dict[str, str]] = (
            [] if system is None else [{"role": "system", "content": system}]
        )

    def answer(self, text: str, max_tokens: int) -> Iterator[str]:
        """The assistant's answer to `text`, piece by piece; both join the conversation once it is complete.

        FeatherbackError if the conversation has grown beyond the decoder's capacity.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = self.template.encode_prompt(messages)
        room = self.decoder.capacity - len(prompt)
        if room < 1:
            raise FeatherbackError(
                f"The conversation has {len(prompt)} tokens, and there is room for {self.decoder.capacity}: "
                "begin a new one, or raise --context."
            )
        said = []
        for piece in generate_text(self.decoder, self.tokenizer, prompt, self.sampler, min(max_tokens, room)):
            said.append(piece)
            yield piece
        self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]
