"""What comes before training and before an evaluation: functions that `cli/launcher.py` calls in child processes.

The launcher imports this module, so everything large is imported in the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from featherback.core.children import hand_over
from featherback.core.sizes import MB, whole_megabytes
from featherback.core.terminal import open_streams
from featherback.runs.account import LEAST, Account
from featherback.runs.requests import (
    ComparisonRequest,
    EvaluationRequest,
    PreparedEvaluation,
    PreparedRun,
    Refusal,
    TrainingRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from featherback.data.preview import Preview
    from featherback.data.report import PrepareReport
    from featherback.data.source import Source
    from featherback.runs.evaluation import Evaluation
    from featherback.runs.examples import Encode
    from featherback.runs.run_directory import RunDirectory
    from featherback.runs.tools import OpenedModel, Tools

    Request = TrainingRequest | EvaluationRequest
    Size = tuple[int, int]
    """The footprint and the resident memory of a process, in bytes."""

_OF_PARENT = 2 * MB
"""Bytes of files that the first process has loaded at its start, and that a child of it need not load again."""


def measure_size(trains: bool, log_to: Sequence[str]) -> Size:
    """Load what the last process of a command loads, and return the memory of this one.

    It must have loaded that itself: pages of files that a parent has loaded are not counted for its child.
    `log_to`: the programs that a run is logged to.
    """
    if trains:
        from featherback.worker import rehearsed

        here = rehearsed(log_to).settled(process="worker", log_to=sorted(log_to))
    else:
        import featherback.cli.measured  # noqa: F401 - the code of that process
        from featherback.runs.rehearsal import rehearsed_baseline

        here = rehearsed_baseline(trains=False).settled(process="evaluation", log_to=[])
    return here.footprint, here.rss + _OF_PARENT


def set_up(
    asked: list[str] | Request, size: Size | None, account: Account
) -> int | Request | ComparisonRequest | PreparedRun | PreparedEvaluation | Refusal:
    """Read a command line, turn the data into tokens, and choose a plan.

    `asked`: the arguments, or the request that they meant. Returns an exit status if nothing else is to be done, the
    request if the plan needs another `size` or if several are compared, and a Refusal if the budget is too small.
    """
    request = _request(asked) if isinstance(asked, list) else asked
    if isinstance(request, (int, ComparisonRequest)):
        return request
    if isinstance(asked, list) and (request.log_to or (size is None and not request.keeps_plan)):
        return request
    account.limit_to(request.memory)
    if isinstance(request, TrainingRequest):
        outlast_terminal(request)
        return _run(request, size, account)
    return _evaluation(request, size, account)


def set_up_loss(request: EvaluationRequest, size: Size | None, account: Account) -> Any:
    """Do what `set_up` does, but return the message as text if the data have nothing whose loss could be measured."""
    from featherback.engine.budget import BudgetError
    from featherback.errors import FeatherbackError

    try:
        return set_up(request, size, account)
    except BudgetError:
        raise
    except FeatherbackError as error:
        return str(error)


def measured(prepared: PreparedEvaluation) -> Evaluation:
    """Measure what was prepared."""
    from featherback.runs.evaluating import measured as measure

    return measure(prepared)


def _request(arguments: list[str]) -> Request | ComparisonRequest | int:
    """Return what the command line asks for, or an exit status."""
    from featherback.cli.app import run

    return run(arguments)


def outlast_terminal(request: TrainingRequest) -> None:
    """Let a command that trains go on if its output fails: hours of training must not depend on an open terminal."""
    if not request.dry_run:
        open_streams(lasting=True)


def _run(request: TrainingRequest, size: Size | None, account: Account) -> PreparedRun | Refusal:
    """Make or reopen the run directory, and describe the run, unless a pass must come before that.

    Returns a Refusal if a new run does not fit in the budget.
    """
    from featherback.engine.budget import BudgetError
    from featherback.runs.passes import COSINE, missing_passes

    encode = _Encoding(account, sample=not request.resume)
    tools = _tools(size, encode)
    try:
        run = _opened(request, tools)
    except BudgetError as error:
        if request.resume:
            raise
        return Refusal.of(error, request, size, account, account.is_prepared and not request.options["teacher"])
    account.add_own()
    if run.lock_descriptor is not None:
        hand_over(run.lock_descriptor)
    passes = tuple(name for name in missing_passes(run) if name == COSINE or not request.dry_run)
    if COSINE not in passes:
        _describe(run, tools.open, request, account, encode.preview)
    return PreparedRun(request, str(run.path), account, passes)


def _evaluation(request: EvaluationRequest, size: Size | None, account: Account) -> PreparedEvaluation | Refusal:
    """Write the data as tokens to a temporary folder, and choose a plan, or return a Refusal."""
    from shutil import rmtree

    from featherback.data.source import STDIN
    from featherback.engine.budget import BudgetError
    from featherback.runs.evaluating import prepare_evaluation

    try:
        made = prepare_evaluation(request, _tools(size, _Encoding(account)))
    except BudgetError as error:  # standard input can be read only once
        is_complete = account.is_prepared or STDIN in request.data["paths"]
        return Refusal.of(error, request, size, account, is_complete)
    account.add_own()
    if account.is_over:
        rmtree(made.folder, ignore_errors=True)
        raise BudgetError("The evaluation", account.limit or 0, max(account.needed, made.least_plan))
    return made


def _opened(request: TrainingRequest, tools: Tools) -> RunDirectory:
    """Make or reopen the run directory."""
    from featherback.core.decode import decode
    from featherback.methods.memory.plan import Plan
    from featherback.runs.config import TrainConfig
    from featherback.runs.new_run import new_run
    from featherback.runs.resume import reopen_run

    if request.resume:
        return reopen_run(request.options, tools)
    plan = None if request.plan is None else decode(Plan, request.plan, "the plan")
    return new_run(TrainConfig(**request.options), tools, plan)


def refuse(refusal: Refusal) -> None:
    """Raise the error of a command that does not fit in its budget, with an amount that is enough for all of it.

    For that, the data are prepared once more, with as little memory as possible, unless all is known.
    """
    from shutil import rmtree

    request, account = refusal.request, refusal.account
    if not refusal.is_complete:
        account.limit = None
        tools = _tools(refusal.size, _Encoding(account))
        if isinstance(request, TrainingRequest):
            run = _opened(request._replace(options={**request.options, "memory": LEAST}, plan=None), tools)
            account.add(_least_plan(run))
            run.delete()
        else:
            from featherback.runs.evaluating import prepare_evaluation

            made = prepare_evaluation(request._replace(memory=LEAST), tools)
            account.add(made.least_plan)
            rmtree(made.folder, ignore_errors=True)
        account.add_own()
    raise refusal.error()


def _tools(size: Size | None, encode: Encode) -> Tools:
    """Return the tools of a process in which models are opened and data are encoded.

    `size`: the memory of the training process; None to measure it only if a plan is made after all.
    """
    from featherback.engine.host.machine import Baseline
    from featherback.runs.tools import OpenedModel, Tools
    from featherback.runs.worker_process import worker_baseline

    return Tools(OpenedModel(), lambda: worker_baseline() if size is None else Baseline(*size), encode)


class _Encoding:
    """Turns data into tokens in this process, within the command's budget.

    `sample`: whether to keep the first example for the user in `preview`. One process renders templates for both.
    """

    def __init__(self, account: Account, sample: bool = False) -> None:
        self.account, self._sample = account, sample
        self.preview: Preview | None = None

    def __call__(
        self,
        model: str,
        data: Source,
        out: Path,
        seq_len: int,
        progress: Callable[[dict[str, Any]], None],
        enough: int | None,
    ) -> PrepareReport:
        from featherback.data.prepare import prepare
        from featherback.data.preview import preview
        from featherback.data.templates.renderer import Renderer
        from featherback.runs.memory_watch import MemoryWatch

        account, renderer = self.account, Renderer()
        room = MemoryWatch(data.name, account.limit, account.root)
        made = prepare(model, data, out, seq_len, progress, enough, room, renderer)
        account.prepares(4 * made.tokens)
        account.add_used(room.used)
        if self._sample:
            (self.preview,) = preview(model, data, seq_len, renderer=renderer)
            self._sample = False
        return made


def _least_plan(run: RunDirectory) -> int:
    """The least budget in bytes in which training fits, and before it the teacher's pass."""
    plans = [run.plan, *([run.record.teacher.plan] if run.record.teacher else [])]
    return max(plan.least_mb or 0 for plan in plans) * MB


