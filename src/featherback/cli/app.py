"""The command-line application: one module per command. Errors become exit codes here."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin

import typer

from featherback.cli.help import ALIAS, HelpAll, with_help
from featherback.cli.options import FromConfig
from featherback.core import signals
from featherback.core.failure import report
from featherback.core.naming import as_flags, spelled_option
from featherback.core.options import as_word
from featherback.core.signals import INTERRUPTED
from featherback.core.terminal import DEBUG, quoted, say
from featherback.engine.host.interrupt import ended_by_signals
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.runs.requests import EvaluationRequest, TrainingRequest
from featherback.version import __version__

COMPLETE = "_FEATHERBACK_COMPLETE"
"""The environment variable of a shell's completion request, as Typer names it."""

POSITIONAL = ("data", "prompt")
"""Options whose name people often forget: they write the value directly after MODEL."""

# Each command is a function in a module of the same name, with an underscore for a dash. The help has this order.
COMMANDS = (
    "demo",
    "fetch",
    "models",
    "plan",
    "train",
    "convert-config",
    "report",
    "evaluate",
    "generate",
    "chat",
    "serve",
    "classify",
    "export",
    "federate",
    "inspect",
    "studio",
)
_ELSEWHERE = {
    "merge": "export RUN --to merged",
    "fuse": "export RUN --to merged",
    "convert": "export",
    "sft": "train",
    "finetune": "train",
    "lora": "train",
    "run": "chat",
    "infer": "generate",
    "predict": "generate",
    "download": "fetch",
    "pull": "fetch",
    "list": "models",
    "ls": "models",
    "show": "inspect",
    "ui": "studio",
    "webui": "studio",
}
"""Commands of other tools, without dashes, and what does the same here."""


def application(chosen: str | None) -> typer.Typer:
    """The command line. Only the `chosen` command gets its options, because describing all would import everything."""
    app = typer.Typer(
        name="featherback",
        help="Fine-tune an LLM in tens of megabytes of memory, on the machine you already have.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda word: word.replace("_", "-"),  # --lora_r is --lora-r
        },
    )
    app.callback()(common)
    for name in COMMANDS:
        word = as_word(name)
        function = getattr(import_module(f"featherback.cli.{word}"), word)
        if name == chosen:
            ready, its_class = _with_options(function)
            app.command(name, cls=its_class)(ready)
        else:
            app.command(name)(_stand_in(function))
    return app


def _completed() -> list[str]:
    """The words of the command line to complete, if a shell's completion started us; else empty."""
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
    help_all: HelpAll = False,
) -> None:
    """Options of all commands. `run` has already removed --debug from the arguments."""


def _with_options(command: Callable[..., None]) -> tuple[Callable[..., None], type[Any]]:
    """A command whose FromConfig parameters are as TrainConfig describes them, and the class that writes its help."""
    signature = inspect.signature(command, eval_str=True)
    marked = {
        name: marker
        for name, parameter in signature.parameters.items()
        if get_origin(parameter.annotation) is Annotated
        for marker in get_args(parameter.annotation)[1:]
        if isinstance(marker, FromConfig)
    }
    if not marked:
        return with_help(command)
    from featherback.cli.from_config import expanded

    return with_help(*expanded(command, signature, marked))


def _stand_in(command: Callable[..., None]) -> Callable[[], None]:
    """A stand-in for a command in the list of commands, without its options."""

    def listed() -> None:
        raise AssertionError("only listed")

    listed.__doc__ = command.__doc__
    return listed


