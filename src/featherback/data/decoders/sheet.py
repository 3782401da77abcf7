"""Spreadsheets (.xlsx, .xls, .ods), read with `python-calamine`, which holds a whole sheet in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from featherback.core.naming import argument
from featherback.data.decoders import BrokenTableError

_MOST_SHEETS = 8  # that an error lists


def load() -> None:
    """Import python-calamine."""
    import python_calamine  # noqa: F401


def rows(file: Any, start: int, alone: bool, sheet: str = "") -> Iterator[list[Any]]:
    """Yield the rows of a workbook's only sheet that is not empty, or of the one called `sheet`, as lists of cells."""
    from python_calamine import CalamineError, CalamineWorkbook

    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(file.read()))
        names = [sheet] if sheet in book.sheet_names else book.sheet_names
        if sheet and sheet not in names:
            raise BrokenTableError(f"it has no sheet {sheet!r}; its sheets are {_listed(names)}")
        used = [name for name in names if book.get_sheet_by_name(name).height]
        if len(used) > 1:
            raise BrokenTableError(
                f"it has {len(used)} sheets ({_listed(used)}). Choose one: {argument('table', f'sheet={used[0]}')}"
            )
        for name in used:
            for number, row in enumerate(book.get_sheet_by_name(name).iter_rows()):
                if number >= start:
                    yield [_cell(each) for each in row]
    except CalamineError as error:
        raise BrokenTableError(str(error)) from error


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_SHEETS]) + ", ..." * (len(names) > _MOST_SHEETS)


def _cell(value: Any) -> Any:
    """Return a cell's text, as the spreadsheet shows it; None if it is empty."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value) if value != "" else None
