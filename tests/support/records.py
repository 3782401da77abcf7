"""Records of runs that were not trained."""

from __future__ import annotations

from typing import Any

from featherback.data.report import PrepareReport
from featherback.runs.config import TrainConfig
from featherback.runs.record import Machine, RunRecord, Versions
from featherback.runs.summary import Summary
from featherback.version import __version__

SUMMARY = Summary(
    steps=3,
    seconds=6.0,
    step_seconds=2.0,
    tokens_per_second=50.0,
    peak_footprint_mb=40.26,
    peak_rss_mb=71.0,
    predicted_footprint_mb=40.0,
    predicted_rss_mb=70.0,
    first_loss=3.0,
    final_loss=1.0,
    early_loss=3.0,
    late_loss=1.0,
    first_eval_loss=2.5,
    final_eval_loss=1.25,
    best_step=3,
    best_eval_loss=1.25,
)


def described(**values: Any) -> dict[str, Any]:
    """Return the fields of a new run's record, with a configuration of these options."""
    return {
        "configuration": TrainConfig(**{"model": "m", "out": "r", **values}),
        "versions": Versions(featherback=__version__, python="3", numpy="2"),
        "machine": Machine(system="Linux", cores=2, instruction_set="avx2"),
        "base_model": "m",
        "model": "0badcafe",
    }


def record_of(shape: str = "messages", status: Any = "finished", **options: Any) -> RunRecord:
    """Return the record of a run on data of one shape."""
    return RunRecord(
        created="2026-01-01T00:00:00+00:00",
        folder_existed=False,
        status=status,
        summary=SUMMARY,
        data={"train": PrepareReport(["d.jsonl"], 64, shapes={shape: 3})},
        **described(**options),
    )
