"""Measures the time of a run per kernel operation (`--profile`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from featherback.engine import kernels
from featherback.runs.callback import Callback
from featherback.runs.events import Note


@contextmanager
def profiled(callback: Callback, on: bool = True) -> Iterator[None]:
    """Time every kernel call inside, and send the table to `callback` at the end. Do nothing unless `on`."""
    if not on:
        yield
        return
    kernels.profile(True)
    start = time.perf_counter()
    try:
        yield
    finally:
        total = time.perf_counter() - start
        kernels.profile(False)
        for line in table(kernels.profile_report(), total):
            callback.tell(Note(line))


def table(report: dict[str, tuple[int, float, float]], total: float) -> list[str]:
    """Return table lines: operation, calls, seconds, share of `total` seconds, and GFLOP/s if it counts its FLOPs."""
    lines = [f"{'operation':<22}{'calls':>9}{'seconds':>10}{'share':>8}{'GFLOP/s':>9}"]
    rows = sorted(report.items(), key=lambda row: -row[1][1])
    for name, (calls, seconds, flops) in rows:
        rate = f"{flops / seconds / 1e9:.0f}" if flops and seconds else ""
        lines.append(f"{name:<22}{calls:>9}{seconds:>10.3f}{seconds / total:>8.1%}{rate:>9}")
    rest = total - sum(seconds for _, (_, seconds, _) in rows)
    lines.append(f"{'Python, paging, files':<22}{'':>9}{rest:>10.3f}{rest / total:>8.1%}")
    return lines
