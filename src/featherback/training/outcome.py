"""What a run came to, in words: the same wherever it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featherback.models.converted import NONE
from featherback.naming import argument


def talk(record: Mapping[str, Any], result: str) -> list[str]:
    """The words of the command that talks with what a run made in the directory `result`; `record`: its run.json."""
    config = record.get("configuration", {})
    quantize = config.get("quantize", NONE)
    model = [result]
    if config.get("train") != "full":
        base = str(config.get("model") or "MODEL")
        model = [base, *([] if quantize == NONE else ["--quantize", quantize]), "--adapter", result]
    shapes = record.get("data", {}).get("train", {}).get("shapes", {})
    texts_alone = shapes.keys() == {"text"}  # which a model without a chat template learns as well
    how = ["generate", *model, "--prompt", "TEXT"] if texts_alone else ["chat", *model]
    return ["featherback", *how]


def held_out(summary: Mapping[str, Any]) -> str | None:
    """The held-out loss of the summary of run.json, and which adapter is kept; None if it was not measured."""
    first, last = summary.get("first_eval_loss"), summary.get("final_eval_loss")
    if first is None or last is None:
        return None
    if (best := summary["best_eval_loss"]) is None:
        return f"held-out loss {first:.4f} before training"
    # Where the last is the best there is nothing to choose from.
    kept = "" if best == last else f"; best {best:.4f} at step {summary['best_step']}, kept"
    worse = f", worse than before training: lower {argument('lr')}" if best > first else ""
    return f"held-out loss {first:.4f} -> {last:.4f}{kept}{worse}"
