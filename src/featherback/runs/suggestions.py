"""Advice about an option that does not exist: what replaces it, or which option was probably meant.

Advice follows from the meaning of an option's name, not from its spelling: `other_names` has the options of other
tools. Only typing errors are recognised by spelling.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache

from featherback.core.naming import argument, in_python, spelled_option
from featherback.core.options import as_word
from featherback.errors import did_you_mean
from featherback.runs.names import aliases, fields_by_name, known, usual_name
from featherback.runs.other_names import IN_COMMANDS, LACKING, REPLACED, SAME_AS

_PLACE = re.compile(r"\{(\w+)(?: (\S+))?\}")
_MOST = 3
"""Options that are suggested at once."""
_LONGEST = 100
"""Letters of a name that are compared with others."""
_ALIKE = 0.75
"""Least similarity of a misspelt name, as SequenceMatcher.ratio() gives it: one wrong letter in four."""


def advice(name: str, among: Collection[str] | None = None) -> str:
    """Sentences, after a space, about an unknown option; empty if there is nothing to say.

    `among`: the options that exist where it was used, as words ("rank"); None for all options of training.
    """
    spell = _in_file if among is None else spelled_option
    among = list(map(usual_name, known()) if among is None else among)
    names = {each: usual for each, usual in _names().items() if usual in among} | {each: each for each in among}
    told = {**REPLACED, **LACKING}
    replaced = [each for each in told if _mentions(told[each]) <= {*among, "resume"}]
    meant = nearest(name, [*replaced, *names])
    begun = dict.fromkeys(usual for each, usual in names.items() if each.startswith(f"{_folded(name)}_"))
    if begun and (meant is None or _squeezed(meant) != _squeezed(name)):
        return did_you_mean([spell(usual) for usual in begun][:_MOST])
    if meant in names:
        same = f" It is the same as `{spell(names[meant])}`." if meant in aliases() else ""
        return did_you_mean([spell(meant if same else names[meant])]) + same
    return "" if meant is None else f" {with_options(told[meant])}"


def with_options(text: str) -> str:
    """Return a text of REPLACED or LACKING with its options as they are written: {rank 8} as `--rank 8`."""
    return _PLACE.sub(_option, text)


def _in_file(name: str) -> str:
    """An option's name as it is written in a file of options, and in Python."""
    return spelled_option(name) if in_python() else name


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of these names that was probably meant: the same but for dashes, or a typing error away; else None."""
    from difflib import get_close_matches

    word = _squeezed(name)[:_LONGEST]
    spelled = {_squeezed(each): each for each in names}
    near = [word] if word in spelled else get_close_matches(word, spelled, n=1, cutoff=_ALIKE)
    return spelled[near[0]] if near else None


@cache
def _names() -> dict[str, str]:
    """Map every name of a training option, and every other tool's option that means the same, to its usual name."""
    ours = {name: usual_name(field) for name, field in fields_by_name().items()}
    return {name: usual_name(same) for name, same in SAME_AS.items()} | dict(IN_COMMANDS) | ours


def _mentions(text: str) -> set[str]:
    return {match[1] for match in _PLACE.finditer(text)}


def _option(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    return f"`{argument(name) if value is None else argument(name, _number(value))}`"


def _number(text: str) -> object:
    """Convert text to a number if it is one, so that messages show it without quotes."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _folded(name: str) -> str:
    return as_word(name.strip().lower())


def _squeezed(name: str) -> str:
    return _folded(name).replace("_", "")
