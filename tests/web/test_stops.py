"""Stop strings, across every way to cut a text into pieces."""

from __future__ import annotations

from itertools import combinations

import pytest

from featherback.web.openai import replies
from featherback.web.openai.replies import Stops

CASES = [
    ("hello world", ["lo w"], "hel"),
    ("hello world", ["xyz"], "hello world"),
    ("hello", ["o"], "hell"),
    ("hello", ["h"], ""),
    ("aaab", ["aab"], "a"),
    ("ababac", ["abac"], "ab"),
    ("abcd", ["abcd", "bc"], "a"),  # the one that is complete first
    ("abcd", ["bcd", "c"], "ab"),
    ("one\n\ntwo", ["\n\n"], "one"),
    ("one\ntwo", ["\n\n"], "one\ntwo"),
    ("ends with half", ["half an hour"], "ends with half"),
    ("日本語", ["本"], "日"),
]


def cut(text: str) -> list[list[str]]:
    """Every way to cut a text into pieces, or a part of them for longer texts."""
    places = range(1, len(text))
    ways = [way for count in range(len(text)) for way in combinations(places, count)]
    return [[text[a:b] for a, b in zip((0, *way), (*way, len(text)))] for way in ways[:600]]


def run(pieces: list[str], wanted: list[str]) -> str:
    found = Stops(wanted)
    text = ""
    for piece in pieces:
        text += found.push(piece)
        assert not any(stop in text for stop in wanted)
    return text if found.found else text + found.flush()


@pytest.mark.parametrize(("text", "wanted", "expected"), CASES)
def test_stops_do_not_depend_on_the_pieces(text: str, wanted: list[str], expected: str) -> None:
    assert {run(pieces, wanted) for pieces in cut(text)} == {expected}


def test_text_is_held_back_only_while_it_may_be_a_stop() -> None:
    found = Stops(["STOP"])
    assert [found.push(piece) for piece in ("ab", "cST", "x", "S", "TO", "Q")] == ["ab", "c", "STx", "", "", "STOQ"]


def test_a_planted_fault_of_the_overlap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "overlap", lambda text, stop: 0)
    with pytest.raises(AssertionError):
        test_stops_do_not_depend_on_the_pieces("hello world", ["lo w"], "hel")
