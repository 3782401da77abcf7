"""What a run came to, in words: the same wherever it is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.source import STDIN
from featherback.models.converted import NONE
from featherback.runs.run_directory import RUN_FILE, RunDirectory

LOWER = 4.0
"""What the learning rate of a run that ended worse than it began is divided by, for the next."""
LEAST_RISE, RISE = 0.5, 0.25
"""How far a training loss must rise for the run to be worse: in nats, as a share of what it was; the larger counts."""


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
    if (best := summary.get("best_eval_loss")) is None:
        return f"held-out loss {first:.4f} before training"
    # Where the last is the best there is nothing to choose from.
    kept = "" if best == last else f"; best {best:.4f} at step {summary['best_step']}, kept"
    worse = ", worse than before training" if is_worse(summary) else ""
    return f"held-out loss {first:.4f} -> {last:.4f}{kept}{worse}"


def is_worse(summary: Mapping[str, Any]) -> bool:
    """Whether a run ended worse than it began."""
    return worsening(summary) is not None


def worsening(summary: Mapping[str, Any]) -> str | None:
    """Which loss rose, and how far, if a run ended worse than it began; None if it did not.

    That is the held-out loss of what is kept, above the one before training. Without held-out data it is the mean
    training loss of the last quarter of the steps, if it is clearly above that of the first ones: batches differ.
    """
    first, best = summary.get("first_eval_loss"), summary.get("best_eval_loss")
    if first is not None:
        if best is None or best <= first:
            return None
        return f"the held-out loss was {first:.4f} and is {best:.4f} at best"
    early, late = summary.get("early_loss"), summary.get("late_loss")
    if early is None or late is None or late <= early + max(LEAST_RISE, RISE * early):
        return None
    return f"the training loss rose from {early:.4f} to {late:.4f}"


def changes(summary: Mapping[str, Any], rate: float, usual: float, epochs: float | None) -> dict[str, float]:
    """The options, by their names in Python, with which a run that ended worse than it began is to be repeated.

    `rate`: its learning rate; `usual`: the default; `epochs`: None if it counted steps. Half of these are enough if the
    training loss has fallen: then the run learned its own examples, and not what they share with the held-out ones.
    """
    found = {"lr": float(f"{min(usual, rate / LOWER):.2g}")}
    if epochs is not None and summary["final_loss"] < summary["first_loss"]:
        found["epochs"] = epochs / 2
    return found


def again(record: Mapping[str, Any], result: str) -> list[str]:
    """The words of the command that repeats the run in the directory `result` with what its summary recommends."""
    from featherback.runs.run_file import RUN_YAML  # only here: what trains has no need of it

    recommended = record["summary"].get("recommended", {})
    options = [word for name, value in recommended.items() for word in (f"--{name}", f"{value:g}")]
    paths = record.get("sources", {}).get("train", {}).get("paths", [STDIN])
    data = ["--data", "DATA"] if STDIN in paths else []  # else the file has it
    file, out = os.path.join(result, RUN_YAML), f"{os.path.normpath(result)}-2"
    return ["featherback", "train", "--config", file, *data, *options, "--out", out]


def verdict(record: Mapping[str, Any], advice: str) -> str:
    """The sentence about a run that ended worse than it began. `advice`: what to do."""
    name = "model" if record["configuration"].get("train") == "full" else "adapter"
    return f"worse than before training: {worsening(record['summary'])}; do not use this {name}. {advice}"


def over_budget(run: RunDirectory) -> str | None:
    """That a run's process held more than the run's budget, which is a bug; None if it did not."""
    budget, peak = run.config.budget, run.record["summary"]["peak_rss_mb"]
    if budget is None or peak * MB <= budget:
        return None
    named = argument("memory", f"{budget / MB:g}MB")
    return (
        f"the run is complete, but it held {peak:.1f} MB, more than {named}. This is a bug in Featherback; please "
        f"report it with {run.path / RUN_FILE}."
    )
