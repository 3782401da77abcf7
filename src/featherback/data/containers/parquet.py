"""Parquet files, read with `pyarrow`. This is the only module that imports it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from featherback.data.containers.base import Record, Records
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.record_size import SHORT, RawSize
from featherback.errors import FeatherbackError

_ROWS = 32  # rows turned into objects at once


class Parquet(Records):
    title = "Parquet"
    suffixes = (".parquet",)
    nothing = "only column names"

    def recognises_start(self, begin: bytes) -> bool:
        return begin.startswith(b"PAR1")

    def read(self, data: Input) -> Iterator[Record | Bad]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise FeatherbackError(
                f"{data.name} is a Parquet file. To read it, install pyarrow: pip install 'featherback[parquet]'."
            ) from None
        number = reported = 0
        try:
            with data.open() as content:
                file = parquet.ParquetFile(content, buffer_size=1 << 16, pre_buffer=False)
                data.room.sample_memory(now=True)  # pyarrow itself takes more memory than everything else
                for batch in file.iter_batches(batch_size=_ROWS):
                    # Long rows are turned into objects one at a time.
                    rows = batch.num_rows if batch.nbytes <= SHORT else 1
                    for at in range(0, batch.num_rows, rows):
                        few = batch.slice(at, rows)
                        size = RawSize.of_unknown(few.nbytes if rows == 1 else 0)
                        where = f"{data.name}, row {number + 1}"
                        if size.size > SHORT and not data.room.admits(where, size.size, size.reading, size.at_most):
                            number += 1
                            continue
                        for values in few.to_pylist():
                            number += 1
                            yield Record(f"{data.name}, row {number}", _without_nulls(values))
                    now = data.size * number // file.metadata.num_rows
                    data.watch(now - reported)
                    reported = now
        except (pyarrow.ArrowException, OSError) as error:
            said = " ".join(str(error).split())
            raise FeatherbackError(f"Cannot read the Parquet file {data.name}: {said[:200]}.") from error


CONTAINER = Parquet()


def _without_nulls(value: Any) -> Any:
    """Remove nulls: in a table, every object has the keys of all others, with null as the value."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
