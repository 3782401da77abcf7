"""Parsers: convert what users write for training options to the options' values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from numbers import Real

from featherback.core.naming import argument_is
from featherback.core.options import UnclearError
from featherback.core.sizes import MB
from featherback.data.source import columns_of, table_options
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.methods.memory.plan import BUDGETS
from featherback.models.architecture.layer_choice import FORMS, layer_range, layer_words
from featherback.models.architecture.names import ATTENTION, EXPERTS, MLP, on_request, parse_targets, short
from featherback.models.families import projections

MANY = 10**7
"""More layers than any model has."""
MOST_MEMORY = 1 << 60  # bytes
MOST_BARE = 10**6  # megabytes; the user of a larger number without a unit probably meant bytes
_UNITS = {
    "": MB, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
    "K": 10**3, "M": MB, "G": 10**9, "KB": 10**3, "MB": MB, "GB": 10**9,
}  # fmt: skip


def memory(text: str) -> int:
    """Return the bytes of "96MB", "1.5 GB", "64MiB" (decimal or binary units) or "96", which means megabytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None:
        raise FeatherbackError(
            f"{argument_is('memory', repr(text))}; write an amount such as 96MB or 1.5GB, or least or max."
            f"{did_you_mean(near(text, ('least', 'max')))}"
        )
    if not match[2] and float(match[1]) >= MOST_BARE:
        raise FeatherbackError(
            f"{argument_is('memory', text)}; a number without a unit means megabytes. Write an amount such as "
            f"96MB, 1.5GB or {text}B."
        )
    amount = float(match[1]) * unit
    if amount >= MOST_MEMORY:
        raise FeatherbackError(
            f"{argument_is('memory', text)}, more than any machine has; write an amount such as 96MB or 1.5GB, or "
            f"least or max."
        )
    return int(amount)


