"""A run's teacher: whether it fits the student, what its pass needs, and its predictions for the training tokens."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from featherback.core.files import json_checksum
from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.core.terminal import quoted
from featherback.data.teacher_file import MOST_IDS, TaughtFile, TeacherRows
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from featherback.engine.host.machine import Baseline
    from featherback.methods.memory.job import Job
    from featherback.methods.memory.plan import Plan
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.outlook import MethodOutlook
    from featherback.runs.run_directory import RunDirectory


TEACHER_FILE = "train.teacher"
"""The file with a teacher's tokens, beside the tokens of the run."""


def with_teacher(config: TrainConfig, student: Model) -> TrainConfig:
    """Return the options with the teacher's absolute path. Raises FeatherbackError if it does not fit the student."""
    if config.teacher is None:
        return config
    from featherback import models
    from featherback.data.tokenizers.vocabulary import check_same_vocabulary
    from featherback.exports.formats import formats_of, is_model
    from featherback.models.hub.locate import locate

    path = os.path.abspath(locate(config.teacher))
    if formats_of(Path(path)) and not is_model(Path(path)):
        merge = quoted("featherback", "export", config.teacher, "--to", "merged", "--out", "TEACHER")
        raise FeatherbackError(
            f"{argument('teacher', config.teacher)} is an adapter, and a teacher must be a whole model. Merge it into "
            f"its base model with `{merge}`, then give {argument('teacher', 'TEACHER')}."
        )
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


def teacher_plan(config: TrainConfig, teacher: Model, compute: str, baseline: Callable[[], Baseline]) -> Plan:
    """Return the fastest plan of the teacher's pass that fits in the budget of `config`."""
    from featherback.engine.budget import BudgetError
    from featherback.methods.memory.plan import LEAST
    from featherback.runs.choose import computes_of

    computes = computes_of(replace(config, compute=compute), teacher)
    budget = LEAST if config.memory == LEAST else config.budget
    try:
        return computes.plan(_job(config, teacher, compute), budget, baseline())
    except BudgetError as error:
        raise BudgetError("The teacher's pass", error.limit, error.needed, error.advice) from None


def outlook_of_teacher(config: TrainConfig, baseline: Callable[[], Baseline]) -> MethodOutlook | None:
    """Return what the teacher's pass needs, for `plan`; None without a teacher."""
    from featherback import models
    from featherback.runs.choose import computes_here, computes_of
    from featherback.runs.outlook import MethodOutlook
    from featherback.runs.panels.run import AUTO

    if config.teacher is None:
        return None
    model = models.load(config.teacher, without_converting=True)
    compute = computes_here()[0] if config.compute == AUTO else config.compute
    computes = computes_of(replace(config, compute=compute), model)
    least = computes.smallest(_job(config, model, compute), baseline())
    try:
        plan = teacher_plan(config, model, compute, baseline)
    except FeatherbackError:
        plan = None
    return MethodOutlook("teacher", least / MB, computes.least_budget(least) // MB, plan)


def _job(config: TrainConfig, teacher: Model, compute: str) -> Job:
    from featherback.methods.likely import LikelyTokens
    from featherback.methods.memory.job import Job
    from featherback.runs.choose import job_options

    own = {"method": LikelyTokens, "options": None, "form": None, "whole": None, "compute": compute}
    return Job.of(teacher, **{**job_options(config), **own})


def taught(run: RunDirectory) -> TaughtFile:
    """Return the training tokens of a run with the teacher's predictions."""
    file = training_tokens(run)
    file.teacher = teacher_rows(run, file)
    return file


def training_tokens(run: RunDirectory) -> TaughtFile:
    """Return the training tokens of a run, without the teacher's predictions."""
    return TaughtFile(run.tokens / "train.tokens")


def teacher_rows(run: RunDirectory, tokens: TaughtFile) -> TeacherRows:
    """Return the file of the teacher's likely tokens."""
    config, about = run.config, run.record.teacher
    assert about is not None  # its pass has been planned
    facts = [about.model, tokens.checksum, config.teacher_top_k, config.temperature, about.plan.compute]
    return TeacherRows(run.tokens / TEACHER_FILE, json_checksum(facts), tokens, config.teacher_top_k)


def opened_teacher(run: RunDirectory) -> Model:
    """Open the teacher of a run."""
    from featherback import models

    assert run.config.teacher is not None
    return models.load(run.config.teacher)
