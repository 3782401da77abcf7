"""What a finished run keeps: its result and records. Checkpoints stay only if the run can still go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from featherback.core.naming import argument
from featherback.core.sizes import shown_mb
from featherback.core.terminal import quoted
from featherback.errors import FeatherbackError
from featherback.runs import checkpoint
from featherback.runs.config import TrainConfig
from featherback.runs.run_directory import RunDirectory

FINISHED, STOPPED_EARLY = "finished", "stopped early"


def cannot_continue(run: RunDirectory) -> bool:
    """Return whether a run has ended and its checkpoints were deleted, so it cannot go on."""
    return run.record.status in (FINISHED, STOPPED_EARLY) and not checkpoint.latest(run.path)


def delete_checkpoints(run: RunDirectory, status: str) -> str | None:
    """Delete the checkpoints and optimiser states of a run that has done all its steps, unless --keep-checkpoints.

    A run that stopped early keeps them, because it has steps left; the note about this is returned, otherwise None.
    """
    if status == FINISHED and not run.config.keep_checkpoints:
        checkpoint.discard(run.path, 0)
        for folder in _weights(run.path):
            shutil.rmtree(folder, ignore_errors=True)
        return None
    if run.config.keep_checkpoints:
        return None
    files = [path for folder in _weights(run.path) for path in folder.rglob("*") if path.is_file()]
    size = checkpoint.held(run.path) + sum(path.stat().st_size for path in files)
    names = "checkpoint-*" + f" and {checkpoint.WEIGHTS}*" * bool(files)
    return (
        f"note: {run.path} keeps {shown_mb(size, 1)} of checkpoints, from which the run can be resumed. To free the "
        f"space, delete {names} there."
    )


def check_can_continue(run: RunDirectory, config: TrainConfig, earlier: TrainConfig) -> None:
    """Raise FeatherbackError if a closed run is resumed with other steps, epochs or patience than it ended with."""
    if all(getattr(config, name) == getattr(earlier, name) for name in ("steps", "epochs", "patience")):
        return
    trained = [run.path, "--train", "full"] if config.train == "full" else [config.model, "--from", run.path]
    summary = run.record.summary
    assert summary is not None  # the run has ended
    again = quoted("featherback", "train", *trained, "--data", "DATA", "--out", f"{run.path}-2")
    raise FeatherbackError(
        f"{run.path} ended after step {summary.steps}, and its optimiser states were removed, so it "
        f"cannot be resumed. To train its result further, start a new run: {again}. "
        f"With {argument('keep_checkpoints')}, a run can be resumed after its end."
    )


def _weights(run: Path) -> Iterator[Path]:
    """Yield the folders with a whole model's weights and optimiser states that belong to checkpoints."""
    return run.glob(f"{checkpoint.WEIGHTS}*")
