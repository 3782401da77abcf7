"""What the options of training are called where they are no flags: in Python and in files ("lr", "seq_len")."""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from featherback.core.naming import in_python
from featherback.core.options import checked, described, field_types, flags
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.runs.config import CHOICES, PANELS, TrainConfig


def spellings(kind: type, field: str) -> tuple[str, ...]:
    """A field's names, the usual one first: its flags as words. Where Python keeps these to itself (`from`) the field's
    own.
    """
    words = [flag.lstrip("-").replace("-", "_") for flag in flags(kind, field)]
    return tuple(dict.fromkeys(word for word in (*words, field) if word in words or keyword.iskeyword(words[0])))


@cache
def known() -> dict[str, tuple[type, ...]]:
    """Field -> the dataclasses that describe it: TrainConfig, or those of the optimisers or methods that have it."""
    found: dict[str, tuple[type, ...]] = dict.fromkeys(described(TrainConfig), (TrainConfig,))
    for own in CHOICES:
        found |= {name: tuple(kinds.values()) for name, kinds in own.by_option().items()}
    return found


def python_names(field: str) -> tuple[str, ...]:
    """A field's names that can be keyword arguments, the usual one first."""
    return tuple(name for name in spellings(known()[field][0], field) if not keyword.iskeyword(name))


def python_type(field: str) -> str:
    """What may be given for a field in Python, as an annotation."""
    kind = known()[field][0]
    about = described(kind)[field]
    accepted = field_types(kind, field)
    if about.choices:
        kinds = [f"Literal[{', '.join(map(repr, about.choices))}]"]
    elif about.is_path:
        kinds = ["str", "os.PathLike[str]"]
    elif any(each not in (int, float, bool, str, type(None)) for each in accepted):
        kinds = ["str", "Sequence[str]"]
    else:
        kinds = [each.__name__ for each in accepted if each is not type(None)]
    return " | ".join([*kinds, "None"] if type(None) in accepted else kinds)


def grouped() -> dict[str, list[str]]:
    """Group of options -> its fields; those that an optimiser or a method has of its own follow the choice of it."""
    owned = {own.choice: list(own.by_option()) for own in CHOICES}
    return {
        panel.title: [each for name in described(panel) for each in (name, *owned.get(name, ()))] for panel in PANELS
    }


def told(field: str) -> tuple[str, str | None]:
    """What a field is for, and its default in words where the field's own does not say it."""
    kinds = known()[field]
    if kinds == (TrainConfig,):
        about = described(TrainConfig)[field]
        return about.help, about.default_in_words
    own = next(own for own in CHOICES if field in own.by_option())
    helps: dict[str, list[str]] = {}
    defaults: dict[Any, list[str]] = {}
    for entry, kind in own.by_option()[field].items():
        about = described(kind)[field]
        helps.setdefault(about.help, []).append(entry)
        default = about.default_in_words or default_of(kind, field)
        defaults.setdefault(default, []).append(entry)
    for_all = len(kinds) == len(own.registry.names)
    if for_all and len(defaults) == 1:
        shown = str(next(iter(defaults)))
    else:
        shown = "; ".join(f"{value} for {', '.join(entries)}" for value, entries in defaults.items())
    said = (text if len(helps) == 1 else f"{', '.join(of)}: {text}" for text, of in helps.items())
    return " ".join(said), shown


def default_of(kind: type, field: str) -> Any:
    """The default of a dataclass's field; MISSING if it has none."""
    return next(each.default for each in fields(kind) if each.name == field)


@cache
def fields_by_name() -> dict[str, str]:
    """Every name of every option -> its field."""
    found = {name: field for field, kinds in known().items() for name in spellings(kinds[0], field)}
    return {field: field for field in known()} | found


def field_of(name: str, what: str) -> str:
    """The field that is called `name`; FeatherbackError, with names near it, if none is. `what` asks, in messages."""
    field = fields_by_name().get(name.replace("-", "_"))
    if field is None:
        names = [each for field, kinds in known().items() for each in spellings(kinds[0], field)]
        lists = "help(featherback.train)" if in_python() else "featherback train --help"
        hint = did_you_mean(near(name, names)) or f" `{lists}` lists them."
        raise FeatherbackError(f"{what} has no option {name!r}.{hint}")
    return field


def given(field: str, value: Any) -> Any:
    """A value that a person wrote as the field's own, checked; FeatherbackError if the field cannot have it.

    An option of several optimisers or methods is checked by the first; the one that is chosen does so once more.
    """
    kind = known()[field][0]
    about = described(kind)[field]
    return checked(kind, field, value if about.given is None or value is None else about.given(value))


def fields_of(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The fields that are meant by options of any name, with the values that are meant; FeatherbackError as above, or
    if an option is given by two names.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in options.items():
        field = field_of(name, what)
        if field in found:
            raise FeatherbackError(f"{names[field]} and {name} are the same option; name one of them.")
        found[field], names[field] = given(field, value), name
    return found
