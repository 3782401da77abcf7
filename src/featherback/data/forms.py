"""Check that examples have the form that the objective needs: answers to imitate, pairs, labelled answers or texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from featherback.core.naming import argument
from featherback.data.example import Bad, Example
from featherback.errors import excerpt

PAIRS, LABELS, CLASSES = "pairs", "labels", "classes"
CALLED = {PAIRS: "pairs of answers", LABELS: "labels of answers", CLASSES: "texts with labels"}
"""Forms in messages."""
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


def in_form(example: Example | Bad, form: str | None) -> Example | Bad:
    """Return the example, or why it does not have `form`.

    If `form` is LABELS, its label becomes True or False; if it is CLASSES, the label's name.
    """
    if isinstance(example, Bad):
        return example
    problem = None
    if form is None:
        if example.rejected is not None:
            problem = (
                'this is a preference pair ("chosen" and "rejected"). For pairs, add '
                f"{argument('objective', 'dpo')}. For the chosen answers only, write them as "
                '"messages", or as "prompt" and "completion".'
            )
        elif example.is_open:
            problem = '"completion" is missing.'
        elif example.label is not None:
            return replace(example, label=None, unused=(*example.unused, "label"))
    elif form == PAIRS and example.rejected is None:
        other = f" To train on labelled answers, use {argument('objective', 'kto')}." * (example.label is not None)
        problem = f'expected a pair of answers, "chosen" and "rejected".{other}'
    elif form == CLASSES:
        if example.rejected is None and (name := _name(example.label)) is not None:
            return replace(example, label=name)
        problem = f"expected a label with a text, a prompt or messages.{_missing(example.label)}"
    elif form == LABELS and example.is_open:
        problem = '"completion" is missing.'
    elif form == LABELS and example.rejected is None:
        if (label := _truth(example.label)) is not None:
            return replace(example, label=label)
        problem = '"label" is missing; it must say whether the answer is wanted: true or false.'
        if example.label is not None:
            problem = f'"label" is {excerpt(str(example.label))}; it must be true or false.'
    return example if problem is None else Bad(example.where, problem)


def _name(label: Any) -> str | None:
    """Return the name of a label that is text, a whole number or a truth value; None for anything else."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, (bool, int, str)) and (name := str(label).strip()):
        return name.lower() if isinstance(label, bool) else name
    return None


def _missing(label: Any) -> str:
    if label is None:
        return f' "label" is missing; to read it from another column, use {argument("map", "label=COLUMN")}.'
    return f' "label" is {excerpt(str(label))}; it must be text or a whole number.'


def _truth(label: Any) -> bool | None:
    word = str(label).strip().lower()
    return True if word in _YES else False if word in _NO else None
