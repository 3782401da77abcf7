"""The command-line application: one module per command, and one place where errors become exit codes."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_args, get_origin

import typer

from featherback.cli.options import FromConfig
from featherback.core import signals
from featherback.core.failure import report
from featherback.core.naming import as_flags
from featherback.core.terminal import DEBUG, quoted, say
from featherback.engine.host.interrupt import INTERRUPTED, ended_by_signals
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.version import __version__

COMPLETE = "_FEATHERBACK_COMPLETE"
"""The variable in which a shell's completion says what it wants, as Typer names it."""

POSITIONAL = ("data", "prompt")
"""Options whose value is often written without them, after MODEL."""

# A command is a module of this package with a function of its name. The help has them in this order.
COMMANDS = (
    "demo",
    "fetch",
    "models",
    "plan",
    "train",
    "report",
    "replay",
    "evaluate",
    "generate",
    "chat",
    "export",
    "inspect",
)


def application(chosen: str | None) -> typer.Typer:
    """The command line. Only the `chosen` command gets its options: describing all would import what all need."""
    app = typer.Typer(
        name="featherback",
        help="Fine-tune an LLM, exactly, in tens of megabytes, on the machine you already have.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(common)
    for name in COMMANDS:
        function = getattr(import_module(f"featherback.cli.{name}"), name)
        app.command(name)(_with_options(function) if name == chosen else _title(function))
    return app


def _completed() -> list[str]:
    """What stands on the command line that a shell wants completed, if this is why we are asked."""
    if COMPLETE not in os.environ:
        return []
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:]


def _version(wanted: bool) -> None:
    if wanted:
        say(f"featherback {__version__}")
        raise typer.Exit()


def common(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works with every command.")
    ] = False,
) -> None:
    """What every command shares; --debug is taken out of the arguments before they come here."""


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose FromConfig parameters are as TrainConfig describes them."""
    signature = inspect.signature(command, eval_str=True)
    marked = {
        name: marker
        for name, parameter in signature.parameters.items()
        if get_origin(parameter.annotation) is Annotated
        for marker in get_args(parameter.annotation)[1:]
        if isinstance(marker, FromConfig)
    }
    if not marked:
        return command
    from featherback.cli.from_config import expanded

    return expanded(command, signature, marked)


def _title(command: Callable[..., None]) -> Callable[[], None]:
    """A command's entry in the list of commands."""

    def listed() -> None:
        raise AssertionError("only listed")

    listed.__doc__ = command.__doc__
    return listed


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit status: 0, 2 (an error the user can correct), 1 (a bug) or 130 (a signal).

    Everything is written when it ends: what cannot be is an error as well.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if debug := "--debug" in arguments:
        arguments.remove("--debug")
        os.environ[DEBUG] = "1"  # for the processes this one starts
        warnings.simplefilter("default")
    try:
        words = _completed() or arguments
        chosen = next((word for word in words if not word.startswith("-")), None)
        with as_flags(), ended_by_signals():
            with signals.waiting():  # NumPy's threads begin in here
                app = application(chosen)
            code = app(arguments, prog_name="featherback", standalone_mode=False)
            sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):  # Ctrl-C, or another signal: what was begun is undone
        return INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message"):  # of the arguments
            if not (said := _of_arguments(error, arguments)):  # without arguments: the help is what there is to say
                return 2
            help_of = " ".join(("featherback", *([chosen] if chosen in COMMANDS else []), "--help"))
            error = FeatherbackError(f"{said} See {help_of}.")
        return report(error, debug)
    return code if isinstance(code, int) else 0


def _of_arguments(error: Any, words: list[str]) -> str:
    """What the parser complains of in the `words` of the command line, in sentences; empty if that is nothing."""
    if option := getattr(error, "option_name", None) if hasattr(error, "possibilities") else None:
        known = [flag for parameter in error.ctx.command.params for flag in parameter.opts if flag[:2] == "--"]
        return f"There is no option {option}.{did_you_mean(near(option, known))}"
    said = str(error.format_message()).rstrip(".")
    if unknown := re.fullmatch(r"No such command '(.*?)'.*", said):
        return f"There is no command {unknown[1]}.{did_you_mean(near(unknown[1], COMMANDS))}"
    if meant := _with_option(error, words):
        return f"{said}. Did you mean `{meant}`?"
    return f"{said}." if said else ""


def _with_option(error: Any, words: list[str]) -> str:
    """The command line with the option of POSITIONAL before the one word too many; empty if that is not the mistake."""
    context = getattr(error, "ctx", None)
    if context is None or context.parent is None:
        return ""
    first = words.index(context.info_name) + 1
    try:
        given, extra, _ = context.command.make_parser(context).parse_args(words[first:])
    except type(error):  # another mistake, which is reported
        return ""
    known = {parameter.name for parameter in context.command.params}
    free = [name for name in POSITIONAL if name in known and not given.get(name)]
    if len(extra) != 1 or not free:
        return ""
    place = len(words) - 1 - words[::-1].index(extra[0])
    return quoted("featherback", *words[:place], f"--{free[0]}", *words[place:])
