"""What loggers share: the numbers of an event that they record, and the folder in which they record them."""

from __future__ import annotations

from pathlib import Path

from featherback.core.private import LOGS, make_private_folder
from featherback.runs.events import Begin, Evaluation, Step


def scalars(event: Step | Evaluation) -> dict[str, float]:
    """Return name -> number, with names such as "train/loss", "train/lr" or "eval/loss"."""
    if isinstance(event, Evaluation):
        return {"eval/loss": event.eval_loss, **{f"eval/{name}": each for name, each in event.measures.items()}}
    values = {f"train/{name}": value for name, value in event.values().items() if name != "step"}
    return {**values, "train/tokens_per_second": event.tokens / max(event.seconds, 1e-9)}


def log_folder(event: Begin) -> Path:
    """Return the folder of a run in which each program has a folder. It is created if it is missing."""
    folder = Path(event.run) / LOGS
    make_private_folder(folder)
    return folder
