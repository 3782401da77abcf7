"""Computes the log-probabilities of all answers before training, for preferences.

The reference is the model without an adapter or, if the run continues an adapter, with its first state. The values are
written to a file in the run directory, batch by batch. A run that is resumed computes only what is missing.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featherback.core.terminal import print_error
from featherback.data.logp_file import LogpFile, given_file, key_of
from featherback.runs.pass_loop import Results, compute_missing, resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from featherback.data.batch import Batch
    from featherback.data.pairs import MarkedFile
    from featherback.methods.base import Method
    from featherback.models.model import Model
    from featherback.runs.run_directory import RunDirectory


def is_needed(run: RunDirectory) -> bool:
    """Return whether a run's objective compares answers with their log-probabilities before training, and some are
    missing.
    """
    return run.config.criterion.needs_reference and bool(_incomplete(run))


def compute_reference(
    run: RunDirectory, open_model: Callable[..., Model] | None = None, note: Callable[[str], None] = print_error
) -> None:
    """Compute what is missing of a run's reference log-probabilities. `open_model`: like `models.load`.

    If a signal raises KeyboardInterrupt, the values so far are kept and the run can be resumed.
    """
    with resumable(run, note):
        _compute(run, open_model)


def reference_file(run: RunDirectory, name: str, tokens: MarkedFile) -> LogpFile:
    """Return the file of the reference log-probabilities of a run's tokens `name`: "train" or "eval"."""
    config = run.config
    start = None if config.start is None else _checksum_of(run.start)
    key = key_of(model=run.record.model, start=start, tokens=tokens.checksum, compute=run.plan.compute)
    return LogpFile(run.tokens / f"{name}.logps", key, len(tokens))


def _incomplete(run: RunDirectory) -> list[tuple[str, MarkedFile]]:
    """Return the token files of a run of which log-probabilities are missing, with their names."""
    from featherback.data.pairs import MarkedFile

    files = [(name, MarkedFile(run.tokens / f"{name}.tokens")) for name in run.record.data]
    return [(name, file) for name, file in files if len(reference_file(run, name, file).read()) < len(file)]


def _compute(run: RunDirectory, open_model: Callable[..., Model] | None) -> None:
    from featherback import models

    config = run.config
    for name, file in _incomplete(run):
        _take_given(reference_file(run, name, file), file)
    if missing := _incomplete(run):
        model = (open_model or models.load)(config.model, config.quantize)
        taken = compute_missing(run, "log-probabilities before training", model, _opened(run, model, missing))
        run.update(reference=taken)


@contextmanager
def _opened(run: RunDirectory, model: Model, missing: Sequence[tuple[str, MarkedFile]]) -> Iterator[Sequence[Results]]:
    from featherback import methods

    config = run.config
    adapter = None if config.start is None else _first_adapter(run, model)
    method = methods.create("mesp", model, adapter, run.plan_of(model.blocks), run.work, objective=config.criterion)
    with ExitStack() as files:
        yield [
            _AnswerSums(tokens, model.config.vocab_size, files.enter_context(reference_file(run, name, tokens)), method)
            for name, tokens in missing
        ]
    method.close()
    if adapter is not None:
        adapter.close()


class _AnswerSums:
    """The log-probabilities of all answers of a token file, which are computed in order."""

    def __init__(self, tokens: MarkedFile, vocabulary: int, out: LogpFile, method: Method) -> None:
        self.tokens, self.vocabulary, self._out, self._method = tokens, vocabulary, out, method
        self._first = len(out.read())

    def missing(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        return row[row >= self._first]

    def compute(self, row: NDArray[np.int64]) -> None:
        self._out.append(int(row[0]), answer_sums(self._method, self.tokens.batch(row)))


def answer_sums(method: Method, batch: Batch) -> NDArray[np.float64]:
    """Return the log-probabilities of the two answers of each example in a batch (n, 2)."""
    from featherback.nn.objectives.recorded import AnswerSums

    sums = AnswerSums()
    method.loss(batch, objective=sums)
    return np.concatenate(sums.found).reshape(-1, 2)


def _take_given(out: LogpFile, tokens: MarkedFile) -> None:
    """Write the values that the data give, if they give all of them. Held-out examples were taken from another file."""
    whole = tokens.whole or tokens
    given = given_file(whole.path, len(whole)).read()
    if len(given) == len(whole) and len(out.read()) < len(tokens):
        with out:
            done = len(out.read())
            out.append(done, given[np.searchsorted(whole.starts, tokens.starts[done:])])


def _first_adapter(run: RunDirectory, model: Model):  # type: ignore[no-untyped-def]
    from featherback.runs.initial_state import first_adapter

    return first_adapter(run, model, run.work / "reference.f32" if run.plan.states == "file" else None)


def _checksum_of(folder: Path) -> str:
    """Return a checksum of the files of an adapter."""
    from featherback.engine.formats import fingerprint

    return fingerprint.of_data(folder)
