"""docs/troubleshooting.md: every message quoted there is one that the program says."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from featherback.core.naming import argument, argument_is, arguments
from tests.support.sources import parsed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTED = re.findall(r"^> (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
VARIES = "…"
"""In the page: a name, a number, or the rest of a sentence that comes from elsewhere."""


def messages(source: Path) -> Iterator[str]:
    """The texts in a module, what is computed in them as one character that no page has."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(part_of, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def part_of(node: ast.expr) -> str:
    """A part of a text. Options that it names (`argument("seq_len")`) are as the command line has them."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    call = node.value if isinstance(node, ast.FormattedValue) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "shown_mb":
        return "\0 MB"
    named = NAMING.get(call.func.id) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None
    if named is None or not isinstance(call, ast.Call):
        return "\0"
    words = [each.value if isinstance(each, ast.Constant) else "\0" for each in call.args]
    return named(*words) if isinstance(words[0], str) and words[0] != "\0" else "\0"


NAMING: dict[str, Callable[..., str]] = {"argument": argument, "argument_is": argument_is, "arguments": arguments}


@cache
def said() -> set[str]:
    """Texts that are long enough for a quotation."""
    return {text for source in (ROOT / "src").rglob("*.py") for text in messages(source) if len(text) > 10}


def is_said(quoted: str) -> bool:
    """Whether some text of the program is this one, word for word but where it varies."""
    parts = quoted.split(VARIES)
    pattern, longest = re.compile(".*".join(map(re.escape, parts)), re.DOTALL), max(parts, key=len)
    return any(pattern.fullmatch(text) for text in said() if longest in text)


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_message_is_said(quoted: str) -> None:
    assert len(re.sub(r"\W", "", quoted.replace(VARIES, ""))) >= 10, "too little of it is quoted to be found"
    assert is_said(quoted), "no such text in src; what does the program say now?"


def test_what_is_not_said_is_noticed() -> None:
    assert len(QUOTED) > 30
    assert is_said("… does not fit in …MB: these options need at least …")
    assert not is_said("… does not fit into …MB: these options need at least …")
    assert not is_said("… does not fit in 96MB: these options need at least …")