def amount(option: str, text: str) -> int:
    """Return the bytes of "500MB" or "4 GB", for an option that has no words. Raises FeatherbackError otherwise."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None or not MB <= float(match[1]) * unit < MOST_MEMORY:
        raise FeatherbackError(f"{argument_is(option, repr(text))}; write an amount of at least 1MB, such as 4GB.")
    return int(float(match[1]) * unit)


def vram(given: object) -> object:
    """Return the bytes of a text; other values are returned unchanged."""
    return amount("vram", given) if isinstance(given, str) else given


def size(given: object) -> object:
    """Return bytes, or a word of `Plan.budget`; any other text is parsed by `memory`."""
    if isinstance(given, str):
        word = given.strip().lower()
        return word if word in BUDGETS else memory(given)
    return given


def megabytes(given: object) -> object:
    """Return the bytes of a number of megabytes; other values are returned unchanged."""
    return memory(str(given)) if isinstance(given, Real) and not isinstance(given, bool) else given


def written_size(amount: int | str) -> str:
    """Return bytes, or a word of `Plan.budget`, as text that `size` parses."""
    if isinstance(amount, str):
        return amount
    return f"{amount}B" if amount % MB else f"{amount // MB}MB"


def paths(given: object) -> tuple[str, ...]:
    """Return a tuple of data paths from one path or a list of them."""
    if isinstance(given, (str, os.PathLike)):
        return (os.fspath(given),)
    if isinstance(given, (list, tuple)) and given and all(isinstance(path, (str, os.PathLike)) for path in given):
        return tuple(map(os.fspath, given))
    raise UnclearError("it must be text, or a list of texts.")


def path(given: object) -> object:
    """Return a path as text; other values are returned unchanged."""
    return os.fspath(given) if isinstance(given, os.PathLike) else given


def names(given: object) -> tuple[str, ...]:
    """Return a tuple of at least two different names from "a,b" or a list."""
    parts = given.split(",") if isinstance(given, str) else given
    if isinstance(parts, (list, tuple)) and all(isinstance(each, (str, int)) for each in parts):
        found = tuple(str(each).strip() for each in parts)
        if len(found) > 1 and len(set(found)) == len(found) and all(found):
            return found
    raise UnclearError("it must be at least two different names, such as good,bad.")


def boolean(given: object) -> object:
    """True or False, or text that means one of them."""
    word = given.strip().lower() if isinstance(given, str) else given
    if word in ("true", "false"):
        return word == "true"
    if isinstance(given, bool):
        return given
    raise UnclearError("it must be true or false.")


def start(given: object) -> object:
    """Return the path, or None for "none"."""
    if given == "":
        raise UnclearError("give a run or an adapter, or the word none.")
    return None if given == "none" else given


def columns(given: object) -> tuple[str, ...]:
    """Return checked pairs such as "prompt=question"."""
    pairs = _texts(given, "write pairs such as prompt=question.")
    columns_of(pairs)
    return pairs


def people(given: object) -> tuple[str, ...]:
    """Return one or several names."""
    return _texts(given, "write a name, as the data spell it.")


def rewards(given: object) -> tuple[str, ...]:
    """Return checked rewards such as "0.2*regex:PATTERN"."""
    from featherback.runs.rewards.written import read

    texts = _texts(given, "write a reward such as numeric or 0.2*regex:PATTERN.")
    for text in texts:
        read(text)
    return texts


def table(given: object) -> tuple[str, ...]:
    """Return checked pairs such as "separator=;"."""
    pairs = _texts(given, "write pairs such as separator=;.")
    table_options(pairs)
    return pairs


def targets(given: object) -> tuple[str, ...]:
    """Return names of projections that some model family has; "all" and "experts" stay until the model is known."""
    names = _names(given, "write all, or a list such as q,v.")
    requested = tuple(name for name in names if name == EXPERTS or on_request(name))
    others = [name for name in names if name not in requested]
    if "all" in others or "all-linear" in others:  # as PEFT calls it
        return ("all", *requested)
    usual = ATTENTION + MLP  # those of other families are looked for only if they are named
    known = usual if set(others) <= {*usual, *short(usual).split(",")} else projections()
    return (*(parse_targets(others, known) if others or not requested else ()), *requested)


def layers(given: object) -> tuple[str, ...]:
    """Return the entries of a choice of layers; shares and numbers of layers stay until the model is known."""
    words = given.split(",") if isinstance(given, str) else given
    if isinstance(words, int) and not isinstance(words, bool):
        words = [words]
    if not isinstance(words, (list, tuple)) or any(isinstance(w, bool) or not isinstance(w, (str, int)) for w in words):
        raise UnclearError(f"write {FORMS}.")
    found = layer_words(words)
    for word in found:
        layer_range(word, MANY)  # rejects what no model can have
    return found


def patterns(given: object) -> tuple[str, ...]:
    """Return name patterns, in which * matches anything."""
    advice = "write a list of names such as embed_tokens,layers.0.*."
    names = _names(given, advice)
    if not names or not all(names):
        raise UnclearError(advice)
    return names


def listed(known: Collection[str], write: str, given: object) -> tuple[str, ...]:
    """Return the names of `known` that are given, in the order of `known`; nothing for "none".

    `write`: the accepted forms, for the error message.
    """
    named = set(_names(given, f"write {write}.")) - {"none"}
    if named - set(known):
        raise UnclearError(f"write {write}.")
    return tuple(name for name in known if name in named)


def warmup(given: object) -> object:
    """Return a number of steps as int, or a share of all steps as float."""
    try:
        amount = float(given) if isinstance(given, (str, int, float)) else math.nan
    except (ValueError, OverflowError):
        amount = math.nan
    if isinstance(given, bool) or not (amount < 1 or amount.is_integer()):
        raise UnclearError("write a number of steps such as 20, or a share of all steps such as 0.05.")
    return int(amount) if amount.is_integer() else amount


def _texts(given: object, advice: str) -> tuple[str, ...]:
    """Return one text, or a list of texts, as a tuple; raises UnclearError with `advice` for anything else."""
    texts = (given,) if isinstance(given, str) else given
    if isinstance(texts, (list, tuple)) and all(isinstance(each, str) and each for each in texts):
        return tuple(texts)
    raise UnclearError(advice)


def _names(given: object, advice: str) -> tuple[str, ...]:
    """Return the names in a list or in comma-separated text; raises UnclearError with `advice` for anything else."""
    return tuple(name.strip() for name in _texts(given.split(",") if isinstance(given, str) else given, advice))
