"""Rows of cells to records: the first row that is neither empty nor a title holds the names of the columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from featherback.core.naming import argument
from featherback.core.terminal import several
from featherback.data.containers.base import Record
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.markup import text_of_html
from featherback.data.record_size import MOST_COLUMNS
from featherback.errors import FeatherbackError, excerpt

Rows = Iterator[tuple[str, "Sequence[object] | str"]]
"""Places and cells of rows; a text instead of cells says why a row cannot be read."""
TITLE = "title line"
"""A line above the column names, as it is counted."""
MOST_TITLES = 5
_HTML = re.compile(r"</?[a-zA-Z][^<>]{0,1000}>|&(?:[a-z]{2,8}|#\d{1,7});")
LONGEST_TITLE = 200  # characters


def records_of(rows: Rows, data: Input, hint: str = "") -> Iterator[Record | Bad]:
    """Yield the records of a table. `hint`: added if a row has too many cells."""
    has_header = data.table.get("header") != "no"
    rows = (row for row in rows if isinstance(row[1], str) or any(map(_is_filled, row[1])))
    rows = _below_titles(rows, data.left_out) if has_header else rows
    first = next(rows, None)
    if first is None:
        return
    where, cells = first
    if isinstance(cells, str):
        raise FeatherbackError(f"{where}: {cells}")
    names = [str(cell) if _is_filled(cell) else "" for cell in cells]
    if len(names) > MOST_COLUMNS:
        raise FeatherbackError(f"{data.name} has {len(names)} columns, and at most {MOST_COLUMNS} are read.")
    if has_header:
        _check_names(where, names)
    else:
        names = [str(number) for number in range(1, len(names) + 1)]
        rows = chain([first], rows)
    as_text = data.table.get("html") == "text"
    for where, cells in rows:
        yield from _record(where, cells, names, hint, as_text)


def _is_filled(cell: object) -> bool:
    return cell is not None and bool(str(cell).strip())


def _below_titles(rows: Rows, left_out: Counter[str]) -> Rows:
    """Leave out and count rows above the column names that hold a title in their first cell and nothing beside it."""
    held = list[tuple[str, Sequence[object] | str]]()
    for where, cells in rows:
        filled = [] if isinstance(cells, str) else [number for number, cell in enumerate(cells) if _is_filled(cell)]
        if filled == [0] and len(cells) > 1 and len(held) < MOST_TITLES and len(str(cells[0])) <= LONGEST_TITLE:
            held.append((where, cells))
            continue
        if held and len(filled) > 1 and len(cells) == len(held[0][1]):
            left_out[TITLE] += len(held)
            held.clear()
        yield from held
        held.clear()
        yield where, cells
        yield from rows
    yield from held


def _check_names(where: str, names: list[str]) -> None:
    named = [name for name in names if name]
    if not named or len(set(named)) < len(named):
        found = excerpt(names[0] if len(names) == 1 else ", ".join(names))
        raise FeatherbackError(
            f"{where}: expected column names, all different; found {found}. If the table has no line of names, add "
            f"{argument('table', 'header=no')}; its columns are then called 1, 2 and so on."
        )


def _record(
    where: str, cells: Sequence[object] | str, names: list[str], hint: str, as_text: bool
) -> Iterator[Record | Bad]:
    """Yield the record of a row, or the problem. Columns without a name must be empty or count the rows.

    `as_text`: cells of HTML become text.
    """
    if isinstance(cells, str):
        yield Bad(where, cells)
        return
    if len(cells) != len(names):
        found = f"found {several(len(cells), 'field')}, but there are {several(len(names), 'column name')}."
        yield Bad(where, f"{found}{hint}")
        return
    unnamed = [cell for cell, name in zip(cells, names, strict=True) if not name and not _counts(cell)]
    if unnamed:
        yield Bad(
            where,
            f"the column of {excerpt(unnamed[0])} has no name. Give it a name, and remove rows above the column names.",
        )
        return
    yield Record(where, {name: _value(cell, as_text) for cell, name in zip(cells, names, strict=True) if name})


def _value(cell: object, as_text: bool) -> object:
    if isinstance(cell, str):
        return text_of_html(cell) if as_text and _HTML.search(cell) else cell.replace("\r\n", "\n")
    return "" if cell is None else cell


def _counts(cell: object) -> bool:
    return not _is_filled(cell) or str(cell).strip().isdecimal()
