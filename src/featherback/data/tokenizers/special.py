"""Decide which tokens are control tokens and which of them end an answer.

Published files mark them wrongly: `<|im_end|>` is a normal or a user-defined token, its "special" is false, or an id is
-1. Like llama.cpp, Featherback recognises end tokens by their names; like transformers, tokens that the file names as
the beginning or the end. It also recognises the control tokens that the chat template writes. A piece of text that the
vocabulary learned is none of these, whatever it spells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Control tokens that end a turn or a document in common model families. A file names one or two of them as "eos" and
# "eot", but a chat model may end its turn with another one. A decoder that misses it never stops.
END_TOKENS = frozenset(
    (
        *("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>"),
        *("<end_of_turn>", "<|eot|>", "<|eom|>", "<|return|>", "<|end_of_turn|>", "<|endofturn|>"),
        *("<end_of_utterance>", "<｜end▁of▁sentence｜>"),
    )
)
_MARKER = re.compile(
    r"<\|[^<>|\s]{1,64}\|>|<｜[^<>｜\s]{1,64}｜>|</?s>|<(?:start|end)_of_[a-z]{1,16}>|\[/?[A-Z]{2,16}(?:_[A-Z]{2,16})*\]"
)
"""How control tokens look in chat templates. Tags such as <think> are not among them: they are part of the text."""


ADDED_ENDS = END_TOKENS - {"</s>"}
"""End tokens even if the file adds them as text. Gemma adds "</s>" for HTML."""


def control_names(template: str | None) -> list[str]:
    """Return the names in a chat template that look like control tokens."""
    return sorted(set(_MARKER.findall(template or "")))


@dataclass(frozen=True)
class Ends:
    """The tokens that end texts and answers."""

    eos_id: int | None
    """Ends a text that has no chat template."""
    ids: frozenset[int]
    """All tokens at which generation stops."""
    note: str | None
    """A note if nothing ends a text."""


def find_ends(source: object, control: Mapping[str, int], named: Sequence[int], eos_id: int | None) -> Ends:
    """Return the end tokens: those that `source` names, the first being the most important, and known control tokens.

    `eos_id`: the token that the tokenizer itself names, if it does.
    """
    names = END_TOKENS & control.keys()
    if {"<|return|>", "<|call|>"} <= control.keys():  # gpt-oss: <|end|> ends its thoughts, not its answer
        names = (names | {"<|call|>"}) - {"<|end|>"}
    known = [control[name] for name in names]
    first = next(iter([i for i in (eos_id, *named) if i is not None] + (known if len(known) == 1 else [])), None)
    note = None
    if first is None:
        note = (
            f"{source} names no end token. Prompts with completions, and texts, are trained without an end, so the "
            "model does not learn to stop after them. If the model has such a token, name it as eos_token."
        )
    return Ends(first, frozenset([*known, *named]) | ({first} if first is not None else set()), note)


def correction_note(source: object, names: Iterable[str]) -> str | None:
    """Return a note about tokens that `source` does not mark as control tokens; None if there are none."""
    if not (listed := ", ".join(sorted(names))):
        return None
    return (
        f"{source} does not mark {listed} as control tokens. They are treated as control tokens, because they are "
        "named as the beginning or the end, known to end texts, or written by the chat template."
    )


def range_note(source: object, values: Mapping[str, object], n_vocab: int) -> str | None:
    """Return a note about ids outside the vocabulary (key -> value); None if there are none."""
    if not values:
        return None
    listed = ", ".join(f"{key} {value!r}" for key, value in values.items())
    return f"{source} names tokens outside its vocabulary of {n_vocab}: {listed}. They are ignored."


DEFAULT, TOOL_USE = "default", "tool_use"


def joined(templates: Mapping[str, object]) -> str | None:
    """Return one template that does what the templates by these names do; None if there is no default.

    As in transformers, the one for tools is used if tools are given.
    """
    default, tool_use = templates.get(DEFAULT), templates.get(TOOL_USE)
    if not isinstance(default, str) or not isinstance(tool_use, str):
        return default if isinstance(default, str) else None
    one, other = (text.removesuffix("\n") for text in (tool_use, default))  # Jinja removes it at the end of a template
    # Jinja removes the line break after a tag, so that each template begins a line. "+" keeps the space before a tag.
    return f"{{% if tools is not none %}}\n{one}{{%+ else %}}\n{other}{{%+ endif %}}"
