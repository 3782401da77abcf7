"""What people write for the options of training, as the options' values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from numbers import Real

from featherback.core.naming import argument, argument_is
from featherback.core.options import UnclearError
from featherback.core.sizes import MB
from featherback.data.source import columns_of
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.methods.memory.plan import BUDGETS
from featherback.models import families
from featherback.models.architecture.names import parse_targets

MOST_MEMORY = 1 << 60  # bytes
MOST_BARE = 10**6  # megabytes: a larger number without a unit was meant as bytes
_UNITS = {
    "": MB, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
    "K": 10**3, "M": MB, "G": 10**9, "KB": 10**3, "MB": MB, "GB": 10**9,
}  # fmt: skip


def memory(text: str) -> int:
    """Bytes from "96MB", "1.5 GB", "64MiB" (decimal or binary units), or from "96", which means megabytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None:
        raise FeatherbackError(
            f"{argument_is('memory', repr(text))}; write an amount such as 96MB or 1.5GB, or least or max."
            f"{did_you_mean(near(text, ('least', 'max')))}"
        )
    if not match[2] and float(match[1]) >= MOST_BARE:
        raise FeatherbackError(
            f"{argument_is('memory', text)}: a number alone means megabytes; write an amount such as 96MB, 1.5GB "
            f"or {text}B."
        )
    amount = float(match[1]) * unit
    if amount >= MOST_MEMORY:
        raise FeatherbackError(
            f"{argument('memory')} is more than any machine has; write an amount such as 96MB or 1.5GB, or least or "
            f"max."
        )
    return int(amount)


def size(given: object) -> object:
    """Bytes, or one of the words of `Plan.budget`; any other text is read by `memory`."""
    if isinstance(given, str):
        word = given.strip().lower()
        return word if word in BUDGETS else memory(given)
    return given


def megabytes(given: object) -> object:
    """Bytes, where a person gives a number."""
    return memory(str(given)) if isinstance(given, Real) and not isinstance(given, bool) else given


def written_size(amount: int | str) -> str:
    """Bytes, or a word, as `size` reads them."""
    if isinstance(amount, str):
        return amount
    return f"{amount}B" if amount % MB else f"{amount // MB}MB"


def paths(given: object) -> tuple[str, ...]:
    """Files of data; one may stand alone."""
    if isinstance(given, (str, os.PathLike)):
        return (os.fspath(given),)
    if isinstance(given, (list, tuple)) and given and all(isinstance(path, (str, os.PathLike)) for path in given):
        return tuple(map(os.fspath, given))
    raise UnclearError("it must be text, or a list of texts.")


def start(given: object) -> object:
    """A path; "none" is none."""
    if given == "":
        raise UnclearError("name a run or an adapter, or none.")
    return None if given == "none" else given


def columns(given: object) -> tuple[str, ...]:
    """Pairs such as "prompt=question"."""
    pairs = (given,) if isinstance(given, str) else given
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(pair, str) for pair in pairs):
        raise UnclearError("write pairs such as prompt=question.")
    columns_of(pairs)
    return tuple(pairs)


def targets(given: object) -> tuple[str, ...]:
    """Projections that some family has; "all" stays until the model is known."""
    names = _names(given, "write all, or a list such as q,v.")
    return ("all",) if "all" in names else parse_targets(names, families.PROJECTIONS)


def patterns(given: object) -> tuple[str, ...]:
    """Names, in which * stands for anything."""
    advice = "write a list of names such as embed_tokens,layers.0.*."
    names = _names(given, advice)
    if not names or not all(names):
        raise UnclearError(advice)
    return names


def listed(known: Collection[str], write: str, given: object) -> tuple[str, ...]:
    """Some of the names `known`, in their order; "none" is none of them. `write`: what is advised for anything else."""
    named = set(_names(given, f"write {write}.")) - {"none"}
    if named - set(known):
        raise UnclearError(f"write {write}.")
    return tuple(name for name in known if name in named)


def warmup(given: object) -> object:
    """A whole number of steps as int, a share of them as float."""
    try:
        amount = float(given) if isinstance(given, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        amount = math.nan
    if isinstance(given, bool) or not (amount < 1 or amount.is_integer()):
        raise UnclearError("write a number of steps, or a share of them below 1.")
    return int(amount) if amount.is_integer() else amount


def _names(given: object, advice: str) -> tuple[str, ...]:
    """Names in a list, or between commas."""
    names = given.split(",") if isinstance(given, str) else given
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        return tuple(name.strip() for name in names)
    raise UnclearError(advice)
