"""Encode prompts with the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from featherback.core.naming import argument
from featherback.data.templates.chat import ChatTemplate, check_messages
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError

Prompt = str | Sequence[Mapping[str, Any]]
"""A user's message, or a conversation: [{"role": "user", "content": ...}, ...]."""


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, system: str | None = None, raw: bool = False) -> list[int]:
    """Return the token ids of a user's message, ready for the model to answer.

    The chat template is left out if `raw` is set or the model has none. Raises FeatherbackError if the prompt is empty.
    """
    plain = raw or not tokenizer.is_chat
    if isinstance(prompt, str) and not (prompt if plain else prompt.strip()):
        raise FeatherbackError("The prompt is empty.")
    if isinstance(prompt, str) and plain:
        if system is not None:
            remedy = (
                f"remove {argument('raw', True)}"
                if raw
                else f"this model has none. Use a chat model, or remove {argument('system')}"
            )
            raise FeatherbackError(f"A system message needs a chat template: {remedy}.")
        ids = tokenizer.encode(prompt, bos=True)
    elif raw:
        raise FeatherbackError(f"A list of messages needs the chat template: remove {argument('raw', True)}.")
    else:
        messages: list[Mapping[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
        check_messages(turns)
        ids = ChatTemplate(tokenizer).encode_prompt([*messages, *turns])
    if not ids:
        raise FeatherbackError("The prompt is empty.")
    return ids
