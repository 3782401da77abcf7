"""Prompts as the model was made to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from featherback.core.naming import argument
from featherback.data.templates.chat import ChatTemplate, check_messages
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError

Prompt = str | Sequence[Mapping[str, Any]]
"""A user's message, or the messages so far: [{"role": "user", "content": ...}, ...]."""


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt, system: str | None = None, raw: bool = False) -> list[int]:
    """Token ids of a user's message for the model to answer; of the bare text if `raw` or no chat model.

    FeatherbackError if the prompt is empty.
    """
    plain = raw or not tokenizer.is_chat
    if isinstance(prompt, str) and not (prompt if plain else prompt.strip()):
        raise FeatherbackError("The prompt is empty.")
    if isinstance(prompt, str) and plain:
        if system is not None:
            raise FeatherbackError(
                "A system message needs a model with a chat template, and cannot be combined with "
                f"{argument('raw', True)}."
            )
        ids = tokenizer.encode(prompt, bos=True)
    elif raw:
        raise FeatherbackError(
            f"Messages go through the chat template: they cannot be combined with {argument('raw', True)}."
        )
    else:
        messages: list[Mapping[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
        check_messages(said)
        ids = ChatTemplate(tokenizer).encode_prompt([*messages, *said])
    if not ids:
        raise FeatherbackError("The prompt is empty.")
    return ids
