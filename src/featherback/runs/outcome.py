"""Describes the result of a run in words and commands, the same for the terminal, the report and Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.report import PrepareReport
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError
from featherback.models.converted import NONE
from featherback.runs.record import RunRecord
from featherback.runs.run_directory import RUN_FILE, RunDirectory
from featherback.runs.summary import Summary

LOWER = 4.0
"""If a run diverged or ended worse than it began, the recommended learning rate is its own divided by this."""
_MEASURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "reward": ("reward", lambda value: f"{value:.3f}"),
    "answer_length": ("length of answers", lambda value: f"{value:.0f} tokens"),
    "repetition": ("repetition", lambda value: f"{100 * value:.0f} %"),
    "accuracy": ("accuracy", lambda value: f"{100 * value:.0f} %"),
    "macro_f1": ("macro-F1", lambda value: f"{value:.3f}"),
    "margin": ("margin", lambda value: f"{value:.3f}"),
    "chosen_reward": ("reward of chosen", lambda value: f"{value:+.3f}"),
    "rejected_reward": ("of rejected", lambda value: f"{value:+.3f}"),
}
"""Measure of rollouts, preferences or labels -> its name, and how a value is written."""
LIKELIHOODS: Mapping[str, tuple[str, float]] = {"chosen_logp": ("chosen", 0.5), "rejected_logp": ("rejected", 1.5)}
"""Measure of preferences -> which answers it is about, and by how many nats per token they may become less likely.

Chosen answers should become more likely. Rejected ones should not. But if their tokens lose most of their probability,
the model may have forgotten how to write, which its sample answers show (docs/decisions/preferences.md).
"""
REPEATED = 0.5
"""A run is worse if its sample answers repeat at least this share of their triples of words, and did not before."""
REPEATED_MORE = 0.2
"""If rejected answers became unlikely, the run is worse only if the share of repeated triples rose by this much.

Without sample answers, it is worse anyway.
"""
LEAST_RISE, RISE = 0.5, 0.25
"""A run is worse if its training loss rose by more than both: nats per token, and a share of the early loss."""


def chat_command(record: RunRecord, result: str) -> list[str]:
    """Return the command, as words, that uses the result of a run. `result`: its directory."""
    config, model = record.configuration, [result]
    if config.train != "full":
        quantize = [] if config.quantize == NONE else ["--quantize", config.quantize]
        model = [config.model, *quantize, "--adapter", result]
    if config.objective in ("classify", "reward"):
        return ["featherback", "classify", *model, "TEXT"]
    if config.compares:
        return ["featherback", "embed", *model, "TEXT"]
    data = record.data["train"]
    if not isinstance(data, PrepareReport) or data.shapes.keys() != {"text"}:
        return ["featherback", "chat", *model]
    prompt = "TEXT" if data.beginning in ("", STDIN) else data.beginning
    return ["featherback", "generate", *model, "--raw", "--prompt", prompt]


def held_out_losses(summary: Summary | None) -> str | None:
    """Return a summary's held-out losses and the kept step in words; None if they were not measured."""
    if summary is None or summary.first_eval_loss is None or _is_of_reward(summary):
        return None
    first, last = summary.first_eval_loss, summary.final_eval_loss
    if (best := summary.best_eval_loss) is None:
        return f"held-out loss {first:.4f} before training"
    # The last measurement is the best, so the kept step need not be mentioned.
    kept = "" if best == last else f"; best {best:.4f} at step {summary.best_step}, kept"
    worse = ", worse than before training" if is_worse(summary) else ""
    return f"held-out loss {first:.4f} -> {last:.4f}{kept}{worse}"


def held_out_measures(summary: Summary | None) -> str | None:
    """Return how held-out measures changed from before training to the kept result; None if the run has none."""
    if summary is None or summary.held_out is None:
        return None
    first, kept = summary.held_out.first, summary.held_out.kept
    changes = [
        f"{name} {shown(first[key])} -> {shown(kept[key])}"
        for key, (name, shown) in _MEASURES.items()
        if key in first and key in kept
    ]
    return f"held-out {', '.join(changes)}" if changes else None


def _is_of_reward(summary: Summary) -> bool:
    """Return whether the held-out loss is the mean reward of answers, with its sign turned."""
    return summary.held_out is not None and "reward" in summary.held_out.first


def repetition(answers: Iterable[str]) -> float:
    """Return the mean share of an answer's triples of words that stand earlier in it; short answers count as 0."""
    shares = []
    for answer in answers:
        words = answer.split()
        triples = list(zip(words, words[1:], words[2:]))
        shares.append(1 - len(set(triples)) / len(triples) if len(triples) > 5 else 0.0)
    return sum(shares) / max(1, len(shares))


def is_worse(summary: Summary | None) -> bool:
    """Return whether a run ended worse than it began; False before its end."""
    return describe_worsening(summary) is not None


