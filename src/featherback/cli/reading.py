"""The words of a command line, read: the command's function and the values of its parameters."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING
from itertools import pairwise
from typing import Any

from featherback.cli.parameters import Parameter
from featherback.core.options import as_word
from featherback.core.terminal import quoted
from featherback.errors import FeatherbackError

NAMES_OFTEN_LEFT_OUT = ("data", "prompt")
"""Options whose values people write directly after MODEL."""


def values_of(name: str, parameters: Sequence[Parameter], words: list[str]) -> dict[str, Any]:
    """Return the values for the words after the command `name`: parameter -> value.

    Raises FeatherbackError, in one sentence, for an option that does not exist, a value that it does not accept, and a
    word that is missing or too many.
    """
    end = words.index("--") if "--" in words else len(words)
    given, rest = _options(parameters, [_with_dashes(word) for word in words[:end]])
    if unknown := next((word for word in rest if word.startswith("-") and word != "-"), None):
        raise FeatherbackError(_unknown(unknown.partition("=")[0], parameters) + f" See {_help_of(name)}-all.")
    found = _with_arguments(name, parameters, words, given, rest + words[end + 1 :])
    for each in parameters:
        if each.name not in found and each.default is MISSING and not each.optional:
            value = f" Add {each.title} {each.metavar}." if each.flags else ""
            raise FeatherbackError(f"{each.title} is missing.{value} See {_help_of(name)}.")
    read = {each.name: each.read(*found[each.name]) for each in parameters if each.name in found}
    return {each.name: each.default for each in parameters if not each.optional} | read


def has_unknown(parameters: Sequence[Parameter], words: list[str]) -> bool:
    """Whether one of the words is an option that is none of these parameters."""
    known = {flag for each in parameters for flag in (*each.flags, *each.about.aliases)}
    return any(word.startswith("--") and _with_dashes(word).partition("=")[0] not in known for word in words)


def _with_dashes(word: str) -> str:
    """The word with dashes in the name of an option: --lora_r=8 is --lora-r=8."""
    flag, equals, value = word.partition("=")
    return f"{flag.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _options(parameters: Sequence[Parameter], words: list[str]) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    """Return what the options have: parameter -> (text or texts, the other tool's name if that was used); and the words
    that belong to no option.
    """
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )
    owners: dict[str, Parameter] = {}
    for each in parameters:
        for flag in (*each.flags, *each.about.aliases):
            name = flag if flag in each.about.aliases else each.title
            owners[name] = each
            if each.is_switch:
                parser.add_argument(flag, dest=name, action="store_const", const=not flag.startswith("--no-"))
            elif bool in each.accepted:  # other tools use --packing without a value
                parser.add_argument(flag, dest=name, nargs="?", const="true")
            else:
                parser.add_argument(flag, dest=name, action="append" if each.about.several else "store")
    try:
        read, rest = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        flag = str(error.argument_name)
        if any(flag in each.flags for each in parameters if each.is_switch):
            raise FeatherbackError(f"{flag} takes no value.") from None
        dashed = [word for before, word in pairwise(words) if before == flag and not word.startswith("--")]
        how = f" To give it {dashed[0]}, write {flag}={dashed[0]}." if dashed else ""
        raise FeatherbackError(f"{flag} needs a value.{how}") from None
    found: dict[str, tuple[Any, str]] = {}
    for name, value in vars(read).items():
        each = owners[name]
        if each.name in found:
            from featherback.runs.by_name import same_option

            raise FeatherbackError(same_option(found[each.name][1] or as_word(each.title), as_word(name)))
        found[each.name] = (value, as_word(name) if name in each.about.aliases else "")
    return found, rest


def _with_arguments(
    name: str, parameters: Sequence[Parameter], words: list[str], given: dict[str, tuple[Any, str]], rest: list[str]
) -> dict[str, tuple[Any, str]]:
    """Return what is `given`, and the `rest` of the words as the command's arguments."""
    found, left = dict(given), list(rest)
    for each in parameters:
        if each.about.positional and left:
            found[each.name] = (left if each.about.several else left[0], "")
            left = [] if each.about.several else left[1:]
    if not left:
        return found
    free = [each for each in NAMES_OFTEN_LEFT_OUT for known in parameters if known.name == each and each not in found]
    if len(left) == 1 and free:
        place = len(words) - 1 - words[::-1].index(left[0])
        meant = quoted("featherback", name, *words[:place], f"--{free[0]}", *words[place:])
        raise FeatherbackError(f"{left[0]!r} has no option. Did you mean `{meant}`?")
    raise FeatherbackError(f"{left[0]!r} is one word too many. See {_help_of(name)}.")


def _unknown(flag: str, parameters: Sequence[Parameter]) -> str:
    from featherback.runs.suggestions import advice  # rarely

    known = [as_word(flag) for each in parameters for flag in each.flags]
    return f"There is no option {flag}.{advice(flag, known)}"


def _help_of(name: str) -> str:
    return f"featherback {name} --help"
