"""Tables from Python give the same tokens as their records. `tests/clients/test_tables.py` has real data frames."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import featherback as fb
from tests.support.tiny_chat import write_tiny_chat

pytestmark = pytest.mark.usefixtures("in_python")
PAIRS = [(f"What is {i}?", f"A number, {i}.") for i in range(6)]
RECORDS = [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS]
TOKENS = [[1, 2, 3, 4 + i] for i in range(4)]


@pytest.fixture
def model(tmp_path: Path) -> fb.Model:
    return fb.load(write_tiny_chat(tmp_path / "model.gguf"))


@pytest.mark.parametrize(
    ("table", "same"),
    [
        (pa.Table.from_pylist(RECORDS), RECORDS),
        (pa.Table.from_pylist(RECORDS).to_batches()[0], None),
        (np.array(PAIRS), RECORDS),
        (np.array(PAIRS, dtype=object), RECORDS),
        (np.array(PAIRS, dtype=[("prompt", "U20"), ("completion", "U20")]), RECORDS),
        (np.array(TOKENS), TOKENS),
        ([{"prompt": np.str_("What?"), "completion": np.int64(3)}], [{"prompt": "What?", "completion": 3}]),
        ([{"messages": np.array([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])}],
         [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]),
    ],
    ids=["arrow", "batch", "texts", "objects", "fields", "tokens", "scalars", "array of messages"],
)  # fmt: skip
def test_a_table_is_its_rows(model: fb.Model, table: Any, same: Any) -> None:
    found, expected = fb.evaluate(model, table), fb.evaluate(model, RECORDS if same is None else same)
    assert (found.loss, found.tokens) == (expected.loss, expected.tokens)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"train": pa.table({}), "test": pa.table({})}, r"2 data sets: train, test. .*, such as data\['train'\]"),
        ({"validation": pa.table({})}, r"data\['validation'\]"),
        ({"prompt": ["a"], "completion": ["b"]}, "dictionary with the keys prompt, completion. Pass a list of records"),
        ({}, "dictionary"),
        (SimpleNamespace(collect_schema=None), r"data.collect\(\)"),
        (np.array([["a", "b", "c"]]), "array of texts with 3 columns"),
        (np.array(["a", "b"]), r"Example 0 is 'a'; pass texts as \(prompt, completion\)"),
        (np.array(3), "an array without dimensions"),
        (7, "The data are 7; pass the path of a file"),
        ([{"prompt": "a", "completion": object()}], "cannot be written as JSON: object"),
    ],
    ids=lambda each: each[:20] if isinstance(each, str) else "data",
)  # fmt: skip
def test_data_that_are_not_one_table(model: fb.Model, tmp_path: Path, data: Any, says: str) -> None:
    for use in (lambda: fb.evaluate(model, data), lambda: fb.train(model, data, tmp_path / "run", steps=1)):
        with pytest.raises(fb.FeatherbackError, match=says):
            use()
    assert not (tmp_path / "run").exists()
