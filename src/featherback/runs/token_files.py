"""A run's examples in the form that its objective reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featherback.data.token_file import TokenFile

if TYPE_CHECKING:
    from featherback.runs.run_directory import RunDirectory


def examples_of(run: RunDirectory, name: str, *, with_reference: bool = True) -> TokenFile:
    """Open the tokens `name` of a run, "train" or "eval": plain tokens, labelled texts, or examples with answers.

    The last have their log-probabilities before training if the objective needs them, unless `with_reference` is false.
    Raises FeatherbackError if they are missing.
    """
    path, objective = run.tokens / f"{name}.tokens", run.config.criterion
    if objective.data_form is None:
        return TokenFile(path)
    from featherback.data.forms import CLASSES  # what follows takes memory
    from featherback.data.labelled import LabelledFile
    from featherback.data.pairs import MarkedFile
    from featherback.runs.reference import reference_file

    if objective.data_form == CLASSES:
        return LabelledFile(path, run.config.outputs)
    file = MarkedFile(path, objective.over_prompt, objective.scores is not None)
    if objective.needs_reference and with_reference:
        file.reference = reference_file(run, name, file).read_all()
    return file
