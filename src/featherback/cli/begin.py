"""`python -m featherback.cli.begin '{"stage": "check", ...}'`: what `featherback train` is once its options are read.

It goes through a list of stages (`runs/stages.py`). If a stage begins with a program of its own, this program
becomes that one, and what it held is gone. The programs share one account of what the command needs. If the budget
turns out to be too little, the list is gone through once more with the least memory, and the command then refuses with
an amount that all stages accept.
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
from featherback.runs.account import LEAST, Account, Room
from featherback.runs.stages import NEW, RESUMED, Asked, Means, Prepared
from featherback.runs.worker_process import become, inherited, worker_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from featherback.data.report import PrepareReport
    from featherback.data.source import Source
    from featherback.engine.host.machine import Baseline
    from featherback.runs.run_directory import RunDirectory

    Progress = Callable[[dict[str, Any]], None]


def go_on(options: dict[str, Any], resume: bool, plan: dict[str, Any] | None, **flags: bool) -> NoReturn:
    """Replace this process by the one that begins a run with these options, or resumes one, and then trains.

    `options`: a TrainConfig's, or to resume those that were named. `plan`: None, to have one made. `flags`: "json",
    "profile" and "dry_run", as the user set them.
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
    """A program that goes on with a `stage`, given a `value` as JSON. `flags`: of the command, those that are set."""

    stage: str
    value: dict[str, Any]
    account: Account
    flags: tuple[str, ...]
    log_to: tuple[str, ...]

    def become(self) -> NoReturn:
        """Take the place of the program that runs now."""
        become("featherback.cli.begin", json.dumps(asdict(self)))

    def run(self) -> None:
        """Go through the stages, up to the next one with a program of its own."""
        stages = next(each for each in (NEW, RESUMED) if self.stage in [stage.name for stage in each])
        first = [stage.name for stage in stages].index(self.stage)
        measured = worker_baseline(self.log_to) if stages[first].measures(self.value) else None

        def baseline() -> Baseline:
            return measured or worker_baseline(self.log_to)

        from featherback import models  # after that
        from featherback.engine.budget import BudgetError

        account = self.account
        value: Any = stages[first].takes.from_json(self.value)
        means = Means(models.load, baseline, partial(_prepare, account), flags=self.flags)
        for stage in stages[first:]:
            if stage.name != self.stage and stage.begins_with(value):
                replace(self, stage=stage.name, value=value.to_json()).become()
            if stage.name == "show":
                _conclude(value, account)
            try:
                made = stage(value, means)
            except BudgetError as error:
                if account.searches or not isinstance(value, Asked):
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

    def _search(self, asked: Asked) -> NoReturn:
        """Look for the least that is enough, the budget being too little: all but the check once more."""
        self.account.refused = True
        least = Asked(replace(asked.config, memory=LEAST))
        replace(self, stage="plan", value=least.to_json()).become()


def show(prepared: Prepared, means: Means) -> Prepared | None:
    """Say what is about to be done. With --dry-run nothing is left behind, and there is nothing to go on with."""
    from featherback.cli.preamble import print_preamble
    from featherback.core.terminal import say
    from featherback.runs.launch import undo

    run = prepared.run
    if "dry_run" not in means.flags:
        if "json" not in means.flags:
            with _interruptible(run):
                print_preamble(run, sample=prepared.is_new)
        return prepared
    try:
        if "json" in means.flags:
            say(json.dumps({name: run.record[name] for name in ("configuration", "data", "plan")}))
        else:
            print_preamble(run)
            say("nothing was trained: this was a dry run")
    finally:
        undo(run, prepared.existed)
    return None


def train(prepared: Prepared, means: Means) -> NoReturn:
    """Become the process that trains."""
    from featherback.runs.launch import become_worker

    with _interruptible(prepared.run):
        sys.stdout.flush()
        sys.stderr.flush()
        debug = ("debug",) if DEBUG in os.environ else ()
        become_worker(prepared.run, *(f"--{flag}" for flag in (*means.flags, *debug)))


@contextmanager
def _interruptible(run: RunDirectory) -> Iterator[None]:
    """The run says so if it does not come to be trained."""
    try:
        yield
    except BaseException:
        run.update(status="interrupted")
        raise


def _conclude(prepared: Prepared, account: Account) -> None:
    """Close the account of a run that can be trained: the least that is enough, if it was searched, becomes its budget.

    BudgetError, and nothing is left behind, if less was named, or this program has held more than the budget.
    """
    from featherback.engine.budget import BudgetError
    from featherback.runs.launch import undo

    run, config = prepared.run, prepared.run.config
    try:
        if account.searches:
            account.add((run.plan.least_mb or 0) * MB)
        elif prepared.is_new:
            account.check_own()
        if account.refused:
            from featherback.methods.memory.planner import smaller  # what only plans is not there at other times

            change = smaller(config.whole is None, config.batching.full > config.sequence)
            raise BudgetError("Training", account.limit or 0, account.needed, change)
    except BudgetError:
        undo(run, prepared.existed)
        raise
    if account.searches:
        run.update(configuration=replace(config, memory=whole_megabytes(account.needed)).to_json())


def _prepare(
    account: Account, model: str, data: Source, out: Path, seq_len: int, progress: Progress, enough: int | None
) -> PrepareReport:
    """Prepare the data here, within what the command may take."""
    from featherback.data.prepare import prepare

    room = Room(data.name, None if account.searches else account.limit)
    made = prepare(model, data, out, seq_len, progress, enough, room)
    account.add(room.needed)
    return made


def main(arguments: list[str]) -> int:
    """Go on towards the process that trains, and become it; the exit status if that does not come about."""
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
    open_streams(lasting=True)  # as the training that follows
    exit_with(lambda: main(sys.argv[1:]))
