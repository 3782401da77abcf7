"""`python -m featherback.cli.begin '{"options": {...}, ...}'`: what `featherback train` is once its options are read.

Between the command line and the training process there are other programs, each in the place of the one before, without
what that held: one plans, another prepares the data, and says what is about to be done.
"""

from __future__ import annotations

import json as json_format
import math
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from featherback.failure import report
from featherback.host.interrupt import INTERRUPTED, ended_by_signals, exit_with
from featherback.terminal import DEBUG, open_streams
from featherback.training.account import MB, Account
from featherback.training.worker_process import become, inherited, worker_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from featherback.data.report import PrepareReport
    from featherback.data.source import Source
    from featherback.training.room import Room
    from featherback.training.run_directory import RunDirectory

LEAST = "least"
"""--memory's word for the least that is enough, as `memory.plan` knows it."""


def go_on(options: dict[str, Any], resume: bool, plan: dict[str, Any] | None, **flags: bool) -> NoReturn:
    """Replace this process by the one that begins a run with these options, or resumes one, and then trains.

    `options`: a TrainConfig's, or to resume those that were named. `plan`: None, to have one made. `flags`: "json",
    "profile" and "dry_run", as the user set them.
    """
    memory = options.get("memory")
    account = Account(memory if isinstance(memory, int) else None, least=memory == LEAST)
    account.add_own()
    _go_on(account, options=options, resume=resume, flags=flags, plan=plan, checked=False)


def _go_on(account: Account, **asked: Any) -> NoReturn:
    become("featherback.cli.begin", json_format.dumps({**asked, "account": account.to_json()}))


def main(arguments: list[str]) -> int:
    """Begin the run and become the process that trains it; the exit status if that does not come about."""
    debug = DEBUG in os.environ
    try:
        with ended_by_signals(inherited(arguments, "signals")):
            _begin(**json_format.loads(arguments[0]), debug=debug)
            return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return report(error, debug)


def _begin(
    options: dict[str, Any],
    resume: bool,
    flags: dict[str, bool],
    debug: bool,
    account: dict[str, Any],
    plan: dict[str, Any] | None = None,
    prepared: dict[str, Any] | None = None,
    checked: bool = True,
) -> None:
    """One step on the way to the training process, each a program of its own: check the options; plan; prepare the
    data; plan again, if they need longer sequences than that was for; show what is about to be done, and train.

    `prepared`: the run that has its data, as `_hand_on` tells of it.
    """
    counted = Account(**account)
    asked: dict[str, Any] = {"options": options, "resume": False, "flags": flags}
    if not checked:
        _check(options, resume)
        counted.add_own()
        _go_on(counted, options=options, resume=resume, flags=flags, plan=plan)
    if prepared is not None:
        run = _taken(counted, **prepared, log_to=options.get("log_to") or ())
        existed = prepared["existed"]
    elif resume:
        run, existed = _resumed(options, counted), True
    elif plan is None:
        _go_on(counted, **asked, plan=_planned(options, counted))
    else:
        existed = os.path.exists(options["out"])
        run = _prepared(asked, plan, counted)
        if run.config.seq_len is None:
            _hand_on(run, existed, counted, settle=True, **asked)
    if prepared is not None and prepared["settle"]:
        _hand_on(run, existed, counted, settle=False, **asked)
    if counted.searches:
        _conclude(run, existed, counted)
    elif not resume:
        _check_held(run, existed, counted)
    if flags.pop("dry_run", False):
        _show(run, flags["json"], existed)
        return
    from featherback.training.launch import become_worker

    try:
        if not flags["json"]:
            from featherback.cli.preamble import print_preamble

            print_preamble(run, sample=not resume)
        sys.stdout.flush()
        sys.stderr.flush()
        wanted = {**flags, "debug": debug}
        become_worker(run, *(f"--{flag}" for flag, on in wanted.items() if on))
    except BaseException:
        run.update(status="interrupted")
        raise


def _hand_on(run: RunDirectory, existed: bool, account: Account, settle: bool, **asked: Any) -> NoReturn:
    """Let another program go on with a run that has its data, and `settle` its sequence length first, or show it.

    `existed`: whether its directory did before.
    """
    _go_on(
        account,
        prepared={"path": str(run.path), "lock": run.pass_lock(), "existed": existed, "settle": settle},
        **asked,
    )


def _taken(
    account: Account, path: str, lock: int | None, existed: bool, settle: bool, log_to: Iterable[str]
) -> RunDirectory:
    baseline = worker_baseline(log_to) if settle else None  # before this process has grown
    from featherback.training.run_directory import RunDirectory

    run = RunDirectory.take(path, lock)
    if baseline is not None:
        from featherback import models
        from featherback.training import held_out, lengths
        from featherback.training.launch import undo

        try:
            opened = models.load(run.config.model, run.config.quantize)
            lengths.settle(run, opened, lambda: baseline)
            held_out.hold_out(run)
            account.add_own()
        except BaseException:
            undo(run, existed)
            raise
    return run


