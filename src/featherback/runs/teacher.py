"""The stages of distillation before training: plan the teacher's pass, and store its most likely tokens.

The pass runs the teacher once over the training tokens. Rows are written to a file in the run directory, batch by
batch. A run that is resumed computes only what is missing.
"""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from featherback.core.files import json_checksum
from featherback.core.naming import argument
from featherback.data.teacher_file import TaughtFile, TeacherRows, teacher_bytes
from featherback.errors import FeatherbackError
from featherback.runs.before import Counted, resumable
from featherback.runs.stages import PreparedRun, StageTools

if TYPE_CHECKING:
    from collections.abc import Callable

    from featherback.engine.host.machine import Baseline
    from featherback.methods.memory.job import Job
    from featherback.methods.memory.plan import Plan
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.run_directory import RunDirectory

RECORD = "teacher"


def with_teacher(config: TrainConfig, student: Model) -> TrainConfig:
    """Return the options with the teacher's absolute path. Raises FeatherbackError if it does not fit the student."""
    if config.teacher is None:
        return config
    from featherback import models
    from featherback.data.teacher_file import MOST_IDS
    from featherback.data.tokenizers.vocabulary import check_same_vocabulary
    from featherback.models.hub.locate import locate

    path = os.path.abspath(locate(config.teacher))
    teacher = models.load(path, without_converting=True)
    check_same_vocabulary(student.path, teacher.path)
    fewest = min(student.config.vocab_size, teacher.config.vocab_size)
    if config.teacher_top_k > fewest:
        raise FeatherbackError(
            f"{argument('teacher_top_k', config.teacher_top_k)} is more than the {fewest} tokens of the vocabulary."
        )
    if fewest > MOST_IDS:
        raise FeatherbackError(f"{path} has {fewest} tokens; a teacher may have at most {MOST_IDS}.")
    return replace(config, teacher=path)


def plan_teacher(prepared: PreparedRun, means: StageTools) -> PreparedRun:
    """Choose the memory layout of the teacher's pass, within the budget of the run. Raises BudgetError if none fits.

    If the stage fails, everything that was made for a new run is deleted.
    """
    run = prepared.run
    if not prepared.needs_teacher:
        return prepared
    try:
        model = _opened(run)
        plan = teacher_plan(run.config, model, run.plan.compute, means.baseline)
        tokens = _tokens(run)
        known = {"plan": asdict(plan), "disk_bytes": teacher_bytes(tokens, run.config.teacher_top_k)}
        run.update(**{RECORD: {**run.record.get(RECORD, {}), **known}})
    except BaseException:
        from featherback.runs.launch import delete_prepared

        if prepared.is_new:
            delete_prepared(run, prepared.existed)
        else:
            run.release()
        raise
    return prepared


def teacher_plan(config: TrainConfig, teacher: Model, compute: str, baseline: Callable[[], Baseline]) -> Plan:
    """Return the fastest plan of the teacher's pass that fits in the budget of `config`."""
    from featherback.engine import kernels
    from featherback.engine.budget import BudgetError
    from featherback.methods.memory.plan import LEAST
    from featherback.runs.choose import Computes

    kernels.set_threads(config.threads or kernels.default_threads())
    named = replace(config, compute=compute)
    computes = Computes.of(named, teacher)
    budget = LEAST if config.memory == LEAST else config.budget
    try:
        return computes.plan(_job(config, teacher, compute), budget, baseline())
    except BudgetError as error:
        raise BudgetError("The teacher's pass", error.limit, error.needed, error.advice) from None


def _job(config: TrainConfig, teacher: Model, compute: str) -> Job:
    from featherback.methods.likely import LikelyTokens
    from featherback.methods.memory.job import Job
    from featherback.runs.choose import job_options

    own = {"method": LikelyTokens, "options": None, "form": None, "whole": None, "compute": compute}
    return Job.of(teacher, **{**job_options(config), **own})


def teach(prepared: PreparedRun, means: StageTools) -> PreparedRun:
    """Compute what is missing of the teacher's likely tokens, if the run has a teacher.

    If a signal raises KeyboardInterrupt, the rows so far are kept and the run can be resumed.
    """
    if prepared.needs_teacher:
        with resumable(prepared.run, means.note):
            _compute(prepared.run)
    return prepared


def taught(run: RunDirectory) -> TaughtFile:
    """Return the training tokens of a run with what its teacher said."""
    file = _tokens(run)
    file.teacher = _rows(run, file)
    return file


def is_taught(run: RunDirectory) -> bool:
    """Return whether the teacher's pass of a run is complete."""
    about = run.record.get(RECORD)
    return isinstance(about, dict) and "seconds" in about and _path(run).exists()


def _tokens(run: RunDirectory) -> TaughtFile:
    return TaughtFile(run.tokens / "train.tokens")


def _path(run: RunDirectory) -> Any:
    return run.tokens / "train.teacher"


def _rows(run: RunDirectory, tokens: TaughtFile) -> TeacherRows:
    """Return the file of the teacher's likely tokens."""
    config, about = run.config, run.record[RECORD]
    facts = [about.get("model"), tokens.checksum, config.teacher_top_k, config.temperature, about["plan"]["compute"]]
    return TeacherRows(_path(run), json_checksum(facts), tokens, config.teacher_top_k)


def _opened(run: RunDirectory) -> Model:
    from featherback import models

    assert run.config.teacher is not None
    return models.load(run.config.teacher)


def _compute(run: RunDirectory) -> None:
    from featherback import methods
    from featherback.core.terminal import Progress
    from featherback.data.packing import rows
    from featherback.data.token_file import TokenFile
    from featherback.engine import kernels
    from featherback.engine.formats import fingerprint
    from featherback.engine.host.maps import MapWatch
    from featherback.methods.likely import LikelyTokens
    from featherback.runs.run_directory import plan_from_json

    config, about = run.config, run.record[RECORD]
    plan = plan_from_json(about["plan"])
    if plan is None:
        raise FeatherbackError(f"{run.path} has no plan of this version for its teacher; start a new run.")
    model, tokens = _opened(run), _tokens(run)
    known = fingerprint.of_store(model.store)
    if about.setdefault("model", known) != known:
        raise FeatherbackError(
            f"Cannot resume {run.path}: its teacher {config.teacher} has changed. Restore that model, or start a "
            "new run."
        )
    run.update(**{RECORD: about})
    kernels.set_threads(config.threads or kernels.default_threads())
    run.begin_work()
    out = _rows(run, tokens)
    try:
        with Progress("teacher") as shown, MapWatch(model.files, model.close) as maps:
            counted = Counted(shown, len(tokens))
            method = methods.create_of(LikelyTokens, model, None, plan, run.work, objective=config.criterion)
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
    run.update(**{RECORD: {**about, **counted.record()}})


def _student_vocabulary(run: RunDirectory) -> int:
    from featherback import models

    config = run.config
    student = models.load(config.model, config.quantize, without_converting=True)
    return student.config.vocab_size
