"""A run's examples in the form that its objective reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featherback.data.token_file import TokenFile
    from featherback.runs.run_directory import RunDirectory


def examples_of(run: RunDirectory, name: str, *, complete: bool = True) -> TokenFile:
    """Open the tokens `name` of a run, "train" or "eval", with what passes before training have found out about them.

    That is the log-probabilities before training, or the teacher's predictions; it is left out unless `complete`.
    Raises FeatherbackError if it is missing.
    """
    from featherback.data.pairs import MarkedFile  # what is imported here takes memory
    from featherback.runs.reference import reference_file
    from featherback.runs.teacher import taught

    objective, config = run.config.criterion, run.config
    if complete and config.teacher is not None and name == "train":
        return taught(run)
    file = objective.tokens(run.tokens / f"{name}.tokens", config.outputs)
    if complete and objective.needs_reference:
        assert isinstance(file, MarkedFile)
        file.reference = reference_file(run, name, file).read_all()
    return file
