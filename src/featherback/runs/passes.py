"""The passes that some runs need after their preparation and before their first step, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from featherback.core.terminal import print_error
from featherback.runs import cosine, reference, replay_pass, teacher_pass
from featherback.runs.run_directory import RunDirectory
from featherback.runs.tools import OpenedModel

Note = Callable[[str], None]
"""Receives a message for the user."""


class Pass(NamedTuple):
    """`is_needed`: whether something is missing. `compute`: computes what is missing."""

    is_needed: Callable[[RunDirectory], bool]
    compute: Callable[[RunDirectory, OpenedModel, Note], None]


COSINE = "cosine"
PASSES = {
    "replay": Pass(replay_pass.is_needed, replay_pass.write_examples),
    COSINE: Pass(cosine.is_needed, lambda run, open_model, _: cosine.measure_cosine(run, open_model)),
    "reference": Pass(reference.is_needed, reference.compute_reference),
    "teacher": Pass(teacher_pass.is_needed, lambda run, _, note: teacher_pass.teach(run, note)),
}


def missing_passes(run: RunDirectory) -> tuple[str, ...]:
    """Return the names of the passes of which something is missing."""
    return tuple(name for name, each in PASSES.items() if each.is_needed(run))


def run_missing(run: RunDirectory, open_model: OpenedModel, note: Note = print_error) -> None:
    """Compute what is missing of all passes."""
    for name in missing_passes(run):
        PASSES[name].compute(run, open_model, note)
