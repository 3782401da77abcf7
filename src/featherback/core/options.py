"""Options are described once, where they are declared: a dataclass field with a type, a default, help and limits.

Checks, the command line with its help, and the rules for resuming are derived from these descriptions.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from featherback.core.naming import argument, argument_is, arguments
from featherback.errors import FeatherbackError, expected


class UnclearError(ValueError):
    """Raised by an Option's `parse` for a value with no clear meaning. Its text says what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The description of an option, beyond the field's type and default."""

    help: str | Callable[[], str]  # a function if its names take long to find: see `meaning`
    brief: str | None = None  # the help in one line, for lists of the most needed options
    aliases: tuple[str, ...] = ()  # other tools' flags for exactly this, accepted beside ours: "--lora-r" for --rank
    metavar: str | None = None
    flags: tuple[str, ...] = ()  # on the command line; default: the field's name
    shown_default: str | Callable[[], str] | None = None  # shown where the default None means a computed value
    choices: tuple[str, ...] = ()
    own: Any = None  # the registry.OwnOptions of the choices; their values are in the field `own.field`
    words: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()  # may be combined into a comma-separated list
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    parse: Callable[[Any], Any] | None = None  # converts input to the field's value, and returns such a value unchanged
    given: Callable[[Any], Any] | None = None  # converts a value from Python or a file to input for `parse`
    written: Callable[[Any], Any] | None = None  # converts the field's value to the form that a person writes
    takes_start: bool = False  # users may give the path of --from here
    is_path: bool = False  # names files, relative to the working directory
    positional: bool = False  # an argument of a command, without a flag
    negatable: bool = False  # a switch that has --no-NAME beside --NAME
    several: bool = False  # may be repeated; the parsed value is a list
    free_on_resume: bool = False  # may be changed by a resumed run
    only_for: str | None = None  # the value of --train that the option requires
    instead_of: str | None = None  # a field that cannot be set together with this one

    @property
    def meaning(self) -> str:
        """The text of `help`."""
        return self.help() if callable(self.help) else self.help

    @property
    def known_words(self) -> tuple[str, ...]:
        """The `words`."""
        return self.words() if callable(self.words) else self.words

    @property
    def default_in_words(self) -> str | None:
        """The text of `shown_default`. It may be computed by a function because finding it can take long."""
        return self.shown_default() if callable(self.shown_default) else self.shown_default


def option(default: Any = MISSING, **description: Any) -> Any:
    """Return a dataclass field with an Option's description. Without a default it is required."""
    return dataclasses.field(default=default, metadata={"option": Option(**description)})


def choice(default: str | None, *, own: Any, **description: Any) -> Any:
    """Return a field that selects an entry of a registry.

    The field `own.field`, a mapping, holds the entry's options.
    """
    return option(default, choices=own.registry.names, own=own, **description)


def described(kind: type) -> dict[str, Option]:
    """Return the dataclass's described fields: {field name: Option}."""
    return _described(kind)


@cache
def _described(kind: type) -> dict[str, Option]:
    return {field.name: field.metadata["option"] for field in dataclasses.fields(kind) if "option" in field.metadata}


def flags(kind: type, name: str) -> tuple[str, ...]:
    """Return the flags of a field on the command line: ("--batch-size",)."""
    about = described(kind).get(name)
    return (about and about.flags) or (f"--{name.replace('_', '-')}",)


def spelled(kind: type, name: str, *value: object) -> str:
    """Return how messages name a field: "--seq-len", or "seq_len" in Python, with its value if one is given."""
    return argument(_flag_name(kind, name), *value)


def _flag_name(kind: type, name: str) -> str:
    """Return a field's first flag as a word: "seq_len"."""
    return as_word(flags(kind, name)[0])


def as_word(flag: str) -> str:
    """Return a flag as a word: "seq_len" for "--seq-len"."""
    return flag.lstrip("-").replace("-", "_")


