"""Answers behind prompts that say more than the template writes before an answer.

Many templates end a prompt with the beginning of an answer, such as "<think>\\n", which they leave out when they write
the conversation with its answer. The model is asked with the prompt, so the answer is trained behind the prompt.
"""

from __future__ import annotations

import re

_BLOCKS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<think:opensource>": "</think:opensource>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "Here are my reasoning steps:": "[BEGIN FINAL RESPONSE]",
}
"""Texts before and after reasoning, in published templates."""
_TAKEN = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def taken_apart(content: str) -> tuple[str, str]:
    """Split an answer with "<think>...</think>" at its beginning into the reasoning and the rest."""
    if match := _TAKEN.match(content):
        return match[1].strip(), content[match.end() :]
    return "", content


def end_of_opened(prompt: str) -> str | None:
    """Return the text that ends the reasoning that a prompt opens; None if it opens none."""
    at, opening = max((prompt.rfind(opening), opening) for opening in _BLOCKS)
    closing = _BLOCKS[opening]
    return None if at < 0 or prompt.rfind(closing) > at else closing


def leaves_no_place(prompt: str) -> bool:
    """Whether the end of a prompt has reasoning, perhaps empty, that ends before the answer."""
    return end_of_opened(prompt) is None and any(closing in prompt for closing in _BLOCKS.values())


def lead(asked: str, written: str, reasoning: str = "") -> str:
    """Return what an answer with this `reasoning` begins with behind a prompt, before its content.

    `asked`: the prompt behind its last message. `written`: the text between the same message and the content of the
    answer in the conversation with the answer. A prompt that opens reasoning is followed by its end.
    """
    same = _common(asked, written)
    more, own = asked[same:], written[same:]
    if more.strip() and (at := own.rfind(more)) >= 0:
        own = own[at + len(more) :]
    else:
        shared = (size for size in range(min(len(more), len(own)), 0, -1) if more.endswith(own[:size]))
        own = own[next(shared, 0) :]
    closing = end_of_opened(asked)
    if closing is None or own.lstrip().startswith(closing):
        return reasoning + own
    return f"{reasoning}\n{closing}\n\n{own}" if asked.endswith("\n") else f"{reasoning}{closing}{own}"


def _common(one: str, other: str) -> int:
    """Return the length of the common beginning of two texts, which does not end within a tag."""
    most = min(len(one), len(other))
    size = next((i for i in range(most) if one[i] != other[i]), most)
    at = one.rfind("<", 0, size)
    return at if at >= 0 and ">" not in one[at:size] else size
