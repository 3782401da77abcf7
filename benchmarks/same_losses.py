"""Are the losses of MeSP and MeBP equal, step after step? The same requests, seed and options."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from featherback.data.demo import TRAIN
from featherback.models.hub.locate import locate
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.trainer import train_run

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

STEPS = 1000


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each type of products."""
    return {compute: partial(row, compute, place) for compute in ("fp32", "bf16")}


def row(compute: str, place: Place) -> Row:
    """Train twice. How many losses differ, and the greatest difference relative to the loss."""
    steps = place.steps(STEPS)
    mesp, mebp = (losses(method, compute, steps, place) for method in ("mesp", "mebp"))
    differences = [abs(one / other - 1) for one, other in zip(mesp, mebp, strict=True)]
    return {
        "model": place.chat_model,
        "steps": len(mesp),
        "different": sum(one != other for one, other in zip(mesp, mebp)),
        "greatest": max(differences),
        "first": mesp[0],
        "last": mesp[-1],
    }


def losses(method: str, compute: str, steps: int, place: Place) -> list[float]:
    """The loss of each step with one request of the demo a step."""
    with tempfile.TemporaryDirectory(dir=place.folder, prefix="bench-") as folder:
        config = TrainConfig.of(
            model=str(locate(place.chat_model)),
            data=str(TRAIN),
            out=str(Path(folder) / "run"),
            steps=steps,
            method=method,
            compute=compute,
            batch_size=1,
            optimizer="sgd",
            memory="max",
            samples=0,
        )
        run = prepare_run(config)
        train_run(run)
        return [line["loss"] for line in RunDirectory.open(run.path).metrics()]