def field_types(kind: Any, name: str) -> tuple[Any, ...]:
    """Return the types that a dataclass's field or a function's parameter accepts: (int, NoneType) for `int | None`."""
    hint = _hints(kind)[name]
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Evaluate the class's annotations, once, because every field's check needs them."""
    return get_type_hints(kind)


def checked(kind: type, name: str, value: Any, alias: str = "") -> Any:
    """Return a described field's value, parsed. Raises FeatherbackError, naming the option, if it is not acceptable.

    `alias`: how the user called the option, if that is another tool's name: "lora_r".
    """
    return checked_value(described(kind)[name], field_types(kind, name), _flag_name(kind, name), value, alias)


def checked_value(about: Option, accepted: tuple[Any, ...], word: str, value: Any, alias: str = "") -> Any:
    """Return the value of an option that is called `word`, parsed, as `checked` does."""
    if value is None and type(None) in accepted:
        return None
    if about.parse is not None:
        try:
            value = about.parse(value)
        except UnclearError as advice:
            raise FeatherbackError(argument_is(word, f"{value!r}; {advice}", alias)) from None
        if value is None and type(None) in accepted:
            return None
    value = _builtin(value)
    if about.is_path and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if problem := _problem(about, accepted, value):
        if about.takes_start and isinstance(value, str) and os.path.exists(value):
            problem += f" To start from that path: {argument('from', value)}."
        raise FeatherbackError(argument_is(word, problem, alias))
    return value


def from_text(accepted: tuple[Any, ...], text: str) -> Any:
    """Return what a text of the command line means for an option of these types; the text itself if it fits none."""
    kind = next((kind for kind in (int, float, Path) if kind in accepted), str)
    try:
        return kind(text)
    except ValueError:
        return text


def _builtin(value: Any) -> Any:
    """Convert NumPy numbers to Python's, which JSON can hold."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def check(instance: Any) -> None:
    """Check and parse every described field of a dataclass in place. Raises FeatherbackError as `checked` does."""
    for name in described(type(instance)):
        object.__setattr__(instance, name, checked(type(instance), name, getattr(instance, name)))


class Panel:
    """Base class of a dataclass whose options form one group in the command's help, titled `title`."""

    title = ""

    def __post_init__(self) -> None:
        check(self)
        about = described(type(self))
        for own in (each.own for each in about.values() if each.own):
            made = own.make(getattr(self, own.choice), getattr(self, own.field))
            object.__setattr__(self, own.field, dataclasses.asdict(made))
        for name, each in about.items():
            if each.instead_of and None not in (getattr(self, name), getattr(self, each.instead_of)):
                raise FeatherbackError(f"Use {arguments(each.instead_of, name)}, not both.")
        self.check_rules()

    def check_rules(self) -> None:
        """Raise FeatherbackError for options that are valid by themselves but contradict each other."""


def _problem(about: Option, accepted: tuple[Any, ...], value: Any) -> str | None:
    """Return the value and the problem with it; None instead of the problem if it is acceptable."""
    if about.choices:
        known = isinstance(value, str) and value in about.choices
        return None if known else f"{value!r}; {expected(value, about.choices)}"
    if bool in accepted:
        return None if isinstance(value, bool) else f"{value!r}; it must be true or false."
    if str in accepted and isinstance(value, str):
        return None
    if str in accepted and int not in accepted:
        return f"{value!r}; it must be text."
    if int in accepted and (isinstance(value, bool) or not isinstance(value, int)):
        return f"{value!r}; it must be a whole number."
    if float in accepted:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"{value!r}; it must be a number."
        if math.isinf(value):
            return "infinite; it must be a finite number."
    if int in accepted or float in accepted:
        limits = _limits(about)
        if not all(holds(value) for _, holds in limits):
            return f"{value}; it must be {' and '.join(text for text, _ in limits)}."
    return None


def _limits(about: Option) -> list[tuple[str, Callable[[float], bool]]]:
    """Return a field's limits, as words and as tests. NaN fails every test."""
    least, most, above, below = about.least, about.most, about.above, about.below
    limits: list[tuple[str, Callable[[float], bool]]] = [("a number", lambda value: not math.isnan(value))]
    if least is not None:
        limits.append((f"at least {least}", lambda value: value >= least))
    if above is not None:
        limits.append(("a positive number" if above == 0 else f"more than {above}", lambda value: value > above))
    if most is not None:
        limits.append((f"at most {most}", lambda value: value <= most))
    if below is not None:
        limits.append((f"less than {below}", lambda value: value < below))
    return limits[1:] or limits
