"""One training run, in a fresh process on made-up tokens or by the whole command, measured from inside and outside."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import watch
from featherback import models
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.worker_process import worker_command
from featherback.worker import ENDED


@dataclass(frozen=True)
class Measured:
    """Peaks in MB, medians in seconds. `inside`: the run's own meter; `outside`: its process tree from a parent."""

    method: str
    optimizer: str
    tokens: int
    rank: int
    budget_mb: float | None
    footprint_mb: float
    rss_mb: float
    outside_footprint_mb: float | None
    outside_rss_mb: float | None
    predicted_rss_mb: float
    checkpoints: str  # in "ram" or a "file"
    states: str
    step_seconds: float
    losses: tuple[float, ...]
    tree_mb: float | None = None  # the whole command's processes, what they share counted once

    @property
    def error(self) -> float:
        """The error of the predicted resident peak, relative to the measured one."""
        return self.predicted_rss_mb / self.rss_mb - 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"prediction_error": self.error}


def train_synthetic(
    model: Path,
    *,
    tokens: int = 256,
    steps: int = 3,
    folder: Path | None = None,
    memory: int | str | None = None,
    compute: str = "bf16",
    interval: float = watch.INTERVAL,
    environment: dict[str, str] | None = None,
    **options: Any,
) -> Measured:
    """Train `model` for a few steps on random tokens, `tokens` per batch; `options` are fields of TrainConfig.

    `memory` in bytes, or "least"; `interval`: seconds between two looks at the process from outside. The run directory
    is made in `folder` (default: the system's temporary one) and deleted.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as place:
        config = TrainConfig.of(
            model=str(model),
            data="random tokens",
            out=str(Path(place) / "run"),
            seq_len=tokens,
            steps=steps,
            memory=memory,
            compute=compute,
            schedule="constant",
            **options,
        )
        run = prepare_run(config, data=random_sequences(model, tokens, steps))
        command, own_environment = worker_command(run, "--json")
        outcome = watch.run(command, own_environment | (environment or {}), interval, ends=ENDED)
        return _measured(RunDirectory.open(run.path), outcome)


def train_command(
    model: Path, data: Path, *, tokens: int, steps: int, folder: Path, memory: int, **options: Any
) -> Measured:
    """`featherback train` from its first instruction to its last; `options` are its flags.

    FeatherbackError with its last words if it fails or refuses.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-") as place:
        out = Path(place) / "run"
        named = {"data": data, "out": out, "seq_len": tokens, "steps": steps, "memory": f"{memory}B"}
        words = [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {**named, "schedule": "constant", **options}.items()
        ]
        command = [sys.executable, "-m", "featherback", "train", str(model), "--json", "--cut", *words]
        outcome = watch.run(command, tree=True, ends=ENDED)
        return _measured(RunDirectory.open(out), outcome)


def random_sequences(model: Path, tokens: int, count: int) -> list[np.ndarray[Any, Any]]:
    """`count` sequences of `tokens` ids, always the same for the same sizes."""
    vocabulary = models.load(model).config.vocab_size
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocabulary, tokens) for _ in range(count)]


def _measured(run: RunDirectory, outcome: watch.Outcome) -> Measured:
    config, summary, lines = run.config, run.record.summary, list(run.metrics())
    seconds = sorted(line["seconds"] for line in lines[1:] or lines)  # the first step warms up
    return Measured(
        method=config.method,
        optimizer=config.optimizer,
        tokens=config.sequence,
        rank=config.form.kind.width,
        budget_mb=None if config.budget is None else config.budget / 1e6,
        footprint_mb=summary.peak_footprint_mb,
        rss_mb=summary.peak_rss_mb,
        outside_footprint_mb=outcome.footprint_mb,
        outside_rss_mb=outcome.rss_mb,
        predicted_rss_mb=summary.predicted_rss_mb,
        checkpoints=run.plan.checkpoints,
        states=run.plan.states,
        step_seconds=seconds[len(seconds) // 2],
        losses=tuple(line["loss"] for line in lines),
        tree_mb=outcome.tree_mb,
    )
