"""Conversations that are already rendered as text."""

from __future__ import annotations

import pytest

from featherback.data.containers.base import Record
from featherback.data.example import Bad
from featherback.data.shapes import example_of
from featherback.data.templates.chat import ChatTemplate
from tests.data.prompts import RENDERER, tokenizer_for
from tests.data.test_families import FAMILIES

CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
)
SYSTEM, ASKED, SAID = (
    {"role": role, "content": content}
    for role, content in (("system", "Be brief."), ("user", "Hi?"), ("assistant", "Ho"))
)


def read(text: str, columns: dict[str, str] | None = None, key: str = "text"):
    return example_of(Record("line 1", {key: text}), columns or {})


@pytest.mark.parametrize(
    "text",
    [
        CHATML,
        "<|im_start|>user\nHi",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
        "<bos><start_of_turn>user\nHi<end_of_turn>\n",
        "<s>[INST] Hi [/INST] Ho</s>",
        "<|user|>\nHi</s>\n<|assistant|>\nHo</s>\n",
        "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>Ho<｜end▁of▁sentence｜>",
    ],
)
def test_a_rendered_text_is_refused_with_both_options(text: str) -> None:
    found = read(text)
    assert isinstance(found, Bad)
    assert "map messages=text" in found.problem.replace("map=", "map ").replace("'", "").replace("[", "")
    assert "text=text" in found.problem
    plain = read(text, {"text": "text"})
    assert not isinstance(plain, Bad)
    assert plain.text == text


@pytest.mark.parametrize("text", ["A page about <|im_start|>user in prompts.", "[INST", "<|endoftext|> a", "Hi"])
def test_other_texts_are_texts(text: str) -> None:
    found = read(text)
    assert not isinstance(found, Bad)
    assert found.text == text


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("olmo2", "phi4", "qwen3")])
def test_a_rendering_of_each_family_is_read_back(family: str) -> None:

    template, bos, eos, _ = FAMILIES[family]
    chat = ChatTemplate(tokenizer_for(template, bos, eos), RENDERER)
    said = [ASKED, SAID, {**ASKED, "content": "And\n\nnow?"}, {**SAID, "content": "Nothing."}]
    found = read(chat.render(said), {"messages": "text"})
    assert not isinstance(found, Bad)
    assert found.messages is not None
    assert [m for m in found.messages if m["role"] != "system"] == said


def test_a_system_message_is_read_back() -> None:
    for text in (CHATML, "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi? [/INST] Ho </s>"):
        found = read(text, {"messages": "text"})
        assert not isinstance(found, Bad)
        assert found.messages == [SYSTEM, ASKED, SAID]


def test_text_between_messages_is_refused() -> None:
    found = read(CHATML + "more", {"messages": "text"})
    assert isinstance(found, Bad)
    assert "belongs to no message" in found.problem
    found = read("Hello", {"messages": "text"})
    assert isinstance(found, Bad)
    assert "must be a non-empty list" in found.problem
