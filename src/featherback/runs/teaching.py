"""Distillation before training: plans the teacher's pass, and stores its most likely tokens.

The pass runs the teacher once over the training tokens. Rows are written to a file in the run directory, batch by
batch. A run that is resumed computes only what is missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from featherback.core.terminal import print_error
from featherback.data.teacher_file import teacher_bytes
from featherback.errors import FeatherbackError
from featherback.runs.before import Counted, resumable
from featherback.runs.record import Teacher
from featherback.runs.teacher import TEACHER_FILE, opened_teacher, teacher_plan, teacher_rows, training_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from featherback.engine.host.machine import Baseline
    from featherback.runs.run_directory import RunDirectory


def is_needed(run: RunDirectory) -> bool:
    """Return whether a run has a teacher whose pass is not complete."""
    about = run.record.teacher
    done = about is not None and about.taken is not None and (run.tokens / TEACHER_FILE).exists()
    return run.config.teacher is not None and not done


def plan_teacher(run: RunDirectory, baseline: Callable[[], Baseline]) -> None:
    """Choose the memory layout of the teacher's pass, if it is needed, within the budget of the run.

    Raises BudgetError if none fits.
    """
    if not is_needed(run):
        return
    plan = teacher_plan(run.config, opened_teacher(run), run.plan.compute, baseline)
    size, before = teacher_bytes(training_tokens(run), run.config.teacher_top_k), run.record.teacher
    run.update(teacher=Teacher(plan=plan, disk_bytes=size, model=before.model if before else None))


def teach(run: RunDirectory, note: Callable[[str], None] = print_error) -> None:
    """Compute what is missing of the teacher's likely tokens.

    If a signal raises KeyboardInterrupt, the rows so far are kept and the run can be resumed.
    """
    with resumable(run, note):
        _compute(run)


def _compute(run: RunDirectory) -> None:
    from featherback import methods
    from featherback.core.terminal import Progress
    from featherback.data.packing import rows
    from featherback.data.token_file import TokenFile
    from featherback.engine import kernels
    from featherback.engine.formats import fingerprint
    from featherback.engine.host.maps import MapWatch
    from featherback.methods.likely import LikelyTokens

    config, about = run.config, run.record.teacher
    assert about is not None  # it has been planned
    model, tokens = opened_teacher(run), training_tokens(run)
    known = fingerprint.of_store(model.store)
    if about.model not in (None, known):
        raise FeatherbackError(
            f"Cannot resume {run.path}: its teacher {config.teacher} has changed. Restore that model, or start a "
            "new run."
        )
    about = replace(about, model=known)
    run.update(teacher=about)
    kernels.set_threads(config.threads or kernels.default_threads())
    run.begin_work()
    out = teacher_rows(run, tokens)
    try:
        with Progress("teacher") as shown, MapWatch([*model.maps, *tokens.maps()], model.close) as maps:
            counted = Counted(shown, len(tokens))
            method = methods.create_of(LikelyTokens, model, None, about.plan, run.work, objective=config.criterion)
            method.known = min(_student_vocabulary(run), model.config.vocab_size)
            tokens.check(method.known)
            for row in rows(tokens, config.batching, shuffle=False):
                batch = TokenFile.batch(tokens, row)
                if batch.n_targets and not out.has(row):
                    out.save(row, *method.likely(batch))
                    maps.check()
                tokens.drop_pages()
                counted.add(row.size)
            method.close()
    finally:
        out.close()
        run.remove_work()
    run.update(teacher=replace(about, taken=counted.taken()))


def _student_vocabulary(run: RunDirectory) -> int:
    from featherback import models

    config = run.config
    student = models.load(config.model, config.quantize, without_converting=True)
    return student.config.vocab_size
