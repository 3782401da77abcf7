"""DPO beside plain training: what it learns, and what it costs in memory and time.

The pairs are made of the demo's requests. The chosen answer is polite, the rejected one is the bare command. Plain
training sees the same prompts and both answers as one, so it has the same tokens and the same supervised ones.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import watch
from featherback.data import demo
from featherback.models.hub.locate import locate
from featherback.runs.record import RunRecord
from featherback.runs.run_directory import RunDirectory
from featherback.worker import ENDED

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

POLITE = "Of course! This command does it: "
LENGTH, PAIRS = 128, 8
EPOCHS, FEW = 1, 4
OBJECTIVES = ("next_token", "dpo")


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """Per objective: a run in the least memory, for its peak, and a run in 400 MB, for its time and what it learns."""
    found: dict[str, Callable[[], Row]] = {}
    for objective in OBJECTIVES:
        found[f"{objective}-least"] = lambda objective=objective: least(objective, place)
        found[f"{objective}-run"] = lambda objective=objective: run(objective, place)
    return found


def write_data(path: Path, source: Path, objective: str) -> Path:
    """Write the pairs of a file of the demo, or the same as plain answers."""
    with path.open("w", encoding="utf-8") as out:
        for request, command in demo.pairs(source):
            chosen, rejected = f"{POLITE}{command}", command
            row = {"prompt": request, "chosen": chosen, "rejected": rejected}
            if objective == "next_token":
                row = {"prompt": request, "completion": f"{chosen}\n{rejected}"}
            out.write(json.dumps(row) + "\n")
    return path


def least(objective: str, place: Place) -> Row:
    """Peaks in MB of a few steps with `--memory least`. A batch of DPO holds two answers of the same length."""
    record, outcome = _train(objective, place, "--memory", "least", "--steps", place.steps(FEW))
    summary = record.summary
    return {
        "objective": objective,
        "tokens": LENGTH,
        "rss_mb": round(max(summary.peak_rss_mb, outcome.rss_mb or 0), 1),
        "footprint_mb": round(summary.peak_footprint_mb, 1),
        "predicted_rss_mb": round(summary.predicted_rss_mb, 1),
    }


def run(objective: str, place: Place) -> Row:
    """Tokens per second, seconds of the reference pass, and the held-out measures before and after."""
    length = ("--steps", place.steps(2)) if place.tiny else ("--epochs", EPOCHS)
    record, _ = _train(objective, place, "--memory", "400MB", "--batch-size", PAIRS, *length)
    summary = record.summary
    return {
        "objective": objective,
        "steps": summary.steps,
        "seconds": round(summary.seconds, 1),
        "tokens_per_s": round(summary.tokens_per_second, 1),
        "reference_s": round(record.reference.seconds if record.reference else 0.0, 1),
        "lr": record.configuration.learning_rate,
        "eval_loss": [round(summary.first_eval_loss, 4), round(summary.best_eval_loss, 4)],
        "held_out": asdict(summary.held_out),
    }


def _train(objective: str, place: Place, *options: object) -> tuple[RunRecord, watch.Outcome]:
    with tempfile.TemporaryDirectory(dir=place.folder, prefix="bench-") as name:
        folder = Path(name)
        files = [write_data(folder / each.name, each, objective) for each in (demo.TRAIN, demo.HELD_OUT)]
        words: list[object] = [
            "--data",
            files[0],
            "--eval-data",
            files[1],
            "--out",
            folder / "run",
            "--seq-len",
            LENGTH,
        ]
        words += ["--objective", objective, "--samples", 0, "--json", *options]
        command = [sys.executable, "-m", "featherback", "train", locate(place.chat_model), *words]
        outcome = watch.run([str(word) for word in command], ends=ENDED)
        return RunDirectory.open(folder / "run").record, outcome
