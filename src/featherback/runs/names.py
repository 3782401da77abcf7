"""The names of training options in Python and in option files ("lr", "seq_len"), as opposed to flags."""

from __future__ import annotations

import keyword
from dataclasses import fields, replace
from functools import cache
from typing import Any

from featherback.core.options import Option, as_word, described, field_types, flags
from featherback.runs.config import CHOICES, PANELS, TrainConfig


def spellings(kind: type, field: str) -> tuple[str, ...]:
    """Return a field's names as words, the usual one first: ours, then those of other tools.

    If ours is a Python keyword (`from`), the field's own name is added.
    """
    words = [as_word(flag) for flag in flags(kind, field)]
    own = [field] if keyword.iskeyword(words[0]) else []
    return tuple(dict.fromkeys([*words, *own, *map(as_word, described(kind)[field].aliases)]))


@cache
def aliases() -> dict[str, str]:
    """Another tool's name of an option, which is accepted beside ours, as a word -> our field."""
    return {as_word(flag): field for field, kinds in known().items() for flag in described(kinds[0])[field].aliases}


def usual_name(field: str) -> str:
    """The name by which messages call a field, as a word: "lr"."""
    return as_word(flags(kinds_of(field)[0], field)[0])


@cache
def known() -> dict[str, tuple[type, ...]]:
    """Return field -> the dataclasses that describe it: TrainConfig, or the optimisers or methods that have it."""
    found: dict[str, tuple[type, ...]] = dict.fromkeys(described(TrainConfig), (TrainConfig,))
    for own in CHOICES:
        found |= {name: tuple(kinds.values()) for name, kinds in own.by_option().items()}
    return found


def kinds_of(field: str) -> tuple[type, ...]:
    """Return the dataclasses that describe a field. Optimisers and methods are only loaded if it is one of theirs."""
    return (TrainConfig,) if field in described(TrainConfig) else known()[field]


def python_names(field: str) -> tuple[str, ...]:
    """Return the names of a field that can be keyword arguments, the usual one first."""
    return tuple(name for name in spellings(kinds_of(field)[0], field) if not keyword.iskeyword(name))


def python_type(field: str) -> str:
    """Return the Python annotation of the values that a field accepts."""
    kind = kinds_of(field)[0]
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


def grouped(all_of_choices: bool = True) -> dict[str, list[str]]:
    """Return group of options -> its fields.

    `all_of_choices`: with the options of optimisers, methods and so on, which follow the field that selects one.
    """
    owned = {own.choice: list(own.by_option()) for own in CHOICES if all_of_choices}
    return {
        panel.title: [each for name in described(panel) for each in (name, *owned.get(name, ()))] for panel in PANELS
    }


@cache
def combined(field: str) -> Option:
    """Return the description of a field. If several optimisers or methods have it, it says what they say together."""
    kinds = kinds_of(field)
    about = described(kinds[0])[field]
    if kinds == (TrainConfig,):
        return about
    own = next(own for own in CHOICES if field in own.by_option())
    helps: dict[str, list[str]] = {}
    defaults: dict[Any, list[str]] = {}
    for entry, kind in own.by_option()[field].items():
        each = described(kind)[field]
        helps.setdefault(each.meaning, []).append(entry)
        defaults.setdefault(each.default_in_words or default_of(kind, field), []).append(entry)
    usual, *others = sorted(defaults, key=lambda value: -len(defaults[value]))
    exceptions = "; ".join(f"{', '.join(defaults[value])}: {value}" for value in others)
    texts = [text if len(helps) == 1 else f"{', '.join(of)}: {text}" for text, of in helps.items()]
    entries = list(own.by_option()[field])
    if len(helps) == 1 and len(entries) < len(own.registry.names):
        texts.append(f"Only with --{own.choice} {' or '.join(filter(None, (', '.join(entries[:-1]), entries[-1])))}.")
    return replace(
        about,
        help=" ".join(texts),
        shown_default=f"{usual}; {exceptions}" if others else str(usual),
        choices=tuple(dict.fromkeys(choice for kind in kinds for choice in described(kind)[field].choices)),
    )


def accepted(field: str) -> tuple[Any, ...]:
    """Return the types that a field accepts; those of all optimisers or methods that have it."""
    return tuple(dict.fromkeys(each for kind in kinds_of(field) for each in field_types(kind, field)))


def default_of(kind: type, field: str) -> Any:
    """Return the default of a dataclass's field; MISSING if it has none."""
    return next(each.default for each in fields(kind) if each.name == field)


@cache
def fields_by_name() -> dict[str, str]:
    """Return every name of every option -> its field."""
    found = {name: field for field, kinds in known().items() for name in spellings(kinds[0], field)}
    return {field: field for field in known()} | found
