"""Every entry of run.json and of a checkpoint is checked when it is read, and the path of a bad one is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from featherback.core.decode import decode, encode
from featherback.data.report import PrepareReport
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.runs.checkpoint import Progress, State
from featherback.runs.events import Sample
from featherback.runs.record import ApproximateGradient, DataFiles, Failure, HeldOutLoss, Pass, Teacher, TokenCounts
from featherback.runs.run_directory import RunDirectory
from featherback.runs.summary import Change
from tests.runs.conftest import Start

Steps = tuple[Any, ...]
_TAKEN = Pass(examples=3, seconds=1.5, peak_rss_mb=40.0)
_FREE_TEXTS = ("base_model", "model", "created")
"""Entries whose text may be anything."""


@pytest.fixture
def full(start: Start) -> RunDirectory:
    """A real run whose record has something in every entry."""
    run = start("run", steps=2, eval_seed=1)
    record = run.record
    assert record.plan is not None
    assert record.summary is not None
    measures = {"accuracy": 0.5, "margin": -1.25}
    plan = replace(record.plan, rates={"bf16": 1.5}, keep={"gate": 1}, encodings={"gate": "blocks8"})
    plan = replace(
        plan, chunk=4, least_mb=30, fastest_mb=40, free_mb=50, least_step_seconds=1.0, fastest_step_seconds=0.5,
        predicted_step_seconds=0.5, predicted_reading_seconds=0.25,
    )  # fmt: skip
    report = PrepareReport(
        ["/data/a.jsonl"], 64, examples=3, shapes={"messages": 3}, sequences=3, tokens=60, supervised_tokens=9,
        first_skipped=["line 3"], not_read=["b.bin"], unused_keys=["id"], renamed_columns=[{"prompt": "q"}],
        other_roles={"critic": 1}, renamed_roles={"human": 1}, lengths={"16": 3}, first_equal="line 1",
        only_label=True, enough=70, read_to="line 9", tokenizer_notes=("a note",),
    )  # fmt: skip
    change = Change(measures, {"accuracy": 0.75, "margin": 2.0})
    run.update(
        plan=plan,
        sources={"train": DataFiles(["/data/a.jsonl"], ["00c0ffee"])},
        data={"train": report, "eval": TokenCounts(sequences=4, tokens=64, supervised_tokens=30, sequences_before=12)},
        teacher=Teacher(plan=plan, disk_bytes=100, model="0badcafe", taken=_TAKEN),
        reference=_TAKEN,
        gradient=ApproximateGradient(approximated={"gate": 2}, cosine=0.99, lowest_cosine=-0.5),
        evaluations=[HeldOutLoss(0, 4.5, False, measures), *record.evaluations],
        samples=[Sample("say", "a", "b", "c")],
        failure=Failure(1, "the disk was full"),
        summary=replace(
            record.summary, held_out=change, training=change, repetition=0.5, repetition_before=0.25,
            worse=True, recommended={"lr": 1e-4, "epochs": 1.5},
        ),
    )  # fmt: skip
    return run


def test_reading_and_writing_a_record_is_the_identity(full: RunDirectory) -> None:
    content = (full.path / "run.json").read_bytes()
    opened = RunDirectory.open(full.path)
    assert opened.record == full.record
    opened.update()
    assert (full.path / "run.json").read_bytes() == content


def test_every_damaged_entry_of_a_record_is_named(full: RunDirectory) -> None:
    file = full.path / "run.json"
    good = json.loads(file.read_bytes())
    missed, count = [], 0
    for path, wrong in _damages(good):
        file.write_text(json.dumps(wrong))
        try:
            RunDirectory.open(full.path)
            missed.append((path, "accepted"))
        except FeatherbackError as error:
            if not (str(error).startswith(str(file)) and _is_named(path, str(error)) and "\n" not in str(error)):
                missed.append((path, str(error)))
        count += 1
    assert not missed
    assert count > 600
    file.write_text(json.dumps(good))
    assert RunDirectory.open(full.path).record == full.record


def test_a_renamed_role_that_no_preparation_writes_is_named(full: RunDirectory) -> None:
    file = full.path / "run.json"
    values = json.loads(file.read_bytes())
    values["data"]["train"]["renamed_roles"] = {"wizard": 1}
    file.write_text(json.dumps(values))
    named = r"data\.train\.renamed_roles\.wizard is 'wizard'; it must be one of: human, developer"
    with pytest.raises(FeatherbackError, match=named):
        RunDirectory.open(full.path)


@pytest.mark.parametrize(
    "value",
    [
        Progress(7, (1, 2), 3, 1.5, 2, [HeldOutLoss(3, 1.5, True, {"margin": 0.5})]),
        State("me", Progress(4), [1, 2, 3], [("parameters", 2, 100)], {"model.gguf": 123}),
        Plan(tokens=8),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_damaged_entry_of_other_records_is_named(value: Any) -> None:
    good = json.loads(json.dumps(encode(value)))
    assert decode(type(value), good, "file") == value
    for path, wrong in _damages(good):
        with pytest.raises(FeatherbackError, match="file") as raised:
            decode(type(value), json.loads(json.dumps(wrong)), "file")
        assert _is_named(path, str(raised.value)), (path, raised.value)


@pytest.mark.parametrize("form", [2, 4, "3", None])
def test_a_record_of_another_version_is_refused_with_its_version(full: RunDirectory, form: Any) -> None:
    file = full.path / "run.json"
    good = json.loads(file.read_bytes())
    file.write_text(json.dumps({**good, "format": form, "versions": {"featherback": "9.9"}}))
    with pytest.raises(FeatherbackError, match=r"was made by Featherback '9.9', in another form than this version"):
        RunDirectory.open(full.path)


def test_an_unknown_entry_of_another_version_names_that_version(full: RunDirectory) -> None:
    file = full.path / "run.json"
    good = json.loads(file.read_bytes())
    good["versions"]["featherback"] = "9.9"
    file.write_text(json.dumps(good))
    assert RunDirectory.open(full.path).record.versions.featherback == "9.9"
    good["new"] = 1
    file.write_text(json.dumps(good))
    with pytest.raises(FeatherbackError, match=r"was made by Featherback '9.9'"):
        RunDirectory.open(full.path)


def _is_named(path: Steps, said: str) -> bool:
    """Return whether a message names the entry at `path`.

    A wrong value of an option may be named as on the command line, behind the path of all options.
    """
    if path[0] == "configuration":
        return "configuration" in said
    if path in (("format",), ("versions",), ("versions", "featherback")):
        return "another form" in said or "versions" in said or "not the record of a run" in said
    shown = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)[1:]
    return shown in said or (f": {shown.rpartition('.')[0]}:" in said and str(path[-1]) in said)


def _damages(good: dict[str, Any]) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Yield each way to damage an entry: the path of the entry, and the damaged record."""
    for path, value in _entries(good):
        for bad in _bad_values(path, value):
            yield path, _changed(good, path, bad)
        if isinstance(path[-1], str) and not _is_open(path[:-1]):
            yield path, _changed(good, path, ...)
        if isinstance(value, dict) and not _is_open(path):
            yield (*path, "extra"), _changed(good, (*path, "extra"), 1)
    yield ("extra",), {**good, "extra": 1}


