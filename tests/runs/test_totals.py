"""Summarising a long run takes no more memory than a short one."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from featherback.data.packing import Batching
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.runs.stream import BatchStream
from featherback.runs.totals import MOST, Average, Sample, Series, Totals
from featherback.view.reporter import sparkline


def _lines(count: int) -> Iterator[dict[str, Any]]:
    for step in range(1, count + 1):
        yield {"step": step, "loss": 5.0 - 4.0 * step / count, "seconds": 1 + step % 7, "tokens": 10}


def test_a_short_run_is_told_exactly() -> None:
    lines = list(_lines(101))
    totals = Totals(lines, len(lines))
    assert totals.step_seconds == statistics.median(line["seconds"] for line in lines)
    assert (totals.first_loss, totals.final_loss) == (lines[0]["loss"], lines[-1]["loss"])
    assert (totals.seconds, totals.tokens) == (sum(line["seconds"] for line in lines), 1010)
    empty = Totals([], 0)
    assert (empty.first_loss, empty.step_seconds) == (None, 0.0)


def test_a_long_run_keeps_its_shape_in_bounded_memory() -> None:
    count = 50_000
    tracemalloc.start()
    totals, losses = Totals(_lines(count), count), Series()
    for line in _lines(count):
        losses.add(line["step"], line["loss"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000  # 50,000 lines as dictionaries take some 20 MB
    points = losses.points
    assert MOST // 2 <= len(points) <= MOST
    assert points[-1][0] == count
    assert sum(y for _, y in points) / len(points) == pytest.approx(3.0, rel=1e-2)
    assert all(abs(y - (5 - 4 * x / count)) < 0.01 for x, y in points)
    assert totals.step_seconds == 4


def test_joined_points_weigh_alike() -> None:
    series, sample = Series(), Sample()
    for x in range(4 * MOST):
        series.add(x, x % 2)
        sample.add(x)
    assert {y for _, y in series.points[:-1]} == {0.5}
    assert {y for _, y in series.extremes[:-2]} == {0, 1}
    assert sample.median == pytest.approx(2 * MOST, rel=0.01)


def test_a_step_of_many_batches_holds_one(tmp_path: Any) -> None:
    with TokenFileWriter(tmp_path / "t") as writer:
        for _ in range(64):
            writer.add(list(range(100)), [1] * 100)
    stream = BatchStream(TokenFile(tmp_path / "t"), Batching(100), 0)
    stream.take(1)
    tracemalloc.start()
    group = stream.take(5_000)
    assert group is not None
    assert sum(batch.n_tokens for batch in group.batches) == group.n_tokens == 500_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000  # the batches together have 6 MB of tokens, targets and positions


def test_smoothing_keeps_a_constant_and_its_start() -> None:
    average = Average(19)
    assert [average.add(3.0) for _ in range(5)] == pytest.approx([3.0] * 5)
    assert Average(19).add(4.0) == pytest.approx(4.0)
    assert Average(1).add(4.0) == 4.0
    following = Average(3)  # the weight of each value is half of the one after it
    assert [following.add(y) for y in (1.0, 2.0, 4.0)] == pytest.approx([1, 5 / 3, 3])


def test_sparkline_spans_all_levels_and_fits() -> None:
    line = sparkline([float(x) for x in range(100)], 20)
    assert len(line) == 20
    assert line[0] == "▁"
    assert line[-1] == "█"
    assert list(line) == sorted(line)
    assert sparkline([2.0, 2.0], 20) == "▁▁"
    assert sparkline([], 20) == ""
