"""The parameters of a command, with the descriptions from which its command line, help and completion are made.

A command is a function. The default of each parameter describes it: `option(...)`, as for a field of the training
options, or `of_training(...)` for an option that is described there. `**options` stands for many options of training:
the fields in the module's FIELDS, or all of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from featherback.core.options import Option, as_word, checked_value, field_types, from_text

Command = Callable[..., "int | None"]


@dataclass(frozen=True)
class _FromTraining:
    help: str | None
    shown_default: str | None


def of_training(help: str | None = None, shown_default: str | None = None) -> Any:
    """Return the default of a parameter that is described as the training option of the same name.

    `help` and `shown_default` replace the option's own.
    """
    return _FromTraining(help, shown_default)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command: its description, the types that it accepts, and its default (MISSING: required)."""

    name: str
    about: Option
    accepted: tuple[Any, ...]
    default: Any
    group: str = ""  # its title in the help
    optional: bool = False  # one of `**options`, which the command gets only if it is given

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line, without those of other tools; empty for an argument."""
        if self.about.positional:
            return ()
        own = self.about.flags or (f"--{self.name.replace('_', '-')}",)
        return (*own, f"--no-{own[0][2:]}") if self.about.negatable else own

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return bool in self.accepted and self.about.parse is None

    @property
    def title(self) -> str:
        """What messages call it: "--data", or "MODEL"."""
        return self.flags[0] if self.flags else self.metavar

    @property
    def metavar(self) -> str:
        """The form of its value: "PATH"; empty for a switch."""
        if self.about.metavar or self.about.choices:
            return self.about.metavar or "|".join(self.about.choices)
        kinds = {int: "N", float: "NUMBER", bool: "", Path: "PATH"}
        return next((kinds[kind] for kind in kinds if kind in self.accepted), "TEXT")

    @property
    def words(self) -> tuple[str, ...]:
        """The words that its value may have, or may be made of."""
        return self.about.known_words or self.about.choices

    def read(self, given: Any, alias: str = "") -> Any:
        """Return the value for what was typed: text, a list of texts, or a bool for a switch.

        `alias`: another tool's name by which it was given. Raises FeatherbackError for a wrong value.
        """
        if self.about.parse is None:
            if isinstance(given, list):
                return [from_text(self.accepted, each) for each in given]
            given = from_text(self.accepted, given) if isinstance(given, str) else given
        return checked_value(self.about, self.accepted, as_word(self.title), given, alias)


def parameters_of(command: Command, all_of_choices: bool = True) -> list[Parameter]:
    """Return the parameters of a command, in the order of its help: arguments first, `**options` before its own.

    `all_of_choices`: with the options of single optimisers, methods and so on, which takes loading all of them.
    """
    found: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found += _many(sys.modules[command.__module__], all_of_choices)
        elif isinstance(parameter.default, _FromTraining):
            changed = {key: value for key, value in vars(parameter.default).items() if value is not None}
            described = _from_training(name)
            found.append(replace(described, about=replace(described.about, aliases=(), **changed)))
        else:
            about = parameter.default.metadata["option"]
            group = "Arguments" if about.positional else "Options"
            found.append(Parameter(name, about, _types(command, name), parameter.default.default, group))
    return sorted(found, key=lambda each: (not each.about.positional, not each.optional))


def _types(command: Command, name: str) -> tuple[Any, ...]:
    """The types of a parameter; of a list, those of its elements."""
    return tuple(get_args(each)[0] if get_origin(each) is list else each for each in field_types(command, name))


def _from_training(name: str) -> Parameter:
    from featherback.runs.names import accepted, combined, default_of, kinds_of

    return Parameter(name, combined(name), accepted(name), default_of(kinds_of(name)[0], name), "Options")


def _many(module: Any, all_of_choices: bool) -> Iterator[Parameter]:
    """Yield the options of training in FIELDS and those of the choices in OWN_OF, or all of them."""
    from featherback.runs.config import CHOICES
    from featherback.runs.names import grouped

    titles = {"out": "Result"} | {name: title for title, names in grouped(all_of_choices).items() for name in names}
    if hasattr(module, "FIELDS"):
        choices = [each for each in CHOICES if all_of_choices and each.choice in module.OWN_OF]
        titles = dict.fromkeys((*module.FIELDS, *(name for each in choices for name in each.by_option())), "Options")
    for name, title in titles.items():
        yield replace(_from_training(name), group=title, optional=True)
