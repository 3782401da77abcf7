"""The numbers of an event that other programs record."""

from __future__ import annotations

from featherback.runs.events import Evaluation, Step


def scalars(event: Step | Evaluation) -> dict[str, float]:
    """Return name -> number, with names such as "train/loss", "train/lr" or "eval/loss"."""
    if isinstance(event, Evaluation):
        return {"eval/loss": event.eval_loss, **{f"eval/{name}": each for name, each in event.measures.items()}}
    values = {f"train/{name}": value for name, value in event.values().items() if name != "step"}
    return {**values, "train/tokens_per_second": event.tokens / max(event.seconds, 1e-9)}
