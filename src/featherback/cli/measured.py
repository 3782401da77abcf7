"""The last program of `featherback evaluate`: measures the loss and prints it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from featherback.core.terminal import say
from featherback.runs.evaluating import measured, notes_about
from featherback.runs.requests import PreparedEvaluation

if TYPE_CHECKING:
    from featherback.runs.evaluation import Evaluation


def measure(prepared: PreparedEvaluation) -> None:
    """Measure the loss and print it."""
    options, found = prepared.request, measured(prepared)
    if options.json:
        say(json.dumps(_values(found, options.compute, time.time() - options.began)))
        return
    from featherback.view.reporter import REWARD, shown_measures

    shown = ", ".join(shown_measures(found.measures))
    loss = "" if REWARD in found.measures else f"loss {found.loss:.4f}, "
    say(
        f"{loss}{shown}, over {found.tokens} {found.counted}, computed in {options.compute}"
        if shown
        else f"loss {found.loss:.4f} nats per token, perplexity {found.perplexity:.3f}, "
        f"over {found.tokens} tokens, computed in {options.compute}"
    )
    for note in notes_about(found):
        say(f"note: {note}")


def _values(found: Evaluation, compute: str, seconds: float) -> dict[str, object]:
    report = found.report
    assert report is not None  # the data are files
    return {
        "loss": found.loss,
        **({} if found.measures else {"perplexity": found.perplexity}),
        **found.measures,
        ("texts" if found.measures else "tokens"): found.tokens,
        "compute": compute,
        "seconds": seconds,
        "examples": report.examples,
        "truncated": report.truncated,
        "truncated_tokens": report.truncated_tokens,
        "dropped": report.dropped,
        "skipped": report.skipped,
        "notes": notes_about(found),
    }
