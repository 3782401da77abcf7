"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; columns in which every entry is a number are aligned right."""
    rows = [list(line) for line in lines]
    marks = ["---:" if all(_numeric(row[i]) for row in rows) else "---" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(head), marks, *rows])


def aligned_right(head: list[str], lines: list[list[str]]) -> str:
    """A table whose columns after the first are aligned right."""
    marks = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *lines))


def number(value: float | None, digits: int = 1) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _numeric(text: str) -> bool:
    bare = text.strip("*%x ")
    try:
        return not bare.strip("-") or float(bare) is not None
    except ValueError:
        return False
