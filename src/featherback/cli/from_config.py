"""Command-line options made from what TrainConfig, the optimisers and the methods say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Annotated, Any

import typer

from featherback.cli.options import FromConfig
from featherback.options import checked, described, field_types, flags
from featherback.registry import OwnOptions
from featherback.training.config import CHOICES, PANELS, TrainConfig

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
            from_fields.append(_parameter(name, marked[name].help, grouped=False))
        elif marked[name].fields:
            from_fields += [_parameter(field, grouped=False) for field in marked[name].fields]
            for choice in CHOICES:
                if choice.choice in marked[name].own_of:
                    from_fields += _own_parameters(choice, grouped=False)
        else:
            from_fields += _every_option()
    parameters += from_fields + optional
    checkable = described(TrainConfig).keys() & {parameter.name for parameter in from_fields}

    def run(**values: Any) -> None:
        for name in checkable:
            values[name] = checked(TrainConfig, name, values[name])
        unnamed = {name for own in CHOICES for name in own.by_option() if values.get(name) is None}
        command(**{name: value for name, value in values.items() if name not in unnamed})

    run.__doc__ = command.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _every_option() -> list[Parameter]:
    """All described fields, group by group, with those of the optimisers behind --optimizer, and so on."""
    names = sorted(described(TrainConfig), key=_group)  # stable: within a group in the order of the fields
    found = []
    for name in names:
        found.append(_parameter(name))
        for own in CHOICES:
            if name == own.choice:
                found += _own_parameters(own)
    return found


def _group(name: str) -> int:
    panel = described(TrainConfig)[name].panel
    return -1 if panel is None else PANELS.index(panel)


def _parameter(name: str, help: str | None = None, grouped: bool = True) -> Parameter:
    """The option of a field of TrainConfig. `help` replaces the field's own; `grouped`: under its panel."""
    about = described(TrainConfig)[name]
    default = next(field.default for field in fields(TrainConfig) if field.name == name)
    accepted = field_types(TrainConfig, name)
    if about.parse is not None:  # text, for the field to parse
        accepted = tuple({kind if kind is type(None) else str: None for kind in accepted})
    option = typer.Option(
        *flags(TrainConfig, name),
        metavar="|".join(about.choices) or about.metavar,
        help=help or about.help,
        rich_help_panel=about.panel if grouped else None,
        show_default=about.shown_default() if about.shown_default else True,
    )
    return _option(name, reduce(or_, accepted), option, Parameter.empty if default is MISSING else default)


def _own_parameters(own: OwnOptions[Any], grouped: bool = True) -> list[Parameter]:
    """The options that optimisers, or methods, have of their own."""
    panel = described(TrainConfig)[own.choice].panel if grouped else None
    return [_own_parameter(own, name, kinds, panel) for name, kinds in own.by_option().items()]


def _own_parameter(own: OwnOptions[Any], name: str, kinds: Mapping[str, Any], panel: str | None) -> Parameter:
    """The flag of an option that some optimisers, or methods, have: {optimiser: class}."""
    helps: dict[str, list[str]] = {}
    defaults = {}
    for entry, kind in kinds.items():
        helps.setdefault(described(kind)[name].help, []).append(entry)
        defaults[entry] = next(field.default for field in fields(kind) if field.name == name)
    for_all = len(kinds) == len(own.registry.names)
    if for_all and len(set(defaults.values())) == 1:
        shown = str(next(iter(defaults.values())))
    else:
        shown = ", ".join(f"{value} for {entry}" for entry, value in defaults.items())
    option = typer.Option(
        *flags(next(iter(kinds.values())), name),
        help=" ".join(text if len(helps) == 1 else f"{', '.join(of)}: {text}" for text, of in helps.items()),
        rich_help_panel=panel,
        show_default=shown,
    )
    accepted = {value for kind in kinds.values() for value in field_types(kind, name)}
    return _option(name, reduce(or_, accepted) | None, option, None)


def _option(name: str, kind: Any, option: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
