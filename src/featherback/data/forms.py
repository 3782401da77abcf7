"""Check that examples have the form that the objective needs: answers to imitate, pairs, or labelled answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from featherback.core.naming import argument
from featherback.data.example import Bad, Example
from featherback.errors import excerpt

PAIRS, LABELS = "pairs", "labels"
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


def in_form(example: Example | Bad, form: str | None) -> Example | Bad:
    """Return the example, with its label as True or False if `form` is LABELS; or why it does not have `form`."""
    if isinstance(example, Bad):
        return example
    problem = None
    if form is None:
        if example.rejected is not None:
            problem = (
                'this is a preference pair ("chosen" and "rejected"). To train on pairs, add '
                f"{argument('objective', 'dpo')}. To train on the chosen answers only, write them as "
                '"messages", or as "prompt" and "completion".'
            )
        elif example.label is not None:
            return replace(example, label=None, unused=(*example.unused, "label"))
    elif form == PAIRS and example.rejected is None:
        other = f" To train on labelled answers, use {argument('objective', 'kto')}." * (example.label is not None)
        problem = f'expected a pair of answers, "chosen" and "rejected".{other}'
    elif form == LABELS and example.rejected is None:
        if (label := _truth(example.label)) is not None:
            return replace(example, label=label)
        problem = '"label" is missing; it must say whether the answer is wanted: true or false.'
        if example.label is not None:
            problem = f'"label" is {excerpt(str(example.label))}; it must be true or false.'
    return example if problem is None else Bad(example.where, problem)


def _truth(label: Any) -> bool | None:
    word = str(label).strip().lower()
    return True if word in _YES else False if word in _NO else None
