"""How rewards are written: [WEIGHT*]KIND[:ARGUMENT], such as numeric, 0.2*regex:PATTERN or command:./score.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from featherback.core.naming import argument
from featherback.core.options import UnclearError
from featherback.errors import FeatherbackError

_FORM = re.compile(r"(?:\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*\*\s*)?([A-Za-z_-][A-Za-z0-9_-]*)\s*(?::(.*))?", re.DOTALL)
PYTHON = "python"
"""The kind of a function from Python, with its name as the argument."""
PROGRAMS = ("command", "python_tests")
"""Kinds that run programs, which the reward or the data name."""


class Written(NamedTuple):
    """A reward as the user wrote it."""

    weight: float
    kind: str
    argument: str


def read(text: str) -> Written:
    """Return what a text says. Raises UnclearError if it does not name a reward, or lacks its argument."""
    from featherback.runs.rewards import REWARDS

    match = _FORM.fullmatch(text)
    if match is None:
        raise UnclearError("write KIND, KIND:ARGUMENT or WEIGHT*KIND, such as numeric or 0.2*regex:PATTERN.")
    try:
        weight = float(match[1] or 1)
    except ValueError:
        raise UnclearError(f"{match[1]!r} is not a number.") from None
    kind, argument = match[2].replace("-", "_").lower(), match[3] or ""
    try:
        needs = REWARDS[kind].needs
    except FeatherbackError as error:
        raise UnclearError(f"{str(error)[:1].lower()}{str(error)[1:]}") from None
    if needs is not None and not argument:
        raise UnclearError(f"{kind} needs {needs} after a colon: {kind}:{needs}.")
    return Written(weight, kind, argument)


def check_programs(rewards: Iterable[str], where: object) -> None:
    """Raise FeatherbackError if rewards run programs. `where`: the file that names them, which may be a stranger's."""
    if found := [text for text in rewards if read(text).kind in PROGRAMS]:
        raise FeatherbackError(
            f"{where} judges answers by programs on this machine, and may come from somebody else. If you trust it, "
            f"name all of its rewards again: {argument('reward', list(rewards))}. The program: {found[0]}."
        )
