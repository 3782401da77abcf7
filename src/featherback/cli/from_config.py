"""Command-line options made from the descriptions of TrainConfig's fields and of optimizers' and methods' options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from functools import reduce
from inspect import Parameter, Signature
from operator import or_
from typing import Annotated, Any

import typer

from featherback.cli.help import ALIAS, Described
from featherback.cli.options import FromConfig
from featherback.core.naming import aliases_used
from featherback.core.options import Alias, Option, checked, described, field_types, flags, read_alias
from featherback.errors import FeatherbackError
from featherback.runs.by_name import same_option
from featherback.runs.config import CHOICES, TrainConfig
from featherback.runs.names import default_of, grouped, help_and_default, known, usual_name

Command = Callable[..., None]


def expanded(command: Command, signature: Signature, marked: Mapping[str, FromConfig]) -> tuple[Command, Described]:
    """Replace the parameters in `marked` by options that the fields of TrainConfig describe.

    Returns the command as Typer reads it, and the facts that its help shows.

    Values are checked and parsed before the command gets them. Options of optimizers and methods that the user did not
    give are not passed on.
    """
    parameters: list[Parameter] = []
    from_fields: list[Parameter] = []
    optional: list[Parameter] = []  # the command's own; they come last in the help
    for name, parameter in signature.parameters.items():
        if name not in marked:
            required = parameter.default is Parameter.empty
            (parameters if required else optional).append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
        elif parameter.kind is not Parameter.VAR_KEYWORD:
            from_fields.append(_parameter(name, marked[name].help, shown_default=marked[name].shown_default))
        elif marked[name].fields:
            from_fields += [_parameter(field) for field in marked[name].fields]
            for choice in CHOICES:
                if choice.choice in marked[name].own_of:
                    from_fields += map(_own_parameter, choice.by_option())
        else:
            from_fields += _every_option(marked[name].elsewhere)
    aliases = {
        f"{parameter.name}{ALIAS}{alias.word}": (parameter.name, alias)
        for parameter in from_fields
        for alias in described(known()[parameter.name][0])[parameter.name].aliases
    }
    parameters += from_fields + optional
    contexts = [parameter.name for parameter in parameters if parameter.annotation is typer.Context]
    shown = [parameter for parameter in parameters if parameter.name not in contexts]
    checkable = described(TrainConfig).keys() & {parameter.name for parameter in from_fields}

    def run(_context: typer.Context, **values: Any) -> Any:
        named = _fold_aliases(_context, values, aliases)
        with aliases_used(named):
            for name in checkable:
                if values[name] is not None:
                    values[name] = checked(TrainConfig, name, values[name])
            unnamed = {name for own in CHOICES for name in own.by_option() if values.get(name) is None}
            values |= dict.fromkeys(contexts, _context)
            return command(**{name: value for name, value in values.items() if name not in unnamed})

    context = Parameter("_context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    hidden = [_alias_parameter(name, *alias) for name, alias in aliases.items()]
    run.__doc__ = command.__doc__
    run.__signature__ = Signature([context, *shown, *hidden])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (context, *shown, *hidden)}
    short = next((each.short for each in marked.values() if each.short), {})
    briefs = {name: brief for name in checkable if (brief := described(TrainConfig)[name].brief)}
    return run, Described(short, briefs | {"model": "A GGUF file, a model folder, or a name that `models` lists"})


def _fold_aliases(context: Any, values: dict[str, Any], aliases: Mapping[str, tuple[str, Alias]]) -> dict[str, str]:
    """Move the values of other tools' options to ours, and return which were used: our name -> the other tool's.

    Raises FeatherbackError if an option was given by two names.
    """
    given = {name for name in values if _is_on_command_line(context, name)}
    used: dict[str, str] = {}
    for parameter, (field, alias) in aliases.items():
        value = values.pop(parameter)
        if parameter not in given:
            continue
        word = usual_name(field)
        if field in given or word in used:
            raise FeatherbackError(same_option(used.get(word, word), alias.word))
        used[word] = alias.word
        values[field] = read_alias(known()[field][0], field, alias, value)
        context.set_parameter_source(field, context.get_parameter_source(parameter))
    return used


def _is_on_command_line(context: Any, name: str) -> bool:
    """Whether a parameter is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _every_option(elsewhere: Collection[str] = ()) -> list[Parameter]:
    """All options, group by group. `elsewhere`: fields that the command line need not give."""
    panels = {name: panel for panel, names in grouped().items() for name in names}
    about = described(TrainConfig)
    return [
        _parameter(name, panel=panels.get(name, "Result"), needed=name not in elsewhere)
        if name in about
        else _own_parameter(name, panels[name])
        for name in (*(name for name in about if name not in panels), *panels)
    ]


def _parameter(
    name: str, help: str | None = None, panel: str | None = None, needed: bool = True, shown_default: str | None = None
) -> Parameter:
    """The option of a field of TrainConfig.

    `help` and `shown_default` replace the field's own. `needed`: the option is required if the field has no default.
    """
    about = described(TrainConfig)[name]
    default = default_of(TrainConfig, name)
    accepted = field_types(TrainConfig, name)
    if default is MISSING and not needed:
        default, accepted = None, (*accepted, type(None))
    option = typer.Option(
        *flags(TrainConfig, name),
        metavar="|".join(about.choices) or about.metavar,
        help=_with_aliases(help or about.help, about),
        autocompletion=_completed(about),
        rich_help_panel=panel,
        show_default=shown_default or about.default_in_words or True,
    )
    kind = reduce(or_, _as_typed(about, accepted))
    return _option(name, kind, option, Parameter.empty if default is MISSING else default)


def _alias_parameter(parameter: str, field: str, alias: Alias) -> Parameter:
    """The option of another tool that means the same as a field; the help lists it with the field."""
    kind = known()[field][0]
    about = described(kind)[field]
    accepted = (str,) if alias.read else _as_typed(about, field_types(kind, field))
    return _option(parameter, reduce(or_, accepted) | None, typer.Option(alias.flag), None)


def _as_typed(about: Option, accepted: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types that Typer should read: text where the field has a parser of its own."""
    if about.parse is None:
        return accepted
    given = list[str] if about.several else str
    return tuple({kind if kind is type(None) else given: None for kind in accepted})


def _with_aliases(help: str, about: Option) -> str:
    """The help with the names that other tools have for the option."""
    if not about.aliases:
        return help
    return f"{help.rstrip('.')}. Also: {', '.join(alias.flag for alias in about.aliases)}."


def _completed(about: Option) -> Callable[[str], list[str]] | None:
    """A function that completes a word to a choice, or the last word of a list; None if there are no choices."""
    if not (about.choices or about.words):
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if about.words else ("", "", incomplete)
        known = about.words or about.choices
        return [f"{before}{comma}{word}" for word in known if word.startswith(last)]

    return complete


def _own_parameter(name: str, panel: str | None = None) -> Parameter:
    """The option of an optimizer, a method or an objective."""
    kinds = known()[name]
    help, shown = help_and_default(name)
    help = _with_aliases(help, described(kinds[0])[name])
    choices = dict.fromkeys(word for kind in kinds for word in described(kind)[name].choices)
    option = typer.Option(
        *flags(kinds[0], name),
        metavar="|".join(choices) or None,
        help=help,
        rich_help_panel=panel,
        show_default=shown or True,
    )
    accepted = {value for kind in kinds for value in field_types(kind, name)}
    return _option(name, reduce(or_, accepted) | None, option, None)


def _option(name: str, kind: Any, option: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