def describe_worsening(summary: Summary | None) -> str | None:
    """Return what became worse, and how far, if a run ended worse than it began; otherwise None.

    With held-out data, the run is worse if the held-out loss of the kept result is above the held-out loss before
    training. Without held-out data, it is worse if the mean training loss of the last quarter of the steps is clearly
    above that of the first steps; the margin allows for differences between batches. It is also worse if answers of
    preferences became unlikely (LIKELIHOODS, REPEATED_MORE), or if the sample answers begin to repeat themselves
    (REPEATED).
    """
    if summary is None:
        return None
    return _risen_loss(summary) or _unlikely_answers(summary) or _repeating_answers(summary)


def _unlikely_answers(summary: Summary) -> str | None:
    if (found := summary.held_out or summary.training) is None:
        return None
    first, last = found.first, found.kept
    for name, (which, most) in LIKELIHOODS.items():
        if name == "rejected_logp" and (shares := _repetitions(summary)) and shares[1] - shares[0] < REPEATED_MORE:
            continue
        if name in first and name in last and first[name] - last[name] > most:
            fell = f"fell from {first[name]:.2f} to {last[name]:.2f} per token"
            return f"the log-probability of the {which} answers {fell}"
    return None


def _repeating_answers(summary: Summary) -> str | None:
    if (shares := _repetitions(summary)) is None:
        return None
    before, after = shares
    if after < REPEATED or after < before + REPEATED / 2:
        return None
    return f"the sample answers repeat themselves: {100 * after:.0f} % of their words, {100 * before:.0f} % before"


def _repetitions(summary: Summary) -> tuple[float, float] | None:
    """Return the repetition of the sample answers before and after training, if there are any."""
    before, after = summary.repetition_before, summary.repetition
    return None if before is None or after is None else (before, after)


def _risen_loss(summary: Summary) -> str | None:
    first, best = summary.first_eval_loss, summary.best_eval_loss
    if first is not None:
        if best is None or best <= first:
            return None
        if _is_of_reward(summary):
            return f"the held-out reward was {-first:.4f}, and its maximum since then is {-best:.4f}"
        return f"the held-out loss was {first:.4f}, and its minimum since then is {best:.4f}"
    early, late = summary.early_loss, summary.late_loss
    if early is None or late is None or late <= early + max(LEAST_RISE, RISE * early):
        return None
    return f"the training loss rose from {early:.4f} to {late:.4f}"


def lower_rate(rate: float, usual: float) -> float:
    """Return the learning rate to try after one that was too large. `usual`: the default learning rate."""
    return float(f"{min(usual, rate / LOWER):.2g}")


def changes(summary: Summary, rate: float, usual: float, epochs: float | None) -> dict[Literal["lr", "epochs"], float]:
    """Return the recommended options, by their Python names, to repeat a run that ended worse than it began.

    `rate`: its learning rate. `usual`: the default learning rate. `epochs`: its epochs, None if it was given steps. If
    the training loss has fallen, the run overfitted, and half of the epochs are recommended.
    """
    found: dict[Literal["lr", "epochs"], float] = {"lr": lower_rate(rate, usual)}
    if epochs is not None and (summary.final_loss or 0) < (summary.first_loss or 0):
        found["epochs"] = epochs / 2
    return found


def repeat_command(record: RunRecord, result: str) -> list[str]:
    """Return the command, as words, that repeats the run in the directory `result` with the recommended options."""
    from featherback.runs.run_file import RUN_YAML  # only here: training does not need it

    recommended = record.summary.recommended if record.summary else {}
    options = [word for name, value in recommended.items() for word in (f"--{name}", f"{value:g}")]
    files = record.sources.get("train")
    data = ["--data", "DATA"] if files is None or STDIN in files.paths else []  # otherwise run.yaml has the paths
    file, out = os.path.join(result, RUN_YAML), f"{os.path.normpath(result)}-2"
    return ["featherback", "train", "--config", file, *data, *options, "--out", out]


def worse_message(record: RunRecord, advice: str) -> str:
    """Return the message about a run that ended worse than it began. `advice`: what to do, as a sentence."""
    name = "model" if record.configuration.train == "full" else "adapter"
    return f"worse than before training: {describe_worsening(record.summary)}; do not use this {name}. {advice}"


def over_budget(run: RunDirectory) -> str | None:
    """Return the message that a run used more memory than its budget, which is a bug; None if it did not."""
    budget, record = run.config.budget, run.record
    taken = (record.summary, record.reference, record.teacher.taken if record.teacher else None)
    peak = max(each.peak_rss_mb for each in taken if each is not None)
    if budget is None or peak * MB <= budget:
        return None
    named = argument("memory", f"{budget / MB:g}MB")
    return (
        f"the run is complete, but it used {peak:.1f} MB, more than {named}. This is a bug in Featherback; please "
        f"report it with {run.path / RUN_FILE}."
    )


def wraps(adapter: object) -> bool:
    """Return whether the run in `adapter`, if it is one, was trained on texts in the chat template."""
    path = getattr(adapter, "path", adapter)
    try:
        data = RunDirectory.open(Path(path)).record.data["train"] if isinstance(path, (str, os.PathLike)) else None
    except FeatherbackError:  # an adapter without a run
        return False
    return isinstance(data, PrepareReport) and bool(data.shapes) and "text" not in data.shapes
