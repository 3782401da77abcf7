"""What a node has sent is read with suspicion. Messages are stand-ins here, so that Flower is not needed."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from featherback.errors import FeatherbackError
from featherback.federated import messages

GOOD = {"tokens": 5, "loss": 1.5}


def _message(arrays: Any = None, measures: Any = None) -> Any:
    found = {"arrays": {name: _array(each) for name, each in (arrays or {}).items()}}
    return SimpleNamespace(content=SimpleNamespace(array_records=found, metric_records={"metrics": measures or GOOD}))


def _array(data: bytes) -> Any:
    """Return a stand-in for Flower's array, which reads its bytes with NumPy as that does."""
    return SimpleNamespace(numpy=lambda: np.load(io.BytesIO(data), allow_pickle=False))


def _bytes(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_tensors_are_read_when_they_are_asked_for() -> None:
    tensors = messages.tensors_of(_message({"a": _bytes(np.ones(3, np.float32)), "b": b"damaged"}))
    assert list(tensors) == ["a", "b"]
    np.testing.assert_array_equal(tensors["a"], np.ones(3, np.float32))
    with pytest.raises(FeatherbackError, match="The tensor b cannot be read"):
        tensors["b"]


@pytest.mark.parametrize(
    "data",
    [b"", b"PK\x03\x04 and no archive", _bytes(np.ones(3))[:-1], _bytes(np.ones(3)).replace(b"shape", b"shame")],
    ids=["empty", "broken zip", "cut", "header"],
)
def test_damaged_bytes_are_an_error_of_the_tensor(data: bytes) -> None:
    with pytest.raises(FeatherbackError, match="The tensor a cannot be read"):
        messages.arrays_of(_message({"a": data}))


def test_an_archive_is_no_tensor() -> None:
    file = io.BytesIO()
    np.savez(file, a=np.ones(3))
    with pytest.raises(FeatherbackError, match="it is not an array"):
        messages.arrays_of(_message({"a": file.getvalue()}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, [1.0], "\x1b[2J" + 10_000 * "x", None])
def test_a_measure_that_is_no_finite_number_is_an_error_in_one_short_line(value: Any) -> None:
    with pytest.raises(FeatherbackError, match="The measure tokens is") as raised:
        messages.measures_of(_message(measures={**GOOD, "tokens": value}))
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


def test_unknown_measures_are_dropped() -> None:
    assert messages.measures_of(_message(measures={**GOOD, "surprise": "x"})) == GOOD


@pytest.mark.parametrize("records", ["array_records", "metric_records"])
def test_two_sets_are_an_error(records: str) -> None:
    message = _message()
    getattr(message.content, records)["another"] = {}
    with pytest.raises(FeatherbackError, match="does not hold one set"):
        (messages.tensors_of if records == "array_records" else messages.measures_of)(message)


def test_a_log_gets_one_short_line() -> None:
    assert messages.plain("as it is, \u00e9\u4e2d") == "as it is, \u00e9\u4e2d"
    assert messages.plain("a\x1b[2J\r\nb") == "a [2J  b"
    assert messages.plain(100_000 * "x") == messages.LONGEST * "x" + "..."
