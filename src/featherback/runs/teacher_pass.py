"""Distillation before training: plans the teacher's pass, and stores its most likely tokens.

The pass runs the teacher once over the training tokens. Rows are written to a file in the run directory, batch by
batch. A run that is resumed computes only what is missing.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from featherback.core.terminal import print_error
from featherback.data.teacher_file import TaughtFile, TeacherRows, teacher_bytes
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.runs.pass_loop import Results, compute_missing, resumable
from featherback.runs.record import Teacher
from featherback.runs.teacher import TEACHER_FILE, opened_teacher, teacher_plan, teacher_rows, training_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from featherback.engine.host.machine import Baseline
    from featherback.methods.likely import LikelyTokens
    from featherback.methods.memory.plan import Plan
    from featherback.models.model import Model
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
    from featherback.engine.formats import fingerprint

    config, about = run.config, run.record.teacher
    assert about is not None  # it has been planned
    teacher = opened_teacher(run)
    known = fingerprint.of_store(teacher.store)
    if about.model not in (None, known):
        raise FeatherbackError(
            f"Cannot resume {run.path}: its teacher {config.teacher} has changed. Restore that model, or start a "
            "new run."
        )
    about = replace(about, model=known)
    run.update(teacher=about)
    taken = compute_missing(run, "teacher", teacher, _opened(run, teacher, about.plan))
    run.update(teacher=replace(about, taken=taken))


@contextmanager
def _opened(run: RunDirectory, teacher: Model, plan: Plan) -> Iterator[Sequence[Results]]:
    from featherback import methods
    from featherback.methods.likely import LikelyTokens

    method = methods.create_of(LikelyTokens, teacher, None, plan, run.work, objective=run.config.criterion)
    method.known = min(_student_vocabulary(run), teacher.config.vocab_size)
    tokens = training_tokens(run)
    with closing(teacher_rows(run, tokens)) as out:
        yield [_LikelyTokens(tokens, out, method, method.known)]
    method.close()


@dataclass
class _LikelyTokens:
    """The teacher's likely tokens after each supervised token of a token file."""

    tokens: TaughtFile
    out: TeacherRows
    method: LikelyTokens
    vocabulary: int

    def missing(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        return row[:0] if self.out.has(row) else row

    def compute(self, row: NDArray[np.int64]) -> None:
        batch = TokenFile.batch(self.tokens, row)  # the predictions are not there yet
        if batch.n_targets:
            self.out.save(row, *self.method.likely(batch))


def _student_vocabulary(run: RunDirectory) -> int:
    from featherback import models

    config = run.config
    student = models.load(config.model, config.quantize, without_converting=True)
    return student.config.vocab_size
