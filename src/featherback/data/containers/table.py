"""Rows of cells to records: the first row holds the names of the columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from featherback.core.naming import argument
from featherback.core.terminal import several
from featherback.data.containers.base import Record
from featherback.data.example import Bad
from featherback.data.record_size import MOST_COLUMNS
from featherback.errors import FeatherbackError, excerpt

Rows = Iterator[tuple[str, "Sequence[object] | str"]]
"""Places and cells of rows; a text instead of cells says why a row cannot be read."""


def records_of(rows: Rows, name: str, asked: Mapping[str, str], hint: str = "") -> Iterator[Record | Bad]:
    """Yield the records of a table. `asked`: what the user said about it. `hint`: added if a row has too many cells."""
    first = next(rows, None)
    if first is None:
        return
    where, cells = first
    if isinstance(cells, str):
        raise FeatherbackError(f"{where}: {cells}")
    has_header = asked.get("header") != "no"
    names = ["" if cell is None or not str(cell).strip() else str(cell) for cell in cells]
    if len(names) > MOST_COLUMNS:
        raise FeatherbackError(f"{name} has {len(names)} columns, and at most {MOST_COLUMNS} are read.")
    if has_header:
        _check_names(where, names)
    else:
        names = [str(number) for number in range(1, len(names) + 1)]
        yield from _record(where, cells, names, hint)
    for where, cells in rows:
        yield from _record(where, cells, names, hint)


def _check_names(where: str, names: list[str]) -> None:
    named = [name for name in names if name]
    if not named or len(set(named)) < len(named):
        found = excerpt(names[0] if len(names) == 1 else ", ".join(names))
        raise FeatherbackError(
            f"{where}: expected column names, all different; found {found}. If the table has no line of names, add "
            f"{argument('table', 'header=no')}; its columns are then called 1, 2 and so on."
        )


def _record(where: str, cells: Sequence[object] | str, names: list[str], hint: str) -> Iterator[Record | Bad]:
    """Yield the record of a row, or the problem. Columns without a name must be empty or count the rows."""
    if isinstance(cells, str):
        yield Bad(where, cells)
        return
    if len(cells) != len(names):
        found = f"found {several(len(cells), 'field')}, but line 1 names {several(len(names), 'column')}."
        yield Bad(where, f"{found}{hint}")
        return
    unnamed = [cell for cell, name in zip(cells, names, strict=True) if not name and not _counts(cell)]
    if unnamed:
        yield Bad(where, f"the column of {excerpt(unnamed[0])} has no name. Give it a name in the first line.")
        return
    yield Record(where, {name: cell for cell, name in zip(cells, names, strict=True) if name and cell is not None})


def _counts(cell: object) -> bool:
    return cell is None or not str(cell).strip() or str(cell).strip().isdecimal()
