"""What a person, or a program, sees of a run."""

from __future__ import annotations

import io
import json
from typing import Any

from featherback.training.reporter import JSONReporter, Reporter, TextReporter, duration

SUMMARY = {
    "steps": 3,
    "seconds": 6.0,
    "step_seconds": 2.0,
    "tokens_per_second": 50.0,
    "peak_footprint_mb": 40.26,
    "peak_rss_mb": 71.0,
    "predicted_rss_mb": 70.0,
    "first_loss": 3.0,
    "final_loss": 1.0,
    "first_eval_loss": 2.5,
    "final_eval_loss": 1.25,
}


def _line(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 3.0 / step,
        "lr": 2e-4,
        "grad_norm": 1.0,
        "tokens": 100,
        "seconds": 2.0,
        "footprint_mb": 40.2,
        "rss_mb": 70.9,
    }


def _play(reporter: Reporter) -> None:
    reporter.begin(3, 0)
    reporter.evaluation(0, 2.5)
    for step in (1, 2, 3):
        reporter.step(_line(step))
    reporter.end(SUMMARY, [3.0, 1.5, 1.0])


def test_plain_lines() -> None:
    out = io.StringIO()
    _play(TextReporter(out))
    text = out.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    assert "step 1/3  loss 3.0000  lr 2.0e-04  50 tok/s  0:04 left  footprint 40 MB  rss 71 MB" in text
    assert "held-out loss 2.5000 -> 1.2500" in text
    assert "footprint 40.3 MB, rss 71.0 MB (predicted 70.0 MB)" in text
    assert "█" in text


def test_a_long_run_prints_few_plain_lines() -> None:
    out = io.StringIO()
    reporter = TextReporter(out)
    reporter.begin(1000, 0)
    for step in range(1, 1001):
        reporter.step(_line(step))
    assert 30 <= len(out.getvalue().splitlines()) <= 45


def test_the_live_line_is_redrawn_and_fits_the_terminal() -> None:
    out = io.StringIO()
    _play(TextReporter(out, live=True))
    drawn = [part for part in out.getvalue().split("\r\x1b[K") if part.startswith("step") and "━" in part]
    assert len(drawn) == 3
    assert all(len(part.splitlines()[0]) < 80 for part in drawn)
    assert "0:04 left  40 MB (rss 71)" in drawn[0]


def test_json_lines() -> None:
    out = io.StringIO()
    _play(JSONReporter(out))
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert rows[0] == {"step": 0, "eval_loss": 2.5}
    assert [row["step"] for row in rows[1:4]] == [1, 2, 3]
    assert rows[-1] == {"summary": SUMMARY}


def test_durations() -> None:
    assert [duration(s) for s in (0, 6.6, 754, 11100)] == ["0:00", "0:07", "12:34", "3:05:00"]
