"""Computes the log-probabilities of all answers before training, for preferences.

The reference is the model without an adapter or, if the run continues an adapter, with its first state. The values are
written to a file in the run directory, batch by batch. A run that is resumed computes only what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featherback.core.terminal import print_error
from featherback.data.logp_file import LogpFile, given_file, key_of
from featherback.runs.before import Counted, resumable

if TYPE_CHECKING:
    from collections.abc import Callable

    from featherback.data.batch import Batch
    from featherback.data.pairs import MarkedFile
    from featherback.methods.base import Method
    from featherback.models.model import Model
    from featherback.runs.run_directory import RunDirectory


def is_needed(run: RunDirectory) -> bool:
    """Return whether a run's objective compares answers with their log-probabilities before training."""
    return run.config.criterion.needs_reference


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


def _compute(run: RunDirectory, open_model: Callable[..., Model] | None) -> None:
    from featherback import methods, models
    from featherback.core.terminal import Progress
    from featherback.data.packing import rows
    from featherback.data.pairs import MarkedFile
    from featherback.engine import kernels
    from featherback.engine.host.maps import MapWatch

    config = run.config
    files = {name: MarkedFile(run.tokens / f"{name}.tokens") for name in run.record.data}
    for name, file in files.items():
        _take_given(reference_file(run, name, file), file)
    missing = {name: file for name, file in files.items() if len(reference_file(run, name, file).read()) < len(file)}
    if not missing:
        return
    model = (open_model or models.load)(config.model, config.quantize)
    kernels.set_threads(config.threads or kernels.default_threads())
    run.begin_work()
    try:
        adapter = None if config.start is None else _first_adapter(run, model)
        with Progress("log-probabilities before training") as shown, MapWatch(model.maps, model.close) as maps:
            method = methods.create(
                "mesp", model, adapter, run.plan_of(model.blocks), run.work, objective=config.criterion
            )
            counted = Counted(shown, sum(map(len, missing.values())))
            for name, tokens in missing.items():
                maps.add(tokens.maps())
                tokens.check(model.config.vocab_size)
                with reference_file(run, name, tokens) as out:
                    first = len(out.read())
                    counted.add(first)
                    for row in rows(tokens, config.batching, shuffle=False):
                        row = row[row >= first]
                        if not row.size:
                            continue
                        found = answer_sums(method, tokens.batch(row))
                        maps.check()
                        out.append(int(row[0]), found)
                        tokens.drop_pages()
                        counted.add(row.size)
            method.close()
        if adapter is not None:
            adapter.close()
    finally:
        run.remove_work()
    run.update(reference=counted.taken())


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
    from featherback.runs.beginning import first_adapter

    return first_adapter(run, model, run.work / "reference.f32" if run.plan.states == "file" else None)


def _checksum_of(folder: Path) -> str:
    """Return a checksum of the files of an adapter."""
    from featherback.engine.formats import fingerprint

    return fingerprint.of_data(folder)
