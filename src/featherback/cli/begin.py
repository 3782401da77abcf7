"""`python -m featherback.cli.begin '{"stage": "check", ...}'`: a command after its options have been read.

It runs a list of stages (`runs/stages.py`) of `featherback train` or `evaluate`. Some stages start with a fresh
program: this process then replaces itself by it, which frees all memory. The programs share one account of the memory
that the command needs. If the budget is too small, the stages run once more with the least memory, and the error then
names a budget that all stages accept.
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
from featherback.core.naming import use_flags
from featherback.core.sizes import whole_megabytes
from featherback.core.terminal import DEBUG, open_streams
from featherback.engine.host.interrupt import INTERRUPTED, ended_by_signals, exit_with
from featherback.runs.account import LEAST, Account, MemoryWatch
from featherback.runs.stages import COMMANDS, PreparedRun, StageTools
from featherback.runs.worker_process import exec_module, inherited, worker_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from featherback.data.report import PrepareReport
    from featherback.data.source import Source
    from featherback.engine.host.machine import Baseline
    from featherback.runs.run_directory import RunDirectory
    from featherback.runs.stages import EvaluationOptions, StageValue

    Progress = Callable[[dict[str, Any]], None]


def go_on(options: dict[str, Any], resume: bool, plan: dict[str, Any] | None, **flags: bool) -> NoReturn:
    """Replace this process by one that starts or resumes a run with these options, and then trains.

    `options`: all options of a TrainConfig, or with `resume` those that the user gave. `plan`: a memory plan; None to
    make one. `flags`: "json", "profile" and "dry_run", as the user set them.
    """
    account, chosen = _opened_account(options.get("memory")), tuple(name for name, on in flags.items() if on)
    log_to = tuple(options.get("log_to") or ())
    if resume:
        Program("check_again", {"options": options}, account, chosen, log_to).become()
    Program("check", {"config": options, "plan": plan}, account, chosen, log_to).become()


def go_on_evaluating(options: EvaluationOptions, json: bool) -> NoReturn:
    """Replace this process by one that evaluates. `json`: as the user set the flag."""
    account = _opened_account(options.memory)
    Program("prepare_evaluation", options.to_json(), account, ("json",) if json else (), ()).become()


def _opened_account(memory: int | str | None) -> Account:
    """Return the account of a command with this --memory, with the memory of its first program."""
    account = Account(memory if isinstance(memory, int) else None, least=memory == LEAST)
    account.add_own()
    return account


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
        stages = next(each for each in COMMANDS if self.stage in [stage.name for stage in each])
        first = [stage.name for stage in stages].index(self.stage)
        probed = stages[-1].process
        measured = worker_baseline(self.log_to, probed) if stages[first].measures(self.value) else None

        def baseline() -> Baseline:
            return measured or worker_baseline(self.log_to, probed)

        from featherback import models  # after that
        from featherback.engine.budget import BudgetError

        account = self.account
        value: Any = stages[first].takes.from_json(self.value)
        means = StageTools(models.load, baseline, partial(_prepare, account), flags=self.flags)
        try:
            for stage in stages[first:]:
                if stage.name != self.stage and stage.begins_with(value):
                    replace(self, stage=stage.name, value=value.to_json()).become()
                if stage.closes_account:
                    value = _close_account(value, account)
                try:
                    made = stage(value, means)
                except BudgetError as error:
                    self._search_from(value)
                    account.add(error.needed)
                    account.add_own()
                    raise BudgetError(error.what, error.limit, account.needed, error.advice) from None
                if account.searches or not stage.follows_plan:
                    account.add_own()
                if made is None:
                    return
                value, before = made, value
                if account.is_over and before.with_least_memory() is not None:
                    value.abandon()
                    self._search_from(before)
        except BaseException:
            value.abandon()
            raise

    def _search_from(self, value: StageValue) -> None:
        """Run the stages again with the least memory, because the budget is too small, unless that is what runs now.

        Returns if the command cannot start over.
        """
        again = value.with_least_memory()
        if again is not None and not self.account.searches:
            self.account.refused = True
            replace(self, stage=again[0], value=again[1].to_json()).become()


def show(prepared: PreparedRun, means: StageTools) -> PreparedRun | None:
    """Print the data and the plan. With --dry-run, remove all files and return None."""
    from featherback.cli.preamble import print_preamble, training_tokens
    from featherback.core.terminal import say
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
        run.delete()
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


def _close_account(value: Any, account: Account) -> Any:
    """Check the memory account of a command whose last stages come now, and return the value with the result.

    The least budget that is enough is recorded. If it was searched for, it becomes the run's budget. Raises
    BudgetError, after all files are removed, if the user's budget is smaller or this program has used more.
    """
    from featherback.engine.budget import BudgetError

    try:
        if account.searches:
            account.add(value.least_plan)
        elif value.is_new:
            account.check_own()
        if account.refused:
            raise BudgetError(value.what, account.limit or 0, account.needed, value.less_memory_advice)
    except BudgetError:
        value.discard()
        raise
    needed = whole_megabytes(max(account.needed, value.least_plan))
    if account.limit is not None and not account.searches:
        needed = min(needed, account.limit)  # which has just been enough
    return value.settled(needed, needed if account.searches else None)


def _prepare(
    account: Account, model: str, data: Source, out: Path, seq_len: int, progress: Progress, enough: int | None
) -> PrepareReport:
    """Prepare the data in this process, within the command's budget."""
    from featherback.data.prepare import prepare

    room = MemoryWatch(data.name, None if account.searches else account.limit)
    made = prepare(model, data, out, seq_len, progress, enough, room)
    account.prepares(4 * made.tokens)
    account.add_used(room.used)
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
    use_flags()
    open_streams(lasting=True)  # as in the training process
    exit_with(lambda: main(sys.argv[1:]))