def _check_held(run: RunDirectory, existed: bool, account: Account) -> None:
    """BudgetError, and nothing is left behind, if this program has held more than the budget."""
    from featherback.memory.budget import BudgetError
    from featherback.training.launch import undo

    try:
        account.check_own()
    except BudgetError:
        undo(run, existed)
        raise


def _conclude(run: RunDirectory, existed: bool, account: Account) -> None:
    """The least that is enough is known: it becomes the run's budget; or BudgetError, if less was named."""
    from dataclasses import replace

    from featherback.memory.budget import BudgetError, whole_megabytes
    from featherback.memory.planner import smaller
    from featherback.training.launch import undo

    config = run.config
    account.add((run.plan.least_mb or 0) * MB)
    if account.refused:
        undo(run, existed)
        change = smaller(config.whole is None, config.batching.full > config.sequence)
        raise BudgetError("Training", account.limit or 0, account.needed, change)
    run.update(configuration=replace(config, memory=whole_megabytes(account.needed)).to_json())


def _show(run: RunDirectory, json: bool, existed: bool) -> None:
    """Say what would be done, and leave nothing behind."""
    from featherback.cli.preamble import print_preamble
    from featherback.terminal import say
    from featherback.training.launch import undo

    try:
        if json:
            known = ("configuration", "data", "plan")
            say(json_format.dumps({name: run.record[name] for name in known}))
        else:
            print_preamble(run)
            say("nothing was trained: this was a dry run")
    finally:
        undo(run, existed)


def _check(options: dict[str, Any], resume: bool) -> None:
    """FeatherbackError if options or paths are wrong: before anything is measured."""
    from featherback.training.config import TrainConfig
    from featherback.training.launch import check_resumed, check_run

    if resume:
        check_resumed(options)
    else:
        check_run(TrainConfig.from_json(options))


def _planned(options: dict[str, Any], account: Account) -> dict[str, Any]:
    """The plan. If the budget is too little, that for the least memory, which `options` then ask for."""
    if log_to := options.get("log_to") or ():
        from featherback.training.loggers import check_installed

        check_installed(log_to)
    baseline = worker_baseline(log_to)  # before this process has grown
    from featherback.memory.budget import BudgetError
    from featherback.training.config import TrainConfig
    from featherback.training.launch import plan_run

    try:
        plan = plan_run(TrainConfig.from_json(options), lambda: baseline)
        account.add_own()
        fits = not account.is_over
    except BudgetError:
        fits = False
    if not fits:
        account.refused = True
        options["memory"] = LEAST
        plan = plan_run(TrainConfig.from_json(options), lambda: baseline)
    return plan


def _prepared(asked: dict[str, Any], plan: dict[str, Any], account: Account) -> RunDirectory:
    """The run, with its data. If the budget is too little for that, all begins anew with the least memory."""
    from featherback.data.source import STDIN
    from featherback.memory.budget import BudgetError
    from featherback.training.config import TrainConfig
    from featherback.training.launch import prepare_run

    config = TrainConfig.from_json(asked["options"])
    rooms: list[Room] = []
    limit = None if account.searches else account.limit
    try:
        run = prepare_run(config, prepare=partial(_prepare, limit, rooms), plan=plan)
    except BudgetError:
        if STDIN in (*(config.data or ()), *(config.eval_data or ())):  # it can be read but once
            raise
        account.refused = True
        _go_on(account, **{**asked, "options": {**asked["options"], "memory": LEAST}}, plan=None)
    for room in rooms:
        account.add(room.needed)
    account.add_own()
    return run


def _resumed(named: dict[str, Any], account: Account) -> RunDirectory:
    log_to = named.get("log_to")
    # Else the plan stays, most likely.
    baseline = worker_baseline(log_to or ()) if named.keys() - {"model", "out"} else None
    from featherback.memory.budget import BudgetError
    from featherback.training.launch import resume_run

    try:
        return resume_run(named, baseline=lambda: baseline or worker_baseline(log_to or ()))
    except BudgetError as error:
        account.add(error.needed)
        account.add_own()
        raise BudgetError(error.what, error.limit, account.needed, error.advice) from None


def _prepare(
    budget: int | None,
    rooms: list[Room],
    model: str,
    data: Source,
    out: Path,
    seq_len: int,
    progress: Callable[[dict[str, Any]], None],
    enough: int | None,
) -> PrepareReport:
    """Prepare the data here, within what the command may take; what that needed is in the last of `rooms`."""
    from featherback.data.prepare import prepare
    from featherback.training.room import Room

    rooms.append(Room(data.name, math.inf if budget is None else budget))
    return prepare(model, data, out, seq_len, progress, enough, rooms[-1])


if __name__ == "__main__":
    open_streams(lasting=True)  # as the training that follows
    exit_with(lambda: main(sys.argv[1:]))