def run_pass(name: str, prepared: PreparedRun, lock: int | None) -> None:
    """Run a pass before training. The run is described after the pass that measures its gradient."""
    from featherback.core.terminal import print_error
    from featherback.runs.passes import COSINE, PASSES
    from featherback.runs.run_directory import RunDirectory
    from featherback.runs.tools import OpenedModel

    run, open_model = RunDirectory.take(prepared.path, lock), OpenedModel()
    PASSES[name].compute(run, open_model, print_error)
    if name == COSINE:
        _describe(run, open_model, prepared.request, prepared.account, None)


def _describe(
    run: RunDirectory, open_model: OpenedModel, request: TrainingRequest, account: Account, sample: Preview | None
) -> None:
    """Describe a run on standard output, once its budget is known to be enough. After a dry run, delete it."""
    from json import dumps

    from featherback.cli.preamble import print_preamble
    from featherback.core.decode import encode
    from featherback.core.terminal import say
    from featherback.runs.stream import planned_steps, stream_of
    from featherback.runs.token_files import examples_of

    if run.is_new:
        _close_account(run, account)
    try:
        if not request.json:
            print_preamble(run, open_model(run.config.model, run.config.quantize), sample)
        elif request.dry_run:
            steps = planned_steps(run.config, stream_of(run.config, examples_of(run, "train", complete=False)))
            record = encode(run.record)
            say(dumps({name: record[name] for name in ("configuration", "data", "plan")} | {"steps": steps}))
    except BaseException:
        if not request.dry_run:
            run.update(status="interrupted")
        raise
    finally:
        if request.dry_run:
            run.delete()
    if request.dry_run and not request.json:
        say("dry run: nothing was trained")


def _close_account(run: RunDirectory, account: Account) -> None:
    """Record the least budget that is enough for the whole command. With `--memory least`, it becomes the run's.

    Raises BudgetError, after the run is deleted, if the user's budget is smaller than what was used.
    """
    from dataclasses import replace

    from featherback.engine.budget import BudgetError

    config, least = run.config, _least_plan(run)
    if account.is_over:
        run.delete()
        raise BudgetError("The preparation of the data", account.limit or 0, max(account.needed, least))
    needed = whole_megabytes(max(account.needed, least))
    if account.limit is not None:
        needed = min(needed, account.limit)  # which has just been enough
    run.update(plan=run.plan.within_command(needed))
    # With "max", the user asked for the most that is useful to the plan.
    if account.least or (account.limit is None and isinstance(config.memory, int) and config.memory < needed):
        run.update(configuration=replace(config, memory=needed))
