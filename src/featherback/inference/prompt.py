"""Prompts as the model was made to read them."""

from __future__ import annotations

from featherback.data.chat import ChatTemplate
from featherback.data.tokenizer import Tokenizer
from featherback.errors import FeatherbackError


def encode_prompt(tokenizer: Tokenizer, text: str, system: str | None = None, raw: bool = False) -> list[int]:
    """Token ids of a user's message for the model to answer; of the bare text if `raw` or no chat model.

    FeatherbackError if the prompt is empty.
    """
    if raw or not tokenizer.is_chat:
        if system is not None:
            raise FeatherbackError(
                "A system message needs a model with a chat template, and cannot be combined with --raw."
            )
        ids = tokenizer.encode(text, bos=True)
    else:
        messages = [] if system is None else [{"role": "system", "content": system}]
        ids = ChatTemplate(tokenizer).encode_prompt([*messages, {"role": "user", "content": text}])
    if not ids:
        raise FeatherbackError("The prompt is empty.")
    return ids
