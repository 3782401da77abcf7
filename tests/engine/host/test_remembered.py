"""Measurements are remembered per machine and version, and checked when they are read."""

from __future__ import annotations

import json
import os
import random
import stat
from pathlib import Path

import pytest
from tests.runs.test_compute import favour
from tests.support.tiny_models import write_tiny

from featherback import models
from featherback.engine.host import remembered
from featherback.engine.host.machine import VARIATION, Baseline
from featherback.runs import choose
from featherback.runs.config import TrainConfig

MB = 10**6


def _measured(size: int) -> Baseline:
    return Baseline(15 * MB, size)


def test_baselines_that_differ_as_processes_do_are_one(remembered_folder: Path) -> None:
    drawn = random.Random(0)
    for least in (29 * MB, 40 * MB):  # two states of the page cache
        found = [_measured(least + drawn.randrange(VARIATION)).settled(process="worker") for _ in range(20)]
        assert len({each.rss for each in found}) == 1
        assert least + VARIATION <= found[0].rss < least + 2 * VARIATION
    assert _measured(29 * MB).settled(process="worker").rss < 31 * MB  # the first one is kept
    assert len(list(remembered_folder.iterdir())) == 1


def test_no_process_is_larger_than_it_is_settled_to_be() -> None:
    drawn = random.Random(1)
    for _ in range(100):
        fresh = _measured(drawn.randrange(29 * MB, 35 * MB))
        settled = fresh.settled(process="worker")
        assert fresh.rss <= settled.rss <= fresh.rss + 2 * VARIATION
        assert settled.footprint == fresh.footprint


def test_a_process_that_asks_again_is_not_counted_as_much_larger() -> None:
    """Regression: it got the next remembered size, up to 1.5 MB larger, and what a refusal named was too small."""
    drawn = random.Random(2)
    size = _measured(40 * MB).settled(process="worker").rss
    _measured(42 * MB).settled(process="worker")
    for _ in range(100):
        first = drawn.randrange(size - 2 * VARIATION, size + 1)
        again = first + drawn.randrange(VARIATION + 1)
        before, after = (_measured(each).settled(process="worker").rss for each in (first, again))
        assert again <= after <= before + VARIATION


def test_loggers_have_a_baseline_of_their_own() -> None:
    assert _measured(30 * MB).settled(log_to=[]).rss == 30 * MB + VARIATION
    assert _measured(30 * MB + 1).settled(log_to=["wandb"]).rss == 30 * MB + 1 + VARIATION


DAMAGED = [
    b"",
    b"{",
    b"[]",
    b'{"found": [1]}',
    b'{"about": {}, "found": [30100000]}',
    b"[" * 100_000,
    b"\xff" * 100,
    b" " * 10**6,
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_contents_are_measured_anew(remembered_folder: Path, content: bytes) -> None:
    assert _measured(30 * MB).settled(process="worker").rss == 30 * MB + VARIATION
    (file,) = remembered_folder.iterdir()
    file.write_bytes(content)
    assert _measured(30 * MB + 9).settled(process="worker").rss == 30 * MB + 9 + VARIATION
    assert _measured(30 * MB + 8).settled(process="worker").rss == 30 * MB + 9 + VARIATION  # mended


@pytest.mark.parametrize("found", [None, 5, "31000000", [True, None, "x", 3.05e7, -1], {"bf16": 1}, [10**30, 0]])
def test_sizes_that_cannot_be_are_measured_anew(remembered_folder: Path, found: object) -> None:
    _measured(30 * MB).settled(process="worker")
    (file,) = remembered_folder.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "found": found}))
    assert _measured(30 * MB + 9).settled(process="worker").rss == 30 * MB + 9 + VARIATION


def test_another_machine_or_version_is_measured_anew(remembered_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for number, (name, value) in enumerate(
        [("_cpu", lambda: "this"), ("_cpu", lambda: "another"), ("__version__", "9.9.9")]
    ):
        monkeypatch.setattr(remembered, name, value)
        sizes.append(_measured(30 * MB + number).settled(process="worker").rss)
    assert sizes == [30 * MB + number + VARIATION for number in range(3)]
    for file in (files := sorted(remembered_folder.iterdir())):  # a file under another's name
        file.write_bytes(files[0].read_bytes())
    assert _measured(30 * MB + 2).settled(process="worker").rss in (30 * MB + n + VARIATION for n in (0, 2))


def test_only_its_owner_can_read_it(remembered_folder: Path) -> None:
    before = os.umask(0)
    try:
        _measured(30 * MB).settled(process="worker")
    finally:
        os.umask(before)
    assert stat.S_IMODE(remembered_folder.stat().st_mode) == 0o700


def test_a_cache_that_cannot_be_written_is_no_obstacle(remembered_folder: Path) -> None:
    remembered_folder.parent.mkdir(parents=True)
    remembered_folder.write_text("a file where the folder would be")
    for size in (30 * MB, 30 * MB + 1):
        assert _measured(size).settled(process="worker").rss == size + VARIATION


@pytest.mark.parametrize("value", [None, 0, -1.0, "5", float("nan"), float("inf"), True, 10**400])
def test_rates_that_cannot_be_are_measured_anew(
    tiny_model: models.Model, remembered_folder: Path, monkeypatch: pytest.MonkeyPatch, value: object
) -> None:
    config = TrainConfig(model=str(tiny_model.path), out="run")
    favour(monkeypatch, "int16")
    first = choose.measured_rates(config, tiny_model)
    favour(monkeypatch, "fp32")
    assert choose.measured_rates(config, tiny_model) == first
    (file,) = remembered_folder.iterdir()
    content = json.loads(file.read_text())
    content["found"]["bf16"] = value
    file.write_text(json.dumps(content))
    assert choose.best(choose.measured_rates(config, tiny_model)) == "fp32"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> models.Model:
    """A tiny llama."""
    return models.load(write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf"))
