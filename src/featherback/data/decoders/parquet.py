"""Parquet, read with `pyarrow`, each row group a few rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from featherback.data.decoders.arrow_library import arrow_errors, check_columns, import_arrow

_ROWS = 32  # rows decoded at once
_PIECE = 1 << 16  # bytes of a column read at once


def load() -> None:
    """Import pyarrow and read a small table, because the library loads more of its code while it reads."""
    import_arrow()
    import pyarrow
    from pyarrow import parquet

    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"a": ["a"], "b": [[{"c": "d"}]]}), table, compression="zstd")
    list(rows(table, 0, alone=False))


def rows(file: Any, start: int, alone: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file from number `start` on. `alone`: decode them one by one."""
    from pyarrow import parquet

    with arrow_errors():
        table = parquet.ParquetFile(file, buffer_size=_PIECE, pre_buffer=False)
        check_columns(table.metadata.num_columns)
        number = 0
        for group in range(table.num_row_groups):
            size = table.metadata.row_group(group).num_rows
            if number + size <= start:
                number += size
                continue
            for batch in table.iter_batches(1 if alone else _ROWS, row_groups=[group], use_threads=False):
                yield from batch.slice(max(0, start - number)).to_pylist()
                number += batch.num_rows
