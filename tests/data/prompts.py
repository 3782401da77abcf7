"""The property of chat templates: tokens(prompt) + tokens(answer) = tokens(example).

The prompt is what chat and serve send. As a program, this checks the templates (*.jinja) in a folder:
`python -m tests.data.prompts FOLDER`, and prints a table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from featherback.data.templates.chat import ChatTemplate, RewrittenError, one_answer_each
from featherback.data.templates.renderer import Renderer
from featherback.data.tokenizers.special import END_TOKENS, control_names, find_ends, joined
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from tests.data import templates
from tests.data.support import JOINED, byte_tokenizer

MOMENT = datetime(2026, 3, 9, 12, 30)
RENDERER = Renderer()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name} of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name."}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "news")
]


_THINK = re.compile("</?think>")


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"type": "function", "id": "call_7Yx-12345", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "call_7Yx-12345", "name": "weather"}
ASKED = [user("Weather in Rome?"), answer("", tool_calls=[CALL])]

CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "plain": ([user("Hi?"), answer("Hello")], None),
    "system": ([SYSTEM, user("Hi?"), answer("Hello")], None),
    "tools": ([user("Hi?"), answer("Hello")], TOOLS),
    "call": (ASKED, TOOLS),
    "result": ([*ASKED, RESULT, answer("Sunny")], TOOLS),
    "reasoning": ([user("Hi?"), answer("Hello", reasoning_content="Hmm.")], None),
    "think": ([user("Hi?"), answer("<think>\nHmm.\n</think>\n\nHello")], None),
    "turns": ([user("Hi?"), answer("Hello"), user("And now?"), answer("Nothing")], None),
    "newline": ([user("Hi?"), answer("\nHello")], None),
    "space": ([user("Hi?"), answer(" Hello")], None),
    "empty": ([user("Hi?"), answer("")], None),
}


def tokenizer_for(template: str, bos: str | None, eos: str, **names: str) -> Tokenizer:
    """A tokenizer with the control tokens of a template, and tokens across the usual boundaries."""
    control = dict.fromkeys([*([bos] if bos else []), eos, *control_names(template)])
    tokenizer = byte_tokenizer(template, bos, eos, control=tuple(control), merges=JOINED, **names)
    assert tokenizer.eos_id is not None
    ends = find_ends("the tests", tokenizer.control, [tokenizer.eos_id], tokenizer.eos_id)
    return replace(tokenizer, end_ids=ends.ids)


def examples(chat: ChatTemplate, messages: Sequence[dict[str, Any]], tools: Any) -> Iterator[tuple[Sequence[Any], Any]]:
    """Yield what is trained: conversations, with their rendering."""
    try:
        yield messages, chat.training(messages, tools)
    except RewrittenError:
        parts = list(one_answer_each(messages))
        if len(parts) == 1 and len(parts[0]) == len(messages):
            raise
        for part in parts:
            yield part, chat.training(part, tools)


def check(tokenizer: Tokenizer, chat: ChatTemplate, messages: Sequence[dict[str, Any]], tools: Any) -> int:
    """Assert the property for every trained answer. Returns the number of examples made of the conversation."""
    found = list(examples(chat, messages, tools))
    trained = 0
    for conversation, rendering in found:
        ids, mask = chat.encode(rendering)
        starts = [i for i in range(len(ids)) if mask[i] and not (i and mask[i - 1])]
        answers = [i for i, m in enumerate(conversation) if m["role"] == "assistant" and m.get("weight", 1)]
        assert len(starts) == len(answers)
        for start, i, (begin, end) in zip(starts, answers, rendering.supervised, strict=True):
            assert ids[:start] == chat.encode_prompt(conversation[:i], tools), (
                tokenizer.decode(ids[:start], special=True),
                chat.prompt(conversation[:i], tools).text,
            )
            stop = mask.index(False, start) if False in mask[start:] else len(ids)
            said = rendering.text[begin:end]
            protected = [(a - begin, b - begin) for a, b in rendering.contents if begin <= a and b <= end]
            alone, _ = tokenizer.encode_with_offsets(said, special=True, protected=protected)
            assert ids[start:stop] == alone.tolist()
            for piece in _THINK.split(conversation[i]["content"]):
                assert piece.strip() in said, (piece, said)
            trained += 1
    assert trained == sum(m["role"] == "assistant" for m in messages)
    return len(found)


def verdict(template: str, case: str, bos: str | None, eos: str) -> str:
    """Return "ok", "ok, N examples" if the conversation is split, or the sentence of the refusal."""
    tokenizer = tokenizer_for(template, bos, eos)
    messages, tools = CASES[case]
    try:
        count = check(tokenizer, ChatTemplate(tokenizer, RENDERER, MOMENT), messages, tools)
    except FeatherbackError as error:
        return str(error)
    except AssertionError as error:
        return f"WRONG: {error}"
    return "ok" if count == 1 else f"ok, {count} examples"


_TAG = re.compile(r"<[^<>]{1,40}>|\[[^\[\]]{1,40}\]|\[e~\[")
_TAGS = re.compile(rf"(?:\s*(?:{_TAG.pattern}))*")


def end_of(template: str, tools: Any) -> str:
    """A token that a template writes directly behind an answer: one that is known to end answers, or the last."""
    for messages in (CASES["plain"][0], CASES["turns"][0]):
        names = {"eos_token": "</s>", "bos_token": "<s>"}
        rendered = RENDERER.render(template, names, "", [(messages, False)], tools)[0]
        behind = rendered.rpartition(messages[-1]["content"])[2] if isinstance(rendered, str) else ""
        if (tags := _TAGS.match(behind)) and (found := _TAG.findall(tags[0])):
            return next((name for name in found if name in END_TOKENS), found[-1])
    return "</s>"


def main(folder: str) -> None:
    """Print what each template of a folder does in each case."""
    refusals = dict[str, int]()
    print("template |", " | ".join(CASES))
    for path in sorted(Path(folder).glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for_tools = path.stem.endswith("tool_use")
        eos = end_of(template, TOOLS if for_tools else None)
        if for_tools:
            template = joined({"default": templates.CHATML.replace("<|im_end|>", eos), "tool_use": template}) or ""
        cells = []
        for case in CASES:
            said = verdict(template, case, "<s>", eos)
            if not said.startswith("ok"):
                said = f"({refusals.setdefault(said, len(refusals) + 1)})"
            cells.append(said)
        print(path.stem, "|", " | ".join(cells), flush=True)
    for said, number in refusals.items():
        print(f"({number}) {said}")


if __name__ == "__main__":
    main(sys.argv[1])
