"""`python -m featherback.cli.begin '{"options": {...}, ...}'`: what `featherback train` is once its options are read.

Between the command line and the training process there are other programs, each in the place of the one before, without
what that held: one plans, another prepares the data, and says what is about to be done.
"""

from __future__ import annotations

import json as json_format
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from featherback.failure import report
from featherback.host.interrupt import INTERRUPTED, ended_by_signals, exit_with
from featherback.terminal import DEBUG, open_streams
from featherback.training.worker_process import become, inherited, worker_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from featherback.data.report import PrepareReport
    from featherback.data.source import Source
    from featherback.training.run_directory import RunDirectory


def go_on(options: dict[str, Any], resume: bool, plan: dict[str, Any] | None, **flags: bool) -> NoReturn:
    """Replace this process by the one that begins a run with these options, or resumes one, and then trains.

    `options`: a TrainConfig's, or to resume those that were named. `plan`: None, to have one made. `flags`: "json",
    "profile" and "dry_run", as the user set them.
    """
    _go_on(options=options, resume=resume, flags=flags, plan=plan)


def _go_on(**asked: Any) -> NoReturn:
    become("featherback.cli.begin", json_format.dumps(asked))


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
    plan: dict[str, Any] | None = None,
    prepared: dict[str, Any] | None = None,
) -> None:
    """One step on the way to the training process, each a program of its own: plan; prepare the data; plan again, if
    they need longer sequences than that was for; show what is about to be done, and train.

    `prepared`: the run that has its data, as `_hand_on` tells of it.
    """
    if prepared is not None:
        run = _taken(**prepared, log_to=options.get("log_to") or ())
        existed = prepared["existed"]
    elif resume:
        run, existed = _resumed(options), True
    elif plan is None:
        _go_on(options=options, resume=False, flags=flags, plan=_planned(options))
    else:
        existed = os.path.exists(options["out"])
        run = _prepared(options, plan)
        if run.config.seq_len is None:
            _hand_on(run, existed, settle=True, options=options, resume=False, flags=flags)
    if prepared is not None and prepared["settle"]:
        _hand_on(run, existed, settle=False, options=options, resume=False, flags=flags)
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


def _hand_on(run: RunDirectory, existed: bool, settle: bool, **asked: Any) -> NoReturn:
    """Let another program go on with a run that has its data, and `settle` its sequence length first, or show it.

    `existed`: whether its directory did before.
    """
    _go_on(
        prepared={"path": str(run.path), "lock": run.pass_lock(), "existed": existed, "settle": settle},
        **asked,
    )


def _taken(path: str, lock: int | None, existed: bool, settle: bool, log_to: Iterable[str]) -> RunDirectory:
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
        except BaseException:
            undo(run, existed)
            raise
    return run


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


def _planned(options: dict[str, Any]) -> dict[str, Any]:
    if log_to := options.get("log_to") or ():
        from featherback.training.loggers import check_installed

        check_installed(log_to)
    baseline = worker_baseline(log_to)  # before this process has grown
    from featherback.training.config import TrainConfig
    from featherback.training.launch import plan_run

    return plan_run(TrainConfig.from_json(options), lambda: baseline)


def _prepared(options: dict[str, Any], plan: dict[str, Any]) -> RunDirectory:
    from featherback.training.config import TrainConfig
    from featherback.training.launch import prepare_run

    config = TrainConfig.from_json(options)
    return prepare_run(config, prepare=partial(_prepare, config.memory), plan=plan)


def _resumed(named: dict[str, Any]) -> RunDirectory:
    log_to = named.get("log_to")
    # Else the plan stays, most likely.
    baseline = worker_baseline(log_to or ()) if named.keys() - {"model", "out"} else None
    from featherback.training.launch import resume_run

    return resume_run(named, baseline=lambda: baseline or worker_baseline(log_to or ()))


def _prepare(
    budget: int | None,
    model: str,
    data: Source,
    out: Path,
    seq_len: int,
    progress: Callable[[dict[str, Any]], None],
    enough: int | None,
) -> PrepareReport:
    """Prepare the data here, within what the command may take."""
    from featherback.data.prepare import prepare
    from featherback.training.room import Room

    room = None if budget is None else Room(data.name, budget)
    return prepare(model, data, out, seq_len, progress, enough, room)


if __name__ == "__main__":
    open_streams(lasting=True)  # as the training that follows
    exit_with(lambda: main(sys.argv[1:]))
