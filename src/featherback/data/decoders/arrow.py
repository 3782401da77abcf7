"""Arrow streams and files, as `datasets.save_to_disk` writes them, read with `pyarrow`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from featherback.data.decoders.arrow_library import arrow_errors, check_columns, import_arrow

_ROWS = 32  # turned into objects at once
_FILE = b"ARROW1"


def load() -> None:
    """Import pyarrow."""
    import_arrow()
    import pyarrow

    table = pyarrow.table({"a": ["a"], "b": [[{"c": "d"}]]})
    stream = io.BytesIO()
    with pyarrow.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    stream.seek(0)
    list(rows(stream, 0, alone=False))


def rows(file: Any, start: int, alone: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file from number `start` on."""
    from pyarrow import ipc

    with arrow_errors():
        head = file.read(len(_FILE))
        file.seek(0)
        number = 0
        for batch in _batches(ipc.open_file(file)) if head == _FILE else ipc.open_stream(file):
            check_columns(batch.num_columns)
            step = 1 if alone else _ROWS
            for at in range(max(0, start - number), batch.num_rows, step):
                yield from batch.slice(at, step).to_pylist()
            number += batch.num_rows


def _batches(reader: Any) -> Iterator[Any]:
    return (reader.get_batch(number) for number in range(reader.num_record_batches))
