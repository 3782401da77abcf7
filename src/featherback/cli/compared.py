"""What `featherback compare` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from featherback.core.terminal import print_error, say
from featherback.runs.comparing import Comparison, Difference, compared
from featherback.worker import WORSE

if TYPE_CHECKING:
    from featherback.runs.evaluation import Evaluation
    from featherback.runs.requests import ComparisonRequest

LONGEST = 300
"""Characters of a text that is shown."""


def show(
    asked: ComparisonRequest, answers: Sequence[Evaluation], losses: Sequence[Evaluation | None],
    general: Sequence[tuple[Evaluation, Evaluation]], note: str | None,
) -> int:  # fmt: skip
    """Print the comparison; return the exit status: 0, or 3 if a metric is less than was asked for."""
    found = compared(asked.candidates, answers, losses, general, note)
    if asked.json:
        say(json.dumps({**found.values(), "compute": asked.answers[0].compute}))
    else:
        _say(found, asked.shown, asked.answers[0].compute)
    if (below := found.below(asked.at_least)) is None:
        return 0
    print_error(below)
    return WORSE


def _say(found: Comparison, shown: int, compute: str) -> None:
    say(f"{len(found.prompts)} prompts, computed in {compute}\n")
    metrics, has_loss = list(found.candidates[0].metrics), found.note is None
    general = ["general loss", "kept"] if found.instructions else []
    rows = [["", *metrics, *(["loss"] if has_loss else []), "tokens", "repeated", *general]]
    for each in found.candidates:
        means = [f"{each.metrics[metric]:.4f}" for metric in metrics]
        loss = [f"{each.loss:.4f}"] if each.loss is not None else []
        left = [f"{each.general.loss:.4f}", f"{100 * each.general.kept:.0f} %"] if each.general is not None else []
        rows.append([each.name, *means, *loss, f"{each.answer_length:.0f}", f"{100 * each.repetition:.0f} %", *left])
    _say_table(rows)
    if not has_loss:
        say(f"note: the held-out loss was not measured. {found.note}")
    for name, own in _by_name(found.differences).items():
        say(f"\n{name} minus {found.candidates[0].name}, with intervals of 95 %")
        rows = [["", "difference", "interval", "better", "worse", "equal", "wins", "interval", "p"]]
        _say_table([*rows, *map(_row, own)])
    if found.differences:
        say(
            "\nThe first interval is from the paired bootstrap. Wins are the share of prompts that are not equal, with "
            "the interval of Clopper and Pearson; p is from the exact sign test."
        )
    for number, prompt in enumerate(found.prompts[:shown]):
        say(f"\nprompt: {_short(prompt)}")
        if (right := found.right[number]) is not None:
            say(f"  right answer: {_short(right)}")
        _say_answers({each.name: each.answers[number] for each in found.candidates})
    for number, instruction in enumerate(found.instructions[:shown]):
        say(f"\ngeneral instruction: {_short(instruction)}")
        _say_answers({each.name: each.general.answers[number] for each in found.candidates if each.general is not None})


def _say_answers(answers: Mapping[str, str]) -> None:
    for name, answer in answers.items():
        say(f"  {name}: {_short(answer)}")


def _row(each: Difference) -> list[str]:
    low, high = each.interval
    wins = ["-", "-"]
    if each.win_rate is not None:
        first, last = each.win_interval
        wins = [f"{100 * each.win_rate:.0f} %", f"{100 * first:.0f} to {100 * last:.0f} %"]
    counts = [str(each.better), str(each.worse), str(each.equal)]
    return [each.metric, f"{each.difference:+.4f}", f"{low:+.4f} to {high:+.4f}", *counts, *wins, f"{each.p:.2g}"]


def _by_name(differences: Sequence[Difference]) -> Mapping[str, list[Difference]]:
    found: dict[str, list[Difference]] = {}
    for each in differences:
        found.setdefault(each.name, []).append(each)
    return found


def _say_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first is aligned to the left, the others to the right."""
    widths: list[Any] = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:]))]
        say("  ".join(cells).rstrip())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}\u2026"
