"""`featherback evaluate`: data become tokens, a plan of a forward pass is chosen, and the loss is measured.

On the command line, `prepare_evaluation` and `measured` do that, each in a process of its own (`cli/launcher.py`).
`evaluate_data` does it in one, for Python.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback import methods, models
from featherback.core.decode import decode, encode
from featherback.core.naming import argument
from featherback.data.forms import FORMS
from featherback.data.packing import Batching, rows
from featherback.data.prompts import PromptFile
from featherback.data.report import PrepareReport
from featherback.data.source import PLAIN, Source
from featherback.data.token_file import TokenFile
from featherback.engine import backend, kernels
from featherback.engine.budget import BudgetError
from featherback.engine.formats.mapping import most_mapped
from featherback.engine.host.machine import disk_folder, is_ram_disk
from featherback.engine.host.maps import MapWatch
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.methods.base import ForwardOnly
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.finite import check_weights
from featherback.models.form import Form, Layout
from featherback.models.model import Model
from featherback.nn.objectives import OBJECTIVES
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.nn.objectives.recorded import Recorded
from featherback.runs.config import head_objective, shares_prompts
from featherback.runs.evaluation import Evaluation, evaluate
from featherback.runs.examples import TITLE, Encode, Examples
from featherback.runs.judging import Judging, judging_objective, judging_of
from featherback.runs.lengths import TOKENS, tokens_in
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.panels.optimisation import NEXT_TOKEN as NEXT_TOKEN_NAME
from featherback.runs.reference import answer_sums
from featherback.runs.requests import EvaluationRequest, PreparedEvaluation
from featherback.runs.run_directory import START
from featherback.runs.tools import Tools

if TYPE_CHECKING:
    from featherback.engine.host.machine import Baseline
    from featherback.methods.memory.job import Job
    from featherback.runs.rewards.judge import Function


def prepare_evaluation(asked: EvaluationRequest, tools: Tools) -> PreparedEvaluation:
    """Write the data as tokens to a temporary folder, and choose the fastest plan of a forward pass in the budget.

    The folder is deleted if that fails. Raises BudgetError if no plan fits.
    """
    backend.use(asked.device, asked.vram)
    model = tools.open(asked.model, asked.quantize)
    form, folder = _form(model, asked.adapter), Path(tempfile.mkdtemp(prefix="featherback-", dir=disk_folder()))
    judging = judging_of(asked.rewards)
    objective, source = _objective(model, form, asked.objective, judging), decode(Source, asked.data, "data")
    try:
        with MapWatch(model.maps, model.close) as maps:
            report = _prepare(folder, model, objective, source, asked.seq_len, asked.cut, None, tools.encode)
            maps.check()
        assert report is not None  # the data are files
        kernels.set_threads(asked.threads or kernels.default_threads())
        tokens = objective.tokens(folder / TOKENS, () if form is None else form.outputs)
        plan = _plan(
            model, form, objective, tokens, asked.seq_len, asked.compute, asked.memory, tools.baseline, judging
        )
        return PreparedEvaluation(asked, str(folder), encode(report), encode(plan))
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise


def measured(prepared: PreparedEvaluation) -> Evaluation:
    """Measure the loss with the plan, and delete the folder."""
    try:
        asked, plan = prepared.request, decode(Plan, prepared.plan, "the plan")
        backend.use(asked.device, asked.vram)
        model = models.load(asked.model, asked.quantize)
        kernels.set_threads(asked.threads or kernels.default_threads())
        form, folder = _form(model, asked.adapter), Path(prepared.folder)
        judging = judging_of(asked.rewards)
        objective = _objective(model, form, asked.objective, judging)
        tokens = objective.tokens(folder / TOKENS, () if form is None else form.outputs)
        source = decode(Source, asked.data, "data")
        if judging is not None:
            found = _judged(model, judging, asked.adapter, tokens, plan, folder, source, {})
        else:
            found = _measure(model, objective, asked.adapter, tokens, asked.seq_len, plan, folder, source.name)
        return replace(found, report=decode(PrepareReport, prepared.report, "the report"))
    finally:
        rmtree(prepared.folder, ignore_errors=True)


def evaluate_data(
    model: Model,
    data: Source | str,
    adapter: Adapter | str | os.PathLike[str] | None = None,
    seq_len: int | None = None,
    compute: str = "bf16",
    cut: bool = False,
    examples: Examples | None = None,
    memory: int | str | None = None,
    objective: str = NEXT_TOKEN_NAME,
    baseline: Callable[[], Baseline] | None = None,
    judging: Judging | None = None,
    functions: Mapping[str, Function] | None = None,
) -> Evaluation:
    """Tokenise `data` as training would, in a separate process, and measure `model` with `adapter` in this one.

    `examples`: examples from Python, instead of files. `seq_len`: None for the length that the data need. `cut`:
    truncate longer examples instead of rejecting them. `memory` and `objective`: as for `train`. `baseline`: measures
    this process. `judging`: what judges the answers that the model writes; `functions`: those from Python, by name.
    """
    from featherback.data.launch import prepare_in_subprocess
    from featherback.runs.rehearsal import rehearsed_baseline

    source, form = Source.of(data), _form(model, adapter)
    loss = _objective(model, form, objective, judging)
    with tempfile.TemporaryDirectory(prefix="featherback-", dir=disk_folder()) as place:
        folder = Path(place)
        report = _prepare(folder, model, loss, source, seq_len, cut, examples, prepare_in_subprocess)
        tokens = loss.tokens(folder / TOKENS, () if form is None else form.outputs)
        here = baseline or (lambda: rehearsed_baseline(trains=False).settled(process="evaluating here"))
        plan = _plan(model, form, loss, tokens, seq_len, compute, memory, here, judging)
        if judging is not None:
            found = _judged(model, judging, adapter, tokens, plan, folder, source, functions or {})
        else:
            found = _measure(model, loss, adapter, tokens, seq_len, plan, folder, source.name)
        return replace(found, report=report)


def notes_about(found: Evaluation) -> list[str]:
    """Return sentences about the data that were left out, or not used."""
    report = found.report
    if report is None:
        return []
    notes = report.notes()
    if "label" in report.unused_keys and not found.measures:
        trained = argument("objective", "classify")
        notes.append(
            f"The labels in the data were not used: this is the loss of the texts. To measure a classifier, name an "
            f"adapter that was trained with {trained}."
        )
    return notes


def _form(model: Model, adapter: Adapter | str | os.PathLike[str] | None) -> Form | None:
    """Return the form of an adapter, or of the one at a path."""
    if adapter is None or isinstance(adapter, Adapter):
        return None if adapter is None else adapter.form
    return formats.form(model, os.fspath(adapter))


def _objective(model: Model, form: Form | None, name: str, judging: Judging | None) -> Recorded:
    """Return the objective to measure: that of an adapter with a trained head, or `name`.

    Raises FeatherbackError if `name` needs a trained head that the adapter does not have, or for embeddings.
    """
    if model.family.is_encoder or OBJECTIVES[name].pooling is not None:
        raise FeatherbackError(
            f"Embeddings are measured in training only: name held-out pairs there, with "
            f"{argument('eval_data', 'PAIRS')}."
        )
    outputs = () if form is None else form.outputs
    if outputs and judging is not None:
        raise FeatherbackError(
            f"The adapter ends in a trained head, so it writes no answers to judge. Remove {argument('reward')}, or "
            "name another adapter."
        )
    if outputs:
        own = head_objective(outputs)
        if name not in (NEXT_TOKEN_NAME, own):
            raise FeatherbackError(
                f"{argument('objective', name)} does not fit the adapter, which ends in a trained head. Remove it, or "
                f"use {argument('objective', own)}."
            )
        return Recorded(inner=OBJECTIVES[own]())
    objective = OBJECTIVES[judging_objective(name) if judging else name]
    if judging is not None:
        return Recorded(inner=objective(answer_tokens=judging.answer_tokens))  # type: ignore[call-arg]
    if objective.scores is not None:
        raise FeatherbackError(
            f"{argument('objective', name)} needs an adapter with a trained head: add {argument('adapter', 'PATH')}."
        )
    return Recorded(inner=NEXT_TOKEN if objective.data_form == PLAIN else objective())


def _prepare(
    folder: Path,
    model: Model,
    objective: Recorded,
    source: Source,
    seq_len: int | None,
    cut: bool,
    examples: Examples | None,
    encode: Encode,
) -> PrepareReport | None:
    """Write the token file of an evaluation. Returns its report; None for token lists."""
    shares = shares_prompts(model, seq_len or model.config.max_position_embeddings)
    source = replace(source, form=objective.data_form, shares_prompts=shares, room=objective.room)
    return tokens_in(folder, model, source, seq_len, cut, examples, encode)


def _batch_tokens(tokens: TokenFile, seq_len: int | None) -> int:
    """Return into how many tokens sequences are packed: those of the longest, or more."""
    return max(seq_len or SEQUENCE, tokens.max_length)


def forward_job(model: Model, form: Form | None, objective: Objective, tokens: int, compute: str, **others: Any) -> Job:
    """Return the planner's description of forward passes. `others`: further fields of a job."""
    from featherback.methods.memory.job import Job

    return Job.of(
        model,
        method=ForwardOnly,
        form=None if form is None else form.widest,
        objective=objective,
        tokens=tokens,
        sequence=tokens,
        compute=compute,
        threads=kernels.threads(),
        **others,
    )


