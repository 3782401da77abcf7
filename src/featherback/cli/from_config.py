"""Command-line options made from what TrainConfig, the optimisers and the methods say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Annotated, Any

import typer

from featherback.cli.options import FromConfig
from featherback.core.options import Option, checked, described, field_types, flags
from featherback.runs.config import CHOICES, TrainConfig
from featherback.runs.names import default_of, grouped, known, told

Command = Callable[..., None]


def expanded(command: Command, signature: Signature, marked: Mapping[str, FromConfig]) -> Command:
    """`command` as Typer reads it, every parameter in `marked` described by the field it stands for.

    A value is checked and parsed before the command gets it; what was not named of the options of optimisers and
    methods is left out.
    """
    parameters: list[Parameter] = []
    from_fields: list[Parameter] = []
    optional: list[Parameter] = []  # the command's own; they come last in the help
    for name, parameter in signature.parameters.items():
        if name not in marked:
            required = parameter.default is Parameter.empty
            (parameters if required else optional).append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        elif parameter.kind is not Parameter.VAR_KEYWORD:
            from_fields.append(_parameter(name, marked[name].help))
        elif marked[name].fields:
            from_fields += [_parameter(field) for field in marked[name].fields]
            for choice in CHOICES:
                if choice.choice in marked[name].own_of:
                    from_fields += map(_own_parameter, choice.by_option())
        else:
            from_fields += _every_option(marked[name].elsewhere)
    parameters += from_fields + optional
    checkable = described(TrainConfig).keys() & {parameter.name for parameter in from_fields}

    def run(**values: Any) -> None:
        for name in checkable:
            if values[name] is not None:
                values[name] = checked(TrainConfig, name, values[name])
        unnamed = {name for own in CHOICES for name in own.by_option() if values.get(name) is None}
        command(**{name: value for name, value in values.items() if name not in unnamed})

    run.__doc__ = command.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _every_option(elsewhere: Collection[str] = ()) -> list[Parameter]:
    """All options, group by group. `elsewhere`: those that need not be named."""
    panels = {name: panel for panel, names in grouped().items() for name in names}
    about = described(TrainConfig)
    return [
        _parameter(name, panel=panels.get(name), needed=name not in elsewhere)
        if name in about
        else _own_parameter(name, panels[name])
        for name in (*(name for name in about if name not in panels), *panels)
    ]


def _parameter(name: str, help: str | None = None, panel: str | None = None, needed: bool = True) -> Parameter:
    """The option of a field of TrainConfig. `help` replaces the field's own; `needed`: it must be named if it has no
    default.
    """
    about = described(TrainConfig)[name]
    default = default_of(TrainConfig, name)
    accepted = field_types(TrainConfig, name)
    if default is MISSING and not needed:
        default, accepted = None, (*accepted, type(None))
    if about.parse is not None:  # text, for the field to parse
        given = list[str] if about.several else str
        accepted = tuple({kind if kind is type(None) else given: None for kind in accepted})
    option = typer.Option(
        *flags(TrainConfig, name),
        metavar="|".join(about.choices) or about.metavar,
        help=help or about.help,
        autocompletion=_completed(about),
        rich_help_panel=panel,
        show_default=about.default_in_words or True,
    )
    return _option(name, reduce(or_, accepted), option, Parameter.empty if default is MISSING else default)


def _completed(about: Option) -> Callable[[str], list[str]] | None:
    """What a shell completes a word to: a choice, or the last of a list of words."""
    if not (about.choices or about.words):
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if about.words else ("", "", incomplete)
        known = about.words or about.choices
        return [f"{before}{comma}{word}" for word in known if word.startswith(last)]

    return complete


def _own_parameter(name: str, panel: str | None = None) -> Parameter:
    """The flag of an option that some optimisers, or methods, have."""
    kinds = known()[name]
    help, shown = told(name)
    option = typer.Option(*flags(kinds[0], name), help=help, rich_help_panel=panel, show_default=shown or True)
    accepted = {value for kind in kinds for value in field_types(kind, name)}
    return _option(name, reduce(or_, accepted) | None, option, None)


def _option(name: str, kind: Any, option: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
