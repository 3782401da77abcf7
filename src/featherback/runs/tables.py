"""Tables from Python as examples, one per row: data frames, `datasets`, Arrow tables and NumPy arrays.

They are recognised by their methods, because Featherback does not need the packages that they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from featherback.errors import FeatherbackError, excerpt, first_few

_ROWS = 1000
"""Rows that are converted at once."""
_COLUMNS = ("column_names", "columns", "schema")
"""Attributes by which a table is recognised."""


def rows(data: Any) -> Iterable[Any]:
    """Return the rows of a table as records ({column: value}); other data are returned unchanged.

    Raises FeatherbackError for several tables, a table that is not computed yet, and a table without names of columns
    that cannot be token lists.
    """
    if isinstance(data, Mapping):
        raise FeatherbackError(_not_one_table(data))
    if isinstance(data, np.ndarray):
        return _array(data)
    if hasattr(data, "with_format"):  # datasets.Dataset: as Python's own values, not as tensors or frames
        return data.with_format(None)
    if hasattr(data, "iter_rows"):  # polars
        return data.iter_rows(named=True)
    if hasattr(data, "collect_schema"):
        raise FeatherbackError("The data are a lazy frame, which has no rows yet. Pass data.collect() instead.")
    if hasattr(data, "itertuples"):
        return _of_pandas(data)
    if hasattr(data, "to_batches"):  # pyarrow
        return chain.from_iterable(batch.to_pylist() for batch in data.to_batches(max_chunksize=_ROWS))
    if hasattr(data, "to_pylist"):  # a part of a pyarrow table
        return data.to_pylist()
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        raise FeatherbackError(
            f"The data are {excerpt(data)}; pass the path of a file, a list of examples, or a data frame."
        )
    return data


def plain(value: Any) -> Any:
    """Return a value of a cell in a form that JSON has: an array as a list, a date as text; for `json.dumps`.

    Raises TypeError for anything else.
    """
    for convert in ("tolist", "isoformat"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    raise TypeError(f"{type(value).__name__} {excerpt(value)} has no counterpart")


def _not_one_table(data: Mapping[Any, Any]) -> str:
    names = [str(name) for name in data]
    if data and all(any(hasattr(value, name) for name in _COLUMNS) for value in data.values()):
        one = "train" if "train" in names else names[0]
        return f"The data are {len(names)} data sets: {first_few(names)}. Pass one of them, such as data[{one!r}]."
    return (
        f"The data are a dictionary with the keys {first_few(names) or 'of none'}. Pass a list of "
        f'records, one for each example, such as [{{"prompt": ..., "completion": ...}}].'
    )


def _array(data: Any) -> Iterable[Any]:
    """Return an array's rows: records if it has named fields, pairs for two columns of text, else token lists."""
    if data.dtype.names:
        return (dict(zip(data.dtype.names, row.tolist(), strict=True)) for row in data)
    if data.ndim == 0:
        raise FeatherbackError("The data are an array without dimensions; pass one with a row for each example.")
    if data.ndim == 2 and data.size and isinstance(data[0, 0], str):
        if data.shape[1] != 2:
            raise FeatherbackError(
                f"The data are an array of texts with {data.shape[1]} columns; it must have two: prompt and completion."
            )
        return map(tuple, data.tolist())
    return data if data.dtype.kind in "iuf" else data.tolist()


def _of_pandas(frame: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a pandas.DataFrame. A missing value is None, whatever the type of its column."""
    names = [str(name) for name in frame.columns]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise FeatherbackError(f"Two columns of the data have the name {repeated[0]!r}; rename one of them.")
    for first in range(0, len(frame), _ROWS):
        part = frame.iloc[first : first + _ROWS]
        values = part.astype(object).where(part.notna(), None)
        yield from (dict(zip(names, row, strict=True)) for row in values.itertuples(index=False, name=None))
