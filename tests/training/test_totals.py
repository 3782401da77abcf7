"""What is said of a whole run takes no more memory for a long one."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.training.curve import loss_svg
from featherback.training.stream import BatchStream
from featherback.training.totals import MOST, Sample, Series, Totals


def _lines(count: int) -> Iterator[dict[str, Any]]:
    for step in range(1, count + 1):
        yield {"step": step, "loss": 5.0 - 4.0 * step / count, "seconds": 1 + step % 7, "tokens": 10}


def test_a_short_run_is_told_exactly() -> None:
    lines = list(_lines(101))
    totals = Totals(lines)
    assert totals.losses.points == [(line["step"], line["loss"]) for line in lines]
    assert totals.step_seconds == statistics.median(line["seconds"] for line in lines)
    assert (totals.first_loss, totals.final_loss) == (lines[0]["loss"], lines[-1]["loss"])
    assert (totals.seconds, totals.tokens) == (sum(line["seconds"] for line in lines), 1010)
    empty = Totals([])
    assert (empty.first_loss, empty.step_seconds, empty.losses.points) == (None, 0.0, [])


def test_a_long_run_keeps_its_shape_in_bounded_memory() -> None:
    count = 50_000
    tracemalloc.start()
    totals = Totals(_lines(count))
    picture = loss_svg(totals.losses.points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000  # 50,000 lines as dictionaries take some 20 MB
    assert len(picture) < 150_000
    points = totals.losses.points
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
    assert sample.median == pytest.approx(2 * MOST, rel=0.01)


def test_a_step_of_many_batches_holds_one(tmp_path: Any) -> None:
    with TokenFileWriter(tmp_path / "t") as writer:
        for _ in range(64):
            writer.add(list(range(100)), [1] * 100)
    stream = BatchStream(TokenFile(tmp_path / "t"), 100, 1, 0)
    stream.take(1)
    tracemalloc.start()
    group = stream.take(5_000)
    assert group is not None
    assert sum(batch.n_tokens for batch in group.batches) == group.n_tokens == 500_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000  # the batches together have 6 MB of tokens, targets and positions