def _bytes_to_read(model: Model, form: Form | None) -> int:
    """Return the bytes that are held while an adapter of this form is read into a file."""
    size = 0 if form is None else 4 * Layout(model.blocks, form).size
    return formats.LOADED * size + most_mapped(size) if size else 0


def _plan(
    model: Model,
    form: Form | None,
    objective: Recorded,
    tokens: TokenFile,
    seq_len: int | None,
    compute: str,
    memory: int | str | None,
    baseline: Callable[[], Baseline],
    judging: Judging | None = None,
) -> Plan:
    """Return the fastest plan within a budget. Raises BudgetError if none fits."""
    from featherback.methods.memory.planner import less_memory_advice
    from featherback.runs.choose import computes_only

    most = _batch_tokens(tokens, seq_len)
    computes = computes_only(compute, model, most)
    job = forward_job(
        model, form, objective, most, compute,
        files=not is_ram_disk(tokens.path), reading=_bytes_to_read(model, form),
    )  # fmt: skip
    if judging is not None:
        job = replace(job, writing=judging.writing(job, model, tokens.longest, len(tokens)))
    try:
        return computes.plan(job, memory, baseline())
    except BudgetError as error:
        change = less_memory_advice(adapter=False, batch=False)
        raise BudgetError("The evaluation", error.limit, error.needed, change) from None


