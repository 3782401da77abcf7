"""Options described once, where they are declared: a dataclass field with its type, default, help and limits.

The checks, the command line and its help, and the rules of resuming are derived from these descriptions.
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
from typing import Any, Union, get_args, get_origin, get_type_hints

from featherback.core.naming import argument, argument_is, arguments
from featherback.errors import FeatherbackError, expected


class UnclearError(ValueError):
    """What cannot be meant by an option, as an Option's `parse` raises it; its text is what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is declared of a field beyond its type and its default."""

    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()  # on the command line; default: the field's name
    shown_default: str | Callable[[], str] | None = None  # where the default None stands for something
    choices: tuple[str, ...] = ()
    own: Any = None  # registry.OwnOptions of the choices: their values are in the field `own.field`
    words: tuple[str, ...] = ()  # of which a list may be made, with commas
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    parse: Callable[[Any], Any] | None = None  # what may be given -> the field's value; leaves such a value as it is
    given: Callable[[Any], Any] | None = None  # what may be written in Python or in a file -> what `parse` takes
    written: Callable[[Any], Any] | None = None  # the field's value -> what a person would write
    is_path: bool = False  # names files, as seen from the working directory
    several: bool = False  # may be given again and again; what is parsed is a list then
    free_on_resume: bool = False  # a resumed run may change it without becoming another run
    only_for: str | None = None  # the value of --train without which it means nothing
    instead_of: str | None = None  # a field that it takes the place of: one of both may have a value

    @property
    def default_in_words(self) -> str | None:
        """`shown_default`, which may be a function where it takes long to find."""
        return self.shown_default() if callable(self.shown_default) else self.shown_default


def option(default: Any = MISSING, **description: Any) -> Any:
    """A dataclass field with a default (none: required) and the description of an Option."""
    return dataclasses.field(default=default, metadata={"option": Option(**description)})


def choice(default: str, *, own: Any, **description: Any) -> Any:
    """The option `own.choice`, an entry of a registry, whose own options are in the field `own.field`, a mapping."""
    return option(default, choices=own.registry.names, own=own, **description)


def described(kind: type) -> dict[str, Option]:
    """Field name -> description, of the fields of a dataclass that have one."""
    return _described(kind)


@cache
def _described(kind: type) -> dict[str, Option]:
    return {field.name: field.metadata["option"] for field in dataclasses.fields(kind) if "option" in field.metadata}


def flags(kind: type, name: str) -> tuple[str, ...]:
    """How a field is spelled on the command line: "--batch-size"."""
    about = described(kind).get(name)
    return (about and about.flags) or (f"--{name.replace('_', '-')}",)


def spelled(kind: type, name: str, *value: object) -> str:
    """How messages name a field: "--seq-len", or "seq_len" in Python; with its value if one is given."""
    return argument(_word(kind, name), *value)


def _word(kind: type, name: str) -> str:
    """A field's usual flag as a word: "seq_len"."""
    return flags(kind, name)[0].lstrip("-").replace("-", "_")


def field_types(kind: type, name: str) -> tuple[Any, ...]:
    """The types that a field may have: (int, NoneType) for `int | None`."""
    hint = _hints(kind)[name]
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of a class, which are text until they are evaluated: once, since every field's check asks."""
    return get_type_hints(kind)


def checked(kind: type, name: str, value: Any) -> Any:
    """The value of a described field, parsed; FeatherbackError, naming the option, if the field cannot have it."""
    about = described(kind)[name]
    accepted = field_types(kind, name)
    if value is None and type(None) in accepted:
        return None
    if about.parse is not None:
        try:
            value = about.parse(value)
        except UnclearError as advice:
            raise FeatherbackError(argument_is(_word(kind, name), f"{value!r}; {advice}")) from None
        if value is None and type(None) in accepted:
            return None
    value = _builtin(value)
    if about.is_path and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if problem := _problem(about, accepted, value):
        raise FeatherbackError(argument_is(_word(kind, name), problem))
    return value


def _builtin(value: Any) -> Any:
    """NumPy's numbers as Python's own, which JSON can hold."""
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def check(instance: Any) -> None:
    """Check every described field of a dataclass, and leave it parsed; FeatherbackError as from `checked`."""
    for name in described(type(instance)):
        object.__setattr__(instance, name, checked(type(instance), name, getattr(instance, name)))


class Panel:
    """A dataclass of options that form a group of a command's help, under this title."""

    title = ""

    def __post_init__(self) -> None:
        check(self)
        about = described(type(self))
        for own in (each.own for each in about.values() if each.own):
            made = own.make(getattr(self, own.choice), getattr(self, own.field))
            object.__setattr__(self, own.field, dataclasses.asdict(made))
        for name, each in about.items():
            if each.instead_of and None not in (getattr(self, name), getattr(self, each.instead_of)):
                raise FeatherbackError(f"Name {arguments(each.instead_of, name)}, not both.")
        self.check_rules()

    def check_rules(self) -> None:
        """FeatherbackError, naming the options, for what does not go together; each was checked by itself."""


def _problem(about: Option, accepted: tuple[Any, ...], value: Any) -> str | None:
    """A value and what is wrong with it, if anything is."""
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
            return "infinite; it must be a number."
    if int in accepted or float in accepted:
        limits = _limits(about)
        if not all(holds(value) for _, holds in limits):
            return f"{value}; it must be {' and '.join(text for text, _ in limits)}."
    return None


def _limits(about: Option) -> list[tuple[str, Callable[[float], bool]]]:
    """A field's limits, in words and as tests that NaN does not pass."""
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
