"""Data frames of pandas and polars, and data sets of `datasets`, train exactly like the records in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from tests.support.tiny_chat import write_tiny_chat

pytestmark = [
    pytest.mark.full("it needs packages that the default tests do not need"),
    pytest.mark.usefixtures("in_python"),
]
RECORDS = [{"prompt": f"What is {i}?", "completion": f"A number, {i}."} for i in range(6)]
CHATS = [
    {"messages": [{"role": "user", "content": f"Hi {i}"}, {"role": "assistant", "content": f"Ho {i}"}]}
    for i in range(6)
]
LABELLED = [{"text": f"the {word} {i}", "label": i % 2} for i, word in enumerate(("bank", "ball") * 4)]
NUMBERED = [{**record, "id": None if i == 2 else i, "score": i / 2} for i, record in enumerate(RECORDS)]
Make = Callable[[list[dict[str, Any]]], Any]


def _pandas(records: list[dict[str, Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame(records, index=range(7, 7 + len(records)))


def _read_back(records: list[dict[str, Any]]) -> Any:
    """A frame whose lists are arrays, as pandas reads Parquet files."""
    import io

    import pandas as pd

    file = io.BytesIO()
    pd.DataFrame(records).to_parquet(file)
    return pd.read_parquet(file)


def _nullable(records: list[dict[str, Any]]) -> Any:
    return _pandas(records).convert_dtypes()


def _polars(records: list[dict[str, Any]]) -> Any:
    import polars as pl

    return pl.DataFrame(records)


def _datasets(records: list[dict[str, Any]]) -> Any:
    import datasets

    return datasets.Dataset.from_list(records)


def _as_numpy(records: list[dict[str, Any]]) -> Any:
    return _datasets(records).with_format("numpy")


def _streamed(records: list[dict[str, Any]]) -> Any:
    return _datasets(records).to_iterable_dataset()


KINDS = (_pandas, _read_back, _nullable, _polars, _datasets, _as_numpy, _streamed)


@pytest.fixture
def model(tmp_path: Path) -> fb.Model:
    return fb.load(write_tiny_chat(tmp_path / "model.gguf"))


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("records", [RECORDS, CHATS, NUMBERED], ids=["pairs", "chats", "with missing numbers"])
def test_a_table_is_its_records(model: fb.Model, make: Make, records: list[dict[str, Any]]) -> None:
    found, expected = fb.evaluate(model, make(records)), fb.evaluate(model, records)
    assert (found.loss, found.tokens) == (expected.loss, expected.tokens)


@pytest.mark.parametrize("make", KINDS)
def test_training_on_a_table_gives_the_same_bits(model: fb.Model, tmp_path: Path, make: Make) -> None:
    options: dict[str, Any] = {"objective": "classify", "steps": 2, "rank": 2, "progress": False}
    runs = [
        fb.train(model, data, tmp_path / name, eval_data=data, **options)
        for name, data in (("table", make(LABELLED)), ("list", LABELLED))
    ]
    names = [run.path / "adapter_model.safetensors" for run in runs]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_a_missing_answer_is_named(model: fb.Model) -> None:
    with pytest.raises(fb.FeatherbackError, match="completion"):
        fb.evaluate(model, _pandas([*RECORDS, {"prompt": "And?", "completion": float("nan")}]))


def test_several_sets_and_lazy_frames_say_what_to_pass(model: fb.Model) -> None:
    import datasets
    import pandas as pd

    whole = datasets.DatasetDict({"train": _datasets(RECORDS), "test": _datasets(RECORDS)})
    with pytest.raises(fb.FeatherbackError, match=r"2 data sets: train, test. .*, such as data\['train'\]"):
        fb.evaluate(model, whole)
    with pytest.raises(fb.FeatherbackError, match=r"data.collect\(\)"):
        fb.evaluate(model, _polars(RECORDS).lazy())
    with pytest.raises(fb.FeatherbackError, match="Two columns of the data have the name 'a'"):
        fb.evaluate(model, pd.DataFrame([["x", "y"]], columns=["a", "a"]))
