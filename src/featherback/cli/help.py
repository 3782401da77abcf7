"""The help of a command: `--help` in one screen, `--help-all` with every option."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

Command = Callable[..., None]
Groups = Mapping[str, Collection[str]]
"""Title -> names of parameters, in the order of the help."""

ALIAS = "__"
"""A part of the name of a parameter that stands for another tool's option, which the help lists with ours."""
_ALL = "featherback.help_all"
_WIDEST = 26
"""Maximum width of the left column. The description of a longer option starts below it."""
_METAVARS = {int: "N", float: "NUMBER", str: "TEXT"}
_HELP = {
    (False, True): ("--help-all", "Show all options"),
    (True, True): ("-h, --help", "Show the most needed options."),
    (True, False): ("-h, --help, --help-all", "Show this help."),
}
"""(all options are shown, there is a shorter help) -> the last line of the help."""


@dataclass(frozen=True)
class Described:
    """Facts about a command that the help shows in addition to its signature."""

    short: Groups = field(default_factory=dict)
    """The most needed options, grouped; empty: all of them."""
    briefs: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> its help in one line."""


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit()


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options and exit.")
]


def with_help(command: Command, described: Described | None = None) -> tuple[Command, type[TyperCommand]]:
    """A command with `--help-all`, and the class that writes its help."""
    signature = inspect.signature(command, eval_str=True)

    def run(help_all: bool = False, **values: Any) -> Any:
        return command(**values)

    last = Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    run.__doc__ = command.__doc__
    run.__signature__ = Signature([*parameters, last])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*parameters, last)}
    return run, _class(command.__doc__ or "", parameters, described or Described())


def _class(text: str, parameters: list[Parameter], described: Described) -> type[TyperCommand]:
    """The class of a command whose help is made of these parts."""

    infos = [info for each in parameters if isinstance(info := _info(each), typer.models.ArgumentInfo)]
    arguments = " ".join(info.metavar or "" for info in infos)

    class Helped(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.write_usage(ctx.command_path, f"{arguments} [OPTIONS]".strip())
            _write_text(text, formatter)
            everything = bool(ctx.meta.get(_ALL)) or not described.short
            groups = _all_groups(parameters) if everything else described.short
            briefs = {} if everything else described.briefs
            named = {each.name: each for each in parameters}
            rows = {title: [_row(named[name], briefs.get(name)) for name in names] for title, names in groups.items()}
            rows["Help"] = [_HELP[everything, bool(described.short)]]
            widest = min(_WIDEST, max(len(left) for each in rows.values() for left, _ in each))
            for title, each in rows.items():
                formatter.write(f"\n{title}:\n")
                for left, meaning in each:
                    _write_row(formatter, left, meaning, widest)

    return Helped


def _write_row(formatter: Any, left: str, meaning: str, width: int) -> None:
    """Write an option in a left column of this width, and its meaning beside it, or below it if it is longer."""
    indent = " " * (width + 4)
    lines = textwrap.wrap(meaning, formatter.width - len(indent), break_on_hyphens=False) or [""]
    if len(left) > width:
        formatter.write(f"  {left}\n")
    else:
        formatter.write(f"  {left:<{width}}  {lines.pop(0)}".rstrip() + "\n")
    formatter.write("".join(f"{indent}{line}\n" for line in lines))


def _write_text(text: str, formatter: Any) -> None:
    """Write the command's docstring. Lines of examples are not wrapped."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        formatter.write_paragraph()
        if paragraph.startswith("Example:"):
            formatter.write("".join(f"  {line}\n" for line in paragraph.splitlines()))
        else:
            with formatter.indentation():
                formatter.write_text(" ".join(paragraph.split()))


def _all_groups(parameters: list[Parameter]) -> dict[str, list[str]]:
    """Every visible parameter, by the group that it is declared with."""
    found: dict[str, list[str]] = {}
    for each in parameters:
        if (info := _info(each)) is not None and not info.hidden and ALIAS not in each.name:
            usual = "Options" if isinstance(info, typer.models.OptionInfo) else "Arguments"
            found.setdefault(info.rich_help_panel or usual, []).append(each.name)
    return dict(sorted(found.items(), key=lambda group: group[0] != "Arguments"))


def _info(parameter: Parameter) -> Any:
    """Typer's description of a parameter; None for the context."""
    return next(iter(get_args(parameter.annotation)[1:]), None)


def _row(parameter: Parameter, brief: str | None) -> tuple[str, str]:
    """The two columns of an option: its name with the form of its value, and its meaning with its default."""
    info = _info(parameter)
    kinds = get_args(get_args(parameter.annotation)[0]) or get_args(parameter.annotation)[:1]
    form = "" if bool in kinds else next((_METAVARS[kind] for kind in _METAVARS if kind in kinds), "PATH")
    flags = [flag for flag in (info.default, *(info.param_decls or ())) if str(flag).startswith("-")]
    if isinstance(info, typer.models.OptionInfo) and not flags:
        flags = [f"--{parameter.name.replace('_', '-')}"]
    default = info.show_default if isinstance(info.show_default, str) else parameter.default
    meaning = brief or " ".join((info.help or "").split())
    if not any(default is each for each in (None, Parameter.empty, False)) and default not in ((), "False"):
        meaning += f" (default: {default})" if brief else f" Default: {default}."
    form = info.metavar or form
    if len(form) > _WIDEST and "|" in form:
        form, meaning = "NAME", f"{meaning} One of: {form.replace('|', ', ')}."
    return f"{', '.join(flags)} {form}".strip(), meaning
