"""`python -m featherback.cli.begin '{"stage": "check", ...}'`: `featherback train` after its options have been read.

It runs a list of stages (`runs/stages.py`). Some stages start with a fresh program: this process then replaces itself
by it, which frees all memory. The programs share one account of the memory that the command needs. If the budget is too
small, the stages run once more with the least memory, and the error then names a budget that all stages accept.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from featherback.core.failure import report
from featherback.core.sizes import MB, whole_megabytes
from featherback.core.terminal import DEBUG, open_streams
from featherback.engine.host.interrupt import INTERRUPTED, ended_by_signals, exit_with
from featherback.runs.account import LEAST, Account, MemoryWatch
from featherback.runs.stages import NEW, RESUMED, NewRunOptions, PreparedRun, StageTools
from featherback.runs.worker_process import exec_module, inherited, worker_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from featherback.data.report import PrepareReport
    from featherback.data.source import Source
    from featherback.engine.host.machine import Baseline
    from featherback.runs.run_directory import RunDirectory

    Progress = Callable[[dict[str, Any]], None]


def go_on(options: dict[str, Any], resume: bool, plan: dict[str, Any] | None, **flags: bool) -> NoReturn:
    """Replace this process by one that starts or resumes a run with these options, and then trains.

    `options`: all options of a TrainConfig, or with `resume` those that the user gave. `plan`: a memory plan; None to
    make one. `flags`: "json", "profile" and "dry_run", as the user set them.
    """
    memory, chosen = options.get("memory"), tuple(name for name, on in flags.items() if on)
    account = Account(memory if isinstance(memory, int) else None, least=memory == LEAST)
    account.add_own()
    log_to = tuple(options.get("log_to") or ())
    if resume:
        Program("check_again", {"options": options}, account, chosen, log_to).become()
    Program("check", {"config": options, "plan": plan}, account, chosen, log_to).become()


@dataclass(frozen=True)
class Program:
    """A program that continues with `stage` and its input `value`, as JSON. `flags`: the flags that are set."""

    stage: str
    value: dict[str, Any]
    account: Account
    flags: tuple[str, ...]
    log_to: tuple[str, ...]

    def become(self) -> NoReturn:
        """Replace the current process by this program."""
        exec_module("featherback.cli.begin", json.dumps(asdict(self)))

    def run(self) -> None:
        """Run the stages, up to the next one that starts with a fresh program."""
        stages = next(each for each in (NEW, RESUMED) if self.stage in [stage.name for stage in each])
        first = [stage.name for stage in stages].index(self.stage)
        measured = worker_baseline(self.log_to) if stages[first].measures(self.value) else None

        def baseline() -> Baseline:
            return measured or worker_baseline(self.log_to)

        from featherback import models  # after that
        from featherback.engine.budget import BudgetError

        account = self.account
        value: Any = stages[first].takes.from_json(self.value)
        means = StageTools(models.load, baseline, partial(_prepare, account), flags=self.flags)
        for stage in stages[first:]:
            if stage.name != self.stage and stage.begins_with(value):
                replace(self, stage=stage.name, value=value.to_json()).become()
            if stage.name == "show":
                _close_account(value, account)
            try:
                made = stage(value, means)
            except BudgetError as error:
                if account.searches or not isinstance(value, NewRunOptions):
                    account.add(error.needed)
                    account.add_own()
                    raise BudgetError(error.what, error.limit, account.needed, error.advice) from None
                self._search(value)
            account.add_own()
            if stage.name == "plan" and account.is_over:
                self._search(value)
            if made is None:
                return
            value = made

    def _search(self, asked: NewRunOptions) -> NoReturn:
        """Run all stages but the check again with the least memory, because the budget is too small."""
        self.account.refused = True
        least = NewRunOptions(replace(asked.config, memory=LEAST))
        replace(self, stage="plan", value=least.to_json()).become()


def show(prepared: PreparedRun, means: StageTools) -> PreparedRun | None:
    """Print the data and the plan. With --dry-run, remove all files and return None."""
    from featherback.cli.preamble import print_preamble, training_tokens
    from featherback.core.terminal import say
    from featherback.runs.launch import delete_prepared
    from featherback.runs.stream import planned_steps, stream_of

    run = prepared.run
    if "dry_run" not in means.flags:
        if "json" not in means.flags:
            with _interruptible(run):
                print_preamble(run, sample=prepared.is_new)
        return prepared
    try:
        if "json" in means.flags:
            steps = planned_steps(run.config, stream_of(run.config, training_tokens(run)))
            say(json.dumps({name: run.record[name] for name in ("configuration", "data", "plan")} | {"steps": steps}))
        else:
            print_preamble(run)
            say("dry run: nothing was trained")
    finally:
        delete_prepared(run, prepared.existed)
    return None


def train(prepared: PreparedRun, means: StageTools) -> NoReturn:
    """Replace this process by the one that trains."""
    from featherback.runs.launch import exec_worker

    with _interruptible(prepared.run):
        debug = ("debug",) if DEBUG in os.environ else ()
        exec_worker(prepared.run, *(f"--{flag}" for flag in (*means.flags, *debug)))


@contextmanager
def _interruptible(run: RunDirectory) -> Iterator[None]:
    """Record the run as interrupted if it ends in here."""
    try:
        yield
    except BaseException:
        run.update(status="interrupted")
        raise


def _close_account(prepared: PreparedRun, account: Account) -> None:
    """Check the memory account of a run that is ready to train.

    If the least memory was searched for, it becomes the run's budget. Raises BudgetError, after all files are removed,
    if the user's budget is smaller or this program has used more.
    """
    from featherback.engine.budget import BudgetError
    from featherback.runs.launch import delete_prepared

    run, config = prepared.run, prepared.run.config
    try:
        if account.searches:
            account.add((run.plan.least_mb or 0) * MB)
            account.add((run.record.get("teacher", {}).get("plan", {}).get("least_mb") or 0) * MB)
        elif prepared.is_new:
            account.check_own()
        if account.refused:
            from featherback.methods.memory.planner import less_memory_advice  # only when needed, to save memory

            change = less_memory_advice(config.whole is None, config.batching.full > config.sequence)
            raise BudgetError("Training", account.limit or 0, account.needed, change)
    except BudgetError:
        delete_prepared(run, prepared.existed)
        raise
    if account.searches:
        run.update(configuration=replace(config, memory=whole_megabytes(account.needed)).to_json())


def _prepare(
    account: Account, model: str, data: Source, out: Path, seq_len: int, progress: Progress, enough: int | None
) -> PrepareReport:
    """Prepare the data in this process, within the command's budget."""
    from featherback.data.prepare import prepare

    room = MemoryWatch(data.name, None if account.searches else account.limit)
    made = prepare(model, data, out, seq_len, progress, enough, room)
    account.add(room.needed)
    return made


def main(arguments: list[str]) -> int:
    """Run the remaining stages, then replace this process by the one that trains. Return an exit status on failure."""
    try:
        with ended_by_signals(inherited(arguments, "signals")):
            values = json.loads(arguments[0])
            Program(**{**values, "account": Account(**values["account"])}).run()
            return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return report(error, DEBUG in os.environ)


if __name__ == "__main__":
    open_streams(lasting=True)  # as in the training process
    exit_with(lambda: main(sys.argv[1:]))
