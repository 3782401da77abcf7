"""How rewards are written: [WEIGHT*]KIND[:ARGUMENT], such as numeric, 0.2*regex:PATTERN or command:./score.py."""

from __future__ import annotations

import re
from typing import NamedTuple

from featherback.core.options import UnclearError

_FORM = re.compile(r"(?:\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*\*\s*)?([A-Za-z_-]+)\s*(?::(.*))?", re.DOTALL)
PYTHON = "python"
"""The kind of a function from Python, with its name as the argument."""


class Written(NamedTuple):
    """A reward as the user wrote it."""

    weight: float
    kind: str
    argument: str


def read(text: str) -> Written:
    """Return what a text says. Raises UnclearError if it does not name a reward, or lacks its argument."""
    from featherback.errors import FeatherbackError
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
