"""The passes that some runs need after their preparation and before their first step, in their order."""

from __future__ import annotations

from collections.abc import Callable

from featherback.core.terminal import print_error
from featherback.runs import cosine, reference, teaching
from featherback.runs.run_directory import RunDirectory
from featherback.runs.tools import OpenedModel

COSINE, REFERENCE, TEACHER = "cosine", "reference", "teacher"


def missing_passes(run: RunDirectory) -> tuple[str, ...]:
    """Return the passes of a run, in their order, except those that are known to be complete."""
    needs = {COSINE: cosine.is_needed, REFERENCE: reference.is_needed, TEACHER: teaching.is_needed}
    return tuple(name for name, is_needed in needs.items() if is_needed(run))


def run_pass(name: str, run: RunDirectory, open_model: OpenedModel, note: Callable[[str], None] = print_error) -> None:
    """Compute what is missing of a pass. `note` receives messages for the user."""
    if name == COSINE:
        cosine.measure_cosine(run, open_model)
    elif name == REFERENCE:
        reference.compute_reference(run, open_model, note)
    else:
        teaching.teach(run, note)