def _measure(
    model: Model,
    objective: Recorded,
    adapter: Adapter | str | os.PathLike[str] | None,
    tokens: TokenFile,
    seq_len: int | None,
    plan: Plan,
    folder: Path,
    name: str,
) -> Evaluation:
    """Measure the loss. `folder`: for the plan's files. `name`: of the data, for errors."""
    if objective.needs_reference:
        start = None if adapter is None or isinstance(adapter, Adapter) else Path(adapter) / START
        _set_reference(model, objective, start, tokens, seq_len, plan, folder)
    if adapter is not None and not isinstance(adapter, Adapter):
        adapter = _loaded(model, adapter, plan, folder)
    with MapWatch([*model.maps, *tokens.maps()], model.close) as maps:
        method = methods.create_of(ForwardOnly, model, adapter, plan, folder, objective=objective)
        objective.take()  # forget the measures of the dry run that counted memory
        result = evaluate(method, tokens, _batch_tokens(tokens, seq_len), between=maps.check, objective=objective)
        method.close()
    if not math.isfinite(result.loss):
        check_weights(model)
        raise FeatherbackError(
            f"The loss on {name or TITLE} is not finite: the adapter does not fit the model, or its training diverged."
        )
    return replace(result, measures=objective.take(), counted=FORMS[objective.data_form].counted)


def _judged(
    model: Model, judging: Judging, adapter: Adapter | str | os.PathLike[str] | None, tokens: TokenFile, plan: Plan,
    folder: Path, source: Source, functions: Mapping[str, Function],
) -> Evaluation:  # fmt: skip
    """Measure the mean reward of the answers that the model writes."""
    assert isinstance(tokens, PromptFile)
    opened = adapter if adapter is None or isinstance(adapter, Adapter) else _loaded(model, adapter, plan, folder)
    with MapWatch([*model.maps, *tokens.maps()], model.close) as maps:
        right = source.columns.get("completion", "")
        return judging.measure(model, opened, tokens, plan, maps.check, functions, right)


def _loaded(model: Model, path: str | os.PathLike[str], plan: Plan, folder: Path) -> Adapter:
    return formats.load(model, os.fspath(path), folder / "adapter.f32" if plan.states == "file" else None)


def _set_reference(
    model: Model, objective: Objective, start: Path | None, tokens: TokenFile, seq_len: int | None, plan: Plan,
    folder: Path,
) -> None:  # fmt: skip
    """Give a token file of preferences the log-probabilities of its answers before training.

    `start`: the adapter that training began with, if there is one; otherwise the reference is the model alone.
    """
    from featherback.data.pairs import MarkedFile

    assert isinstance(tokens, MarkedFile)
    adapter = None if start is None or not start.is_dir() else _loaded(model, start, plan, folder)
    found = np.empty((len(tokens), 2))
    with MapWatch([*model.maps, *tokens.maps()], model.close) as maps:
        method = methods.create_of(ForwardOnly, model, adapter, plan, folder, objective=objective)
        for row in rows(tokens, Batching(_batch_tokens(tokens, seq_len)), shuffle=False):
            found[row] = answer_sums(method, tokens.batch(row))
            tokens.drop_pages()
            maps.check()
        method.close()
    if adapter is not None:
        adapter.close()
    tokens.reference = found