def _is_open(path: Steps) -> bool:
    """Return whether the entry at `path` is a mapping with free names."""
    names = ("measures", "rates", "keep", "encodings", "approximated", "first", "kept", "shapes", "lengths", "files",
             "other_roles", "renamed_roles", "renamed_columns", "recommended", "sources", "data")  # fmt: skip
    last = [each for each in path if isinstance(each, str)][-1:]
    return bool(last) and last[0] in names


def _bad_values(path: Steps, value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield from (0, "true")
        if path[0] != "configuration" and path[-1] != "only_label":  # where null may mean the usual value
            yield None
    elif isinstance(value, (int, float)):
        yield from ("x", [1], True, float("nan"))
        if path[0] != "configuration":
            yield from (10**30, 1e300)
            if not _may_be_negative(path):
                yield from (-1, -1e-9)
    elif isinstance(value, str):
        yield from (1, [])
        if path[-1] in ("status", "compute", "weights", "checkpoints", "states", "method", "train", "optimizer"):
            yield "sideways"
    elif isinstance(value, list):
        yield from (None if "configuration" not in path else 5, "x", [{"a": []}])
    elif isinstance(value, dict):
        yield from ("x", [1])
    else:
        yield from ({"a": 1}, [[]])


def _may_be_negative(path: Steps) -> bool:
    """Return whether a number is a loss or a measure."""
    return (
        path[-1] in ("cosine", "lowest_cosine", "loss", "best_loss")
        or "loss" in str(path[-1])
        or any(each in ("measures", "first", "kept") for each in path)
    )


def _entries(record: Any, path: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yield the path and the value of every entry, at any depth."""
    pairs = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for name, value in pairs:
        yield (*path, name), value
        yield from _entries(value, (*path, name))


def _changed(record: dict[str, Any], path: Steps, value: Any) -> dict[str, Any]:
    """Return a copy of a record in which the entry at `path` has a value, or is missing if the value is `...`."""
    changed: Any = copy.deepcopy(record)
    parent = changed
    for name in path[:-1]:
        parent = parent[name]
    if value is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed  # type: ignore[no-any-return]
