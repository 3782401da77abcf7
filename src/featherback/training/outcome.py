"""What a run came to, in words: the same wherever it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def talk(model: str, result: str, train: str) -> list[str]:
    """The words of the command that talks with what a run of `train` made in the directory `result`."""
    return ["featherback", "chat", *([result] if train == "full" else [model, "--adapter", result])]


def held_out(summary: Mapping[str, Any]) -> str | None:
    """The held-out loss of the summary of run.json, and which adapter is kept; None if it was not measured."""
    first, last = summary.get("first_eval_loss"), summary.get("final_eval_loss")
    if first is None or last is None:
        return None
    if (best := summary["best_eval_loss"]) is None:
        return f"held-out loss {first:.4f} before training"
    # Where the last is the best there is nothing to choose from.
    kept = "" if best == last else f"; best {best:.4f} at step {summary['best_step']}, kept"
    worse = ", worse than before training: lower --lr" if best > first else ""
    return f"held-out loss {first:.4f} -> {last:.4f}{kept}{worse}"
