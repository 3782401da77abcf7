"""docs/troubleshooting.md: every message quoted there is one that the program says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTED = re.findall(r"^> (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
VARIES = "…"
"""In the page: a name, a number, or the rest of a sentence that comes from elsewhere."""


def messages(source: Path) -> Iterator[str]:
    """The texts in a module, what is computed in them as one character that no page has."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


SAID = [text for source in (ROOT / "src").rglob("*.py") for text in messages(source)]


def is_said(quoted: str) -> bool:
    """Whether some text of the program is this one, word for word but where it varies."""
    parts = quoted.split(VARIES)
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.fullmatch(text) for text in SAID if max(parts, key=len) in text)


@pytest.mark.parametrize("quoted", QUOTED)
def test_the_message_is_said(quoted: str) -> None:
    assert len(re.sub(r"\W", "", quoted.replace(VARIES, ""))) >= 10, "too little of it is quoted to be found"
    assert is_said(quoted), "no such text in src; what does the program say now?"


def test_what_is_not_said_is_noticed() -> None:
    assert len(QUOTED) > 30
    assert is_said("Training does not fit in …MB: with these options the least is --memory …; …")
    assert not is_said("Training does not fit into …MB: with these options the least is --memory …; …")
    assert not is_said("Training does not fit in 96MB: with these options the least is --memory …; …")
