"""`featherback train`, `evaluate` and `compare`: the process that stays, from the command line to the last step.

Until it trains or measures, it imports next to nothing, and holds the terminal, the signals and the lock of the run.
What comes before is done by functions of `cli/stages.py`, each in a child process (`core/children.py`), so that
tokenizers, planners and parsers have left no memory behind when training begins:

    launch
      stages.measure_size       measures what this process will hold before it has a model
      stages.set_up             reads the command line, turns the data into tokens, chooses the plan, describes the run
      stages.run_pass           a pass before training, for the runs that need it, a child each
      worker.train, or _measure           here, in this process

`compare` prepares and measures each of its candidates in this way, in children.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from featherback.cli import stages
from featherback.core.children import ChildFailedError, Children
from featherback.core.naming import use_flags
from featherback.core.signals import INTERRUPTED
from featherback.core.terminal import DEBUG
from featherback.runs.account import Account
from featherback.runs.requests import (
    ComparisonRequest,
    EvaluationRequest,
    PreparedEvaluation,
    PreparedRun,
    Refusal,
    TrainingRequest,
)

if TYPE_CHECKING:
    from featherback.cli.stages import Size

_READ_FIRST = {"-h", "--help", "--help-all", "--config", "--resume"}
"""Options with which the command line is read before anything is measured: perhaps there is no plan to make, or
reading takes memory that the preparation should not hold.
"""


def launch(arguments: list[str]) -> int:
    """Run the command `train` or `evaluate` with its arguments, and return its exit status."""
    use_flags()
    if "--debug" in arguments:
        os.environ[DEBUG] = "1"
    try:
        with Children() as children:
            found = _set_up(arguments, children)
            if isinstance(found, int):
                return found
            if isinstance(found, Refusal):
                children.call(stages.refuse, found)
            if isinstance(found, ComparisonRequest):
                return _compare(found, children)
            if isinstance(found, PreparedRun):
                return _train(found, children)
            interrupted = children.requested
        return _measure(found, interrupted)
    except ChildFailedError as failed:
        return failed.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        from featherback.core.failure import report

        return report(error, DEBUG in os.environ)


def _set_up(arguments: list[str], children: Children) -> Any:
    """Return what `stages.set_up` makes of the command line, with the size that it needs for a plan."""
    account = Account()
    size: Size | None = None
    if not _READ_FIRST & {word.partition("=")[0] for word in arguments}:
        command = next(word for word in arguments if word != "--debug")
        size = children.call(stages.measure_size, command == "train", ())
        account.add_peak(children.peak)
    found = children.call(stages.set_up, arguments, size, account)
    if isinstance(found, (TrainingRequest, EvaluationRequest)):  # it needs another size
        size = children.call(stages.measure_size, isinstance(found, TrainingRequest), found.log_to)
        account.add_peak(children.peak)
        found = children.call(stages.set_up, found, size, account)
    return found


def _train(prepared: PreparedRun, children: Children) -> int:
    """Run the passes that a prepared run needs before it trains, and train. Return the exit status."""
    lock = next(iter(children.received), None)  # of the run; held until this process ends
    stages.outlast_terminal(prepared.request)
    for name in prepared.passes:
        children.call(stages.run_pass, name, prepared, lock)
    request = prepared.request
    if request.dry_run:
        return 0
    from featherback.worker import train

    return train(prepared.path, request.json, request.profile, lock, lambda: children.requested)


def _compare(asked: ComparisonRequest, children: Children) -> int:
    """Measure each candidate in children, print the comparison, and return the exit status."""
    here = Account()
    footprint, rss = children.call(stages.measure_size, False, ())
    size = footprint + here.waits, rss + here.waits  # this process waits beside the one that measures
    answers = [_measured(each, stages.set_up, size, children) for each in asked.answers]
    losses, note = list[Any](), None
    for each in asked.losses:
        found = None if note else _measured(each, stages.set_up_loss, size, children)
        note = found if isinstance(found, str) else note
        losses.append(None if note else found)
    general = [
        (_measured(own, stages.set_up, size, children), _measured(text, stages.set_up, size, children))
        for own, text in asked.general
    ]
    from featherback.cli.compared import show

    status = show(asked, answers, losses, general, note)
    sys.stdout.flush()
    return status


def _measured(request: EvaluationRequest, prepare: Any, size: Size, children: Children) -> Any:
    """Return what an evaluation finds, or the text that `prepare` returned instead of preparing it."""
    prepared = children.call(prepare, request, size, Account())
    if isinstance(prepared, Refusal):
        children.call(stages.refuse, prepared)
    if isinstance(prepared, str):
        return prepared
    try:
        return children.call(stages.measured, prepared)
    finally:
        from shutil import rmtree

        rmtree(prepared.folder, ignore_errors=True)


def _measure(prepared: PreparedEvaluation, interrupted: bool) -> int:
    from shutil import rmtree

    from featherback.cli.measured import measure

    if interrupted:
        rmtree(prepared.folder, ignore_errors=True)
        raise KeyboardInterrupt
    measure(prepared)
    sys.stdout.flush()  # output that fails is an error
    return 0
