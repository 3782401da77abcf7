"""The command-line application: one module per command. Errors become exit codes here."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

from featherback.cli.commands import COMMANDS, command_of
from featherback.core import signals
from featherback.core.failure import report
from featherback.core.naming import as_flags
from featherback.core.options import as_word
from featherback.core.signals import INTERRUPTED
from featherback.core.terminal import DEBUG, say
from featherback.engine.host.interrupt import ended_by_signals
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.runs.requests import ComparisonRequest, EvaluationRequest, TrainingRequest
from featherback.version import __version__

TEXT = "Fine-tune an LLM in tens of megabytes of memory, on the machine you already have."

_ELSEWHERE = {
    "merge": "export RUN --to merged", "fuse": "export RUN --to merged", "convert": "export", "sft": "train",
    "finetune": "train", "lora": "train", "run": "chat", "infer": "generate", "predict": "generate",
    "download": "fetch", "pull": "fetch", "list": "models", "ls": "models", "show": "inspect", "ui": "studio",
    "webui": "studio",
}  # fmt: skip
"""Commands of other tools, without dashes, and what does the same here."""


def read(arguments: list[str]) -> tuple[Callable[..., int | None], dict[str, Any]]:
    """Return the function that the command line asks for, and its arguments. Nothing has been done yet.

    Raises FeatherbackError, in one sentence, for a mistake in the command line.
    """
    name = arguments[0].replace("_", "-") if arguments else ""
    if name in COMMANDS:
        return _read_command(name, arguments[1:])
    if name in ("--complete", "--install-completion", "--show-completion"):
        from featherback.cli import completion

        return getattr(completion, as_word(name)), {"words": arguments[1:]}
    if name in ("--version", "-V"):
        return say, {"text": f"featherback {__version__}"}
    if name in ("", "--help", "-h", "--help-all"):
        return _show_commands, {"status": 0 if name else 2}
    if name.startswith("-"):
        raise FeatherbackError(f"There is no option {arguments[0]}. See featherback --help.")
    same = _ELSEWHERE.get(re.sub("-", "", name.lower()))
    meant = did_you_mean([same] if same else near(arguments[0], COMMANDS))
    raise FeatherbackError(f"There is no command {arguments[0]}.{meant} See featherback --help.")


def _read_command(name: str, words: list[str]) -> tuple[Callable[..., int | None], dict[str, Any]]:
    from featherback.cli.parameters import parameters_of
    from featherback.cli.reading import has_unknown, values_of

    command = command_of(name)
    asked = {word.replace("_", "-") for word in words}
    if asked & {"-h", "--help", "--help-all"}:
        return _show_help, {"name": name, "everything": "--help-all" in asked}
    parameters = parameters_of(command, all_of_choices=False)
    if has_unknown(parameters, words):
        parameters = parameters_of(command)
    return command, values_of(name, parameters, words)


def _show_commands(status: int) -> int:
    from featherback.cli.help import page_of_all

    say(page_of_all(TEXT, {name: command_of(name).__doc__ or "" for name in COMMANDS}))
    return status


def _show_help(name: str, everything: bool) -> None:
    from featherback.cli.help import page
    from featherback.cli.parameters import parameters_of

    command = command_of(name)
    short = getattr(sys.modules[command.__module__], "SHORT", {})
    say(page(name, command.__doc__ or "", parameters_of(command), short, everything))


def run(arguments: list[str] | None = None) -> int | TrainingRequest | EvaluationRequest | ComparisonRequest:
    """Run the command line, and return its status: 0, 2 (the user can correct the error), 1 (a bug) or 130 (a signal).

    Of `train`, `evaluate` and `compare`, only the options are read: what they ask for is returned (`cli/launcher.py`).
    All output is flushed before it returns, because an output error is an error as well.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if debug := "--debug" in arguments:
        arguments.remove("--debug")
        os.environ[DEBUG] = "1"  # for the processes that this one starts
        warnings.simplefilter("default")
    try:
        with as_flags(), ended_by_signals():
            with signals.waiting():  # NumPy starts its threads in here
                command, values = read(arguments)
            status = command(**values)
            sys.stdout.flush()
    except KeyboardInterrupt:  # Ctrl-C or another signal
        return INTERRUPTED
    except Exception as error:
        return report(error, debug)
    return status or 0