def run(arguments: list[str] | None = None) -> int | TrainingRequest | EvaluationRequest:
    """Run the command line, and return its status: 0, 2 (the user can correct the error), 1 (a bug) or 130 (a signal).

    Of `train` and `evaluate`, only the options are read, and what they ask for is returned (`cli/launcher.py`).
    All output is flushed before it returns, because an output error is an error as well.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if debug := "--debug" in arguments:
        arguments.remove("--debug")
        os.environ[DEBUG] = "1"  # for the processes that this one starts
        warnings.simplefilter("default")
    arguments = _with_values(arguments)
    try:
        words = _completed() or arguments
        chosen = next((word for word in words if not word.startswith("-")), None)
        with as_flags(), ended_by_signals():
            with signals.waiting():  # NumPy starts its threads in here
                app = application(chosen)
            code = app(arguments, prog_name="featherback", standalone_mode=False)
            sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):  # Ctrl-C or another signal
        return INTERRUPTED
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            say(error.format_message())  # type: ignore[attr-defined]
            return 2
        if hasattr(error, "format_message"):  # of the arguments
            with as_flags():
                said = _argument_error(error, arguments)
            if not said:  # no arguments: the help has been printed
                return 2
            wanted = "--help-all" if hasattr(error, "possibilities") else "--help"
            help_of = " ".join(("featherback", *([chosen] if chosen in COMMANDS else []), wanted))
            error = FeatherbackError(f"{said} See {help_of}.")
        return report(error, debug)
    return 0 if code is None else code


def _with_values(words: list[str]) -> list[str]:
    """The command line with `--packing` as `--packing true`, because other tools use it without a value."""
    found: list[str] = []
    for word, following in pairwise([*words, "-"]):
        found += [word, "true"] if word == "--packing" and following.startswith("-") else [word]
    return found


def _argument_error(error: Any, words: list[str]) -> str:
    """The parser's error about the `words` of the command line, as sentences; empty if there is none to print."""
    if option := getattr(error, "option_name", None) if hasattr(error, "possibilities") else None:
        from featherback.runs.suggestions import advice  # rarely

        known = [
            flag
            for each in error.ctx.command.params
            if ALIAS not in each.name
            for flag in each.opts
            if flag[:2] == "--"
        ]
        return f"There is no option {option}.{advice(option, [as_word(flag) for flag in known])}"
    said = str(error.format_message()).rstrip(".")
    if unknown := re.fullmatch(r"No such command '(.*?)'.*", said):
        same = _ELSEWHERE.get(re.sub("[-_]", "", unknown[1].lower()))
        return f"There is no command {unknown[1]}.{did_you_mean([same] if same else near(unknown[1], COMMANDS))}"
    if wrong := _wrong_number(said, words):
        return wrong
    if lonely := re.fullmatch(r"Option '(--[\w-]+)' requires an argument", said):
        return f"{lonely[1]} needs a value."
    if meant := _corrected_command(error, words):
        return f"{said}. Did you mean `{meant}`?"
    if missing := re.fullmatch(r"Missing (?:option|argument) '([^']+)'", said):
        metavar = getattr(error.param, "metavar", None)
        add = f" Add {missing[1]} {metavar}." if metavar and missing[1].startswith("--") else ""
        return f"{missing[1]} is missing.{add}"
    return f"{said}." if said else ""


def _wrong_number(said: str, words: list[str]) -> str:
    """The parser's error about a number, in the form of our own errors; empty for other errors."""
    match = re.match(r"Invalid value for '(--[\w-]+)'.*?: (.*)", said)
    flags = [word.partition("=")[0].replace("_", "-") for word in words]
    if not match or match[1] not in flags:
        return ""
    place = len(words) - 1 - flags[::-1].index(match[1])
    value = words[place].partition("=")[2] or " ".join(words[place + 1 : place + 2])
    if least := re.search(r"(?:greater than or equal to |range x>=)(\S+?)\.?$", match[2]):
        kind = f"at least {least[1]}"
    elif found := re.search(r"\b(?:(integer|int)|number|float)\b", match[2]):
        kind = "a whole number" if found[1] else "a number"
    else:
        return ""
    from featherback.runs.names import aliases, usual_name  # rarely

    alias = aliases().get(as_word(match[1]))
    ours = f" ({spelled_option(usual_name(alias[0]))})" if alias else ""
    return f"{match[1]}{ours} is {value!r}; it must be {kind}."


def _corrected_command(error: Any, words: list[str]) -> str:
    """The corrected command line if the only mistake is a missing option name of POSITIONAL; else empty."""
    context = getattr(error, "ctx", None)
    if context is None or context.parent is None:
        return ""
    first = words.index(context.info_name) + 1
    try:
        given, extra, _ = context.command.make_parser(context).parse_args(words[first:])
    except type(error):  # another mistake, which is reported instead
        return ""
    known = {parameter.name for parameter in context.command.params}
    free = [name for name in POSITIONAL if name in known and not given.get(name)]
    if len(extra) != 1 or not free:
        return ""
    place = len(words) - 1 - words[::-1].index(extra[0])
    return quoted("featherback", *words[:place], f"--{free[0]}", *words[place:])
