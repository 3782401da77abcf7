"""tokens(prompt) + tokens(answer) = tokens(example), for every family, and what the prompt contains."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from datetime import datetime
from typing import Any

import pytest

from featherback.data.encoder import Encoder
from featherback.data.example import Example
from featherback.data.report import PrepareReport
from featherback.data.templates.adapting import reasoning_of
from featherback.data.templates.chat import TRAINING_MOMENT, ChatTemplate
from featherback.data.tokenizers.special import joined
from featherback.errors import FeatherbackError
from featherback.web.openai.fields import Fields
from featherback.web.openai.messages import messages_of
from tests.data import templates
from tests.data.prompts import CASES, RENDERER, SYSTEM, TOOLS, answer, check, tokenizer_for, user, verdict
from tests.data.styles import STYLES, template_of
from tests.data.test_families import FAMILIES

NO_TOOLS = {"gemma2", "gemma3", "llama2", "llama3", "mistral-v1", "olmo2", "phi3.5", "phi4", "smollm2", "smollm3"}
NO_TOOLS |= {"deepseek-r1", "zephyr"}
NO_PLACE = {"closes its thoughts", "closes its thoughts and repeats the end", "names what follows", "a channel"}
REASONS = {"deepseek-r1", "qwen3", "opens its thoughts", "opens its thoughts on one line"}
REASONS |= {"opens what the answer only closes", "writes empty thoughts in another way"}
REASONS |= {"opens thoughts and names what follows", "thoughts only in the last", "thoughts by another name"}
REFUSED = {
    "system": {"gemma2", "mistral-v1"},
    "tools": NO_TOOLS,
    "call": NO_TOOLS | {"granite3.3"},
    "result": NO_TOOLS | {"granite3.3"},
    "reasoning": {*FAMILIES, *STYLES} - REASONS,
    "think": NO_PLACE,
}
"""Families and styles whose template has no place for something."""
SENTENCES = ("drops or changes", "rejects this conversation", "leaves no place for its reasoning")


def template_named(name: str) -> tuple[str, str | None, str]:
    """The template of a family or a style, its BOS and its end token."""
    if name in FAMILIES:
        return FAMILIES[name][:3]
    template = template_of(STYLES[name])
    return template, None, "<|return|>" if "<|return|>" in template else "<|im_end|>"


@pytest.mark.parametrize("name", [*FAMILIES, *STYLES])
def test_the_trained_prompt_is_the_prompt(name: str) -> None:
    for case in CASES:
        found = verdict(*template_named(name)[:1], case, *template_named(name)[1:])
        if name in REFUSED.get(case, ()):
            assert any(sentence in found for sentence in SENTENCES), (case, found)
        else:
            assert found.startswith("ok"), (case, found)


def chat_with(style: str, moment: datetime | None = None) -> ChatTemplate:
    return ChatTemplate(tokenizer_for(*template_named(style)), RENDERER, moment)


def said(style: str, *messages: dict[str, Any]) -> list[str]:
    """The trained texts of a conversation."""
    rendering = chat_with(style).training(messages)
    return [rendering.text[a:b] for a, b in rendering.supervised]


def test_a_planted_difference_is_found() -> None:
    """Without the cut at the answer, a token joins two line breaks."""
    tokenizer = tokenizer_for(*template_named("the same"))
    chat = ChatTemplate(tokenizer, RENDERER)
    asked, rendering = [user("Hi?")], chat.training([user("Hi?"), answer("\nHello")])
    ids, _ = tokenizer.encode_with_offsets(rendering.text, special=True, protected=rendering.contents)
    prompt = chat.encode_prompt(asked)
    assert ids[: len(prompt)].tolist() != prompt
    assert chat.encode(rendering)[0][: len(prompt)] == prompt


@pytest.mark.parametrize(
    ("style", "plain", "reasoned"),
    [
        ("opens its thoughts", "\n</think>\n\nHello<|im_end|>", "Hmm.\n</think>\n\nHello<|im_end|>"),
        ("opens its thoughts on one line", "</think>Hello<|im_end|>", "Hmm.</think>Hello<|im_end|>"),
        ("closes its thoughts", "Hello<|im_end|>", None),
        ("closes its thoughts and repeats the end", "Hello<|im_end|>", None),
        ("opens what the answer only closes", "</think>Hello<|im_end|>", "Hmm.</think>Hello<|im_end|>"),
        ("writes empty thoughts in another way", "</think>Hello<|im_end|>", None),
        ("names what follows", "<|START_RESPONSE|>Hello<|END_RESPONSE|><|im_end|>", None),
        ("a channel", "Hello<|im_end|>", None),
        ("an instruction at the end", "Hello<|im_end|>", None),
        (
            "opens thoughts and names what follows",
            "<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|><|im_end|>",
            "Hmm.<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|><|im_end|>",
        ),
        ("thoughts by another name", "Hello<|im_end|>", "[T]Hmm.[/T]Hello<|im_end|>"),
    ],
)
def test_what_is_trained_behind_the_prompt(style: str, plain: str, reasoned: str | None) -> None:
    assert said(style, user("Hi?"), answer("Hello")) == [plain]
    if reasoned is not None:
        assert said(style, user("Hi?"), answer("Hello", reasoning_content="Hmm.")) == [reasoned]


def test_a_conversation_whose_turns_are_rewritten_becomes_several_examples() -> None:
    tokenizer = tokenizer_for(*template_named("opens its thoughts"))
    turns = CASES["turns"][0]
    with Encoder(tokenizer) as encoder:
        found = list(encoder.encode_all([Example("line 1", messages=turns), Example("line 2", messages=turns[:2])]))
        assert encoder.split == 1
    texts = []
    for item in found:
        assert isinstance(item, tuple)
        ids, mask = item[1].ids, item[1].mask
        texts.append((item[0].where, tokenizer.decode(ids[mask], special=True)))
    first = "\n</think>\n\nHello<|im_end|>"
    assert texts == [("line 1", first), ("line 1", "\n</think>\n\nNothing<|im_end|>"), ("line 2", first)]


def test_untrained_turns_need_no_split() -> None:
    asked, first, again, last = CASES["turns"][0]
    messages = [asked, {**first, "weight": 0}, again, last]
    assert said("opens its thoughts", *messages) == ["\n</think>\n\nNothing<|im_end|>"]


# --- the date ---


def test_the_date_is_now_in_a_prompt_and_fixed_in_training() -> None:
    chat = chat_with("the date")
    today = {f"Today is {datetime.now():%d %B %Y}."}
    text = chat.prompt([user("Hi?")]).text
    today.add(f"Today is {datetime.now():%d %B %Y}.")
    assert any(day in text for day in today)
    tokenizer = tokenizer_for(*template_named("the date"))
    with Encoder(tokenizer) as encoder:
        encoded = encoder.encode(Example("line 1", messages=[user("Hi?"), answer("Hello")]))
        assert encoder.written_date == "2024-07-26"
    assert f"Today is {TRAINING_MOMENT:%d %B %Y}." in tokenizer.decode(encoded.ids, special=True)
    with Encoder(tokenizer_for(*template_named("the same"))) as encoder:
        assert encoder.written_date is None


def test_each_rendering_has_its_own_time() -> None:
    """The process does not keep the time at which it loaded the template."""
    for day in (1, 2):
        chat = chat_with("the date", datetime(2030, 1, day))
        assert f"Today is 0{day} January 2030." in chat.prompt([user("Hi?")]).text


# --- tools ---


def test_a_second_template_is_used_with_tools() -> None:
    with_tools = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}" + templates.CHATML
    text = joined({"default": "  " + templates.CHATML + "\n", "tool_use": with_tools, "rag": "{{ documents }}"})
    assert text is not None
    tokenizer = tokenizer_for(text, None, "<|im_end|>")
    chat = ChatTemplate(tokenizer, RENDERER)
    plain = ChatTemplate(tokenizer_for("  " + templates.CHATML, None, "<|im_end|>"), RENDERER)
    other = ChatTemplate(tokenizer_for(with_tools, None, "<|im_end|>"), RENDERER)
    messages = [SYSTEM, user("Hi?"), answer("Hello")]
    assert chat.render(messages) == plain.render(messages)
    assert chat.render(messages, tools=TOOLS) == other.render(messages, tools=TOOLS)
    assert chat.render(messages, tools=TOOLS).startswith("TOOLS")
    check(tokenizer, chat, messages, TOOLS)
    assert joined({"tool_use": "a"}) is None
    assert joined({"default": "a"}) == "a"


def test_a_tool_whose_name_only_another_tool_mentions_is_refused() -> None:
    """The rendering without the tool is the same."""
    first_only = templates.CHATML.replace("{% for message", "{{ (tools or [])[:1] | tojson }}{% for message", 1)
    chat = ChatTemplate(tokenizer_for(first_only, None, "<|im_end|>"), RENDERER)
    forecast, weather = ({"type": "function", "function": {"name": name}} for name in ("weather_forecast", "weather"))
    messages = [user("Hi?"), answer("Hello")]
    with pytest.raises(FeatherbackError, match=r"drops or changes tool 2 \('weather'\)"):
        chat.training(messages, [forecast, weather])
    assert chat.training(messages, [weather]).supervised
    with pytest.raises(FeatherbackError, match="tool 2"):
        chat.prompt(messages[:1], [forecast, weather])


@pytest.mark.parametrize("template", [templates.QWEN2_5, templates.CHATML])
def test_many_tools_take_the_memory_of_a_few_copies(template: str) -> None:
    """Also while each is looked for in the rendering of all others. Nothing of them is kept."""
    chat = ChatTemplate(tokenizer_for(template, None, "<|im_end|>"), RENDERER)
    chat.prompt([user("Hi?")])  # starts the process
    tools = [{"type": "function", "function": {"name": f"f{k}", "parameters": {"type": "object"}}} for k in range(150)]
    size = len(json.dumps(tools))
    tracemalloc.start()
    with suppress(FeatherbackError):  # one of the templates has no place for tools
        chat.prompt([user("Hi?")], tools)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * size
    assert kept < size


def test_ids_of_calls_fit_the_template_and_agree() -> None:
    conversation, tools = CASES["result"]
    chat = ChatTemplate(tokenizer_for(templates.MISTRAL_V3, "<s>", "</s>"), RENDERER)
    text = chat.training(conversation, tools).text
    first, second = (text.split(key)[1][:9] for key in ('"id": "', '"call_id": "'))
    assert first == second
    assert first.isalnum()
    assert "call_7Yx" not in text
    kept = [conversation[0], answer("", tool_calls=[{**conversation[1]["tool_calls"][0], "id": "abc123DEF"}])]
    assert '"id": "abc123DEF"' in chat.training(kept, tools).text
    nameless = [
        conversation[0],
        answer("", tool_calls=[{k: v for k, v in conversation[1]["tool_calls"][0].items() if k != "id"}]),
        {"role": "tool", "content": "sunny"},
        answer("Sunny"),
    ]
    text = chat.training(nameless, tools).text
    assert text.split('"id": "')[1][:9] == text.split('"call_id": "')[1][:9]


# --- reasoning ---


def test_names_of_reasoning_are_one() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert reasoning_of({"role": "assistant", name: "Hmm."}, "message 1") == {"reasoning_content": "Hmm."}
    assert reasoning_of({"reasoning": "a", "thinking": "a", "reasoning_content": None}, "message 1") == {
        "reasoning_content": "a"
    }
    assert reasoning_of({"reasoning": ""}, "message 1") == {}
    with pytest.raises(FeatherbackError, match="'reasoning' and 'thinking' of message 1 differ"):
        reasoning_of({"reasoning": "a", "thinking": "b"}, "message 1")


def test_notes_name_split_conversations_and_the_date() -> None:
    report = PrepareReport(["chats.jsonl"], 256, examples=3, split=1, written_date="2024-07-26")
    split, date = report.notes()
    assert split.startswith("1 conversation is split into examples")
    assert "In training it is always 2024-07-26" in date


def test_a_request_may_name_reasoning_in_three_ways() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        fields = Fields({"messages": [user("Hi?"), answer("Hello", **{name: "Hmm."})]})
        assert messages_of(fields, 100)[1]["reasoning_content"] == "Hmm."
