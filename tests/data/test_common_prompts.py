"""The prompt of a pair without "prompt": what both answers begin with, cut at a word."""

from __future__ import annotations

import pytest

from featherback.data.shapes.preferences import SHAPE


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("Q: Is it far?\nA: There are two.", "Q: Is it far?\nA: The bus stop.", "Q: Is it far?\nA:"),
        ("Thanks 👍🏽", "Thanks 👍🏿", "Thanks"),
        ("Thanks👍🏽", "Thanks👍🏿", ""),
        ("A 👨‍👩‍👧 here", "A 👨‍👩‍👦 there", "A"),
        ("The sky is blue", "The sky is blue and vast", "The sky is blue"),
        ("The sky is blue and vast", "The sky is blue", "The sky is blue"),
        ("Is 12 prime? No, 12 is even.", "Is 12 prime? No, 13 is.", "Is 12 prime? No,"),
        ("It is 3.14159.", "It is 3.15.", "It is"),
        ("Price: -5", "Price: -7", "Price:"),
        ("don't", "don't you", "don't"),
        ("I can't go", "I can go", "I"),
        ("Question\n\nYes", "Question\n\nNo", "Question\n\n"),
        ("Question\nYes", "Question\n\nNo", "Question"),
        ("Question:\tYes", "Question:\tNo", "Question:"),
        ("cafe\u0301 x", "cafe\u0300 y", ""),
        ("我喜欢猫。", "我喜欢狗。", "我喜欢"),
        ("Yes", "No", ""),
        ("same", "same", "same"),
    ],
)
def test_the_prompt_ends_at_a_word(chosen: str, rejected: str, prompt: str) -> None:
    found = SHAPE.read({"chosen": chosen, "rejected": rejected}, "line 1")
    assert found.rejected is not None
    assert (found.prompt, found.rejected.prompt) == (prompt, prompt)
    assert (found.completion, found.rejected.completion) == (chosen[len(prompt) :], rejected[len(prompt) :])
