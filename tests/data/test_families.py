"""Compare the chat templates of the supported families with expected results written by hand.

`families/NAME.txt` contains each conversation below as the model should see it, with the trained tokens between « and
», or the expected error.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any, NamedTuple

import pytest

from featherback.data.templates.chat import TRAINING_MOMENT, ChatTemplate, Rendering
from featherback.data.templates.renderer import Renderer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from tests.data import templates
from tests.data.prompts import examples
from tests.data.support import byte_tokenizer


class Family(NamedTuple):
    """A template and its tokens."""

    template: str
    bos: str | None
    eos: str
    more: str = ""  # control tokens besides


CHATML, HEADERS = "<|im_start|>", "<|start_header_id|> <|end_header_id|>"
TOOLS = "[INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
FAMILIES = {
    "deepseek-r1": Family(
        templates.family("deepseek-r1"),
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜> <｜Assistant｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜>",
    ),
    "gemma2": Family(templates.family("gemma2"), "<bos>", "<eos>", "<start_of_turn> <end_of_turn>"),
    "gemma3": Family(templates.family("gemma3"), "<bos>", "<eos>", "<start_of_turn> <end_of_turn>"),
    "granite3.3": Family(
        templates.family("granite3.3"),
        "<|end_of_text|>",
        "<|end_of_text|>",
        "<|start_of_role|> <|end_of_role|> <|tool_call|>",
    ),
    "llama2": Family(templates.LLAMA2, "<s>", "</s>"),
    "llama3": Family(templates.LLAMA3, "<|begin_of_text|>", "<|eot_id|>", HEADERS),
    "llama3.1": Family(templates.LLAMA3_1, "<|begin_of_text|>", "<|eot_id|>", HEADERS),
    "mistral-nemo": Family(templates.family("mistral-nemo"), "<s>", "</s>", TOOLS),
    "mistral-v1": Family(templates.MISTRAL_V1, "<s>", "</s>"),
    "mistral-v3": Family(templates.MISTRAL_V3, "<s>", "</s>", TOOLS),
    "olmo2": Family(templates.family("olmo2"), "<|endoftext|>", "<|endoftext|>"),
    "phi3.5": Family(templates.family("phi3.5"), "<s>", "<|endoftext|>", "<|system|> <|user|> <|assistant|> <|end|>"),
    "phi4": Family(templates.family("phi4"), "<|endoftext|>", "<|im_end|>", "<|im_start|> <|im_sep|>"),
    "qwen2.5": Family(templates.QWEN2_5, None, "<|im_end|>", CHATML),
    "qwen3": Family(templates.QWEN3, None, "<|im_end|>", CHATML),
    "smollm2": Family(templates.CHATML, "<|im_start|>", "<|im_end|>"),
    "smollm3": Family(templates.family("smollm3"), None, "<|im_end|>", CHATML),
    "zephyr": Family(templates.ZEPHYR, "<s>", "</s>"),
}


def _turns(*contents: str) -> list[dict[str, str]]:
    """Make messages from alternating questions and answers."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"type": "function", "id": "call12345", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
TWO = _turns("Capital of France?", "Paris.", "And of Italy?", "Rome.")
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "turns": TWO,
    "system": [{"role": "system", "content": "Be brief."}, *TWO],
    "spaced": _turns("\nCapital of France?\n", "\nParis.\n\nIt is on the Seine.\n"),
    "tools": [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call12345"},
        {"role": "assistant", "content": "It is sunny."},
    ],
    "reasoning": _turns("Capital of France?", "<think>\nEasy.\n</think>\n\nParis."),
}
EXPECTED = {
    (path.stem, case): text.removesuffix("\n")
    for path in templates.FAMILIES.glob("*.txt")
    for case, text in re.findall(
        r"^=== (\w+)\n(.*?)(?=^=== |\Z)", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
}
RENDERER = Renderer()  # one process for all these templates


def seen(name: str, case: str) -> str:
    """Return the conversation's tokens as text, with marks around the trained ones, or the error.

    If the conversation becomes several examples, they are separated by "---".
    """
    template, bos, eos, more = FAMILIES[name]
    control = dict.fromkeys([*([bos] if bos else []), eos, *more.split()])
    tokenizer = byte_tokenizer(template, bos, eos, control=tuple(control), date_string="26 Jul 2024")
    chat = ChatTemplate(tokenizer, RENDERER, TRAINING_MOMENT)
    try:
        found = list(examples(chat, CONVERSATIONS[case], [WEATHER] if case == "tools" else None))
    except FeatherbackError as error:
        return f"error: {error}"
    return "\n---\n".join(shown(tokenizer, chat, rendering) for _, rendering in found)


def shown(tokenizer: Tokenizer, chat: ChatTemplate, rendering: Rendering) -> str:
    text = ""
    for trained, run in groupby(zip(*chat.encode(rendering), strict=True), key=lambda token: token[1]):
        said = tokenizer.decode([token for token, _ in run], special=True)
        text += f"«{said}»" if trained else said
    return text


@pytest.mark.parametrize(("name", "case"), EXPECTED)
def test_what_is_seen_and_what_of_it_is_trained(name: str, case: str) -> None:
    assert seen(name, case) == EXPECTED[name, case]


def test_every_family_is_written_out() -> None:
    assert set(EXPECTED) >= {(name, case) for name in FAMILIES for case in ("turns", "system", "spaced", "tools")}
    for (name, case), text in EXPECTED.items():  # a test of the expected results: they contain every message
        said = [message["content"].strip() for message in CONVERSATIONS[case]]
        answers = sum(message["role"] == "assistant" for message in CONVERSATIONS[case])
        if not text.startswith("error: "):
            bare = text.replace("«", "").replace("»", "")
            assert all(content in bare for content in said), (name, case)
            assert text.count("«") == text.count("»") == answers, (name, case)  # also in several examples
