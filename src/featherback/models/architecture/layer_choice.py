"""Which layers an adapter is in: "all", "last:8", "last:25%", or a list of layers and ranges such as "0,5,10-20"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from featherback.core.naming import argument
from featherback.errors import FeatherbackError

ALL = "all"
EVERY = (ALL,)
FORMS = "all, last:8, last:25%, or a list such as 0,5,10-20"
_LAST = re.compile(r"last:(?P<count>\d{1,7}|\d{1,7}(\.\d{1,6})?%)")
_RANGE = re.compile(r"(?P<first>\d{1,7})(-(?P<last>\d{1,7}))?")


def layer_words(given: str | int | Iterable[str | int]) -> tuple[str, ...]:
    """Return the entries of a choice that is given as text, as a number, or as a list of both.

    Raises FeatherbackError for an entry that no model could have.
    """
    entries = str(given).split(",") if isinstance(given, (str, int)) else given
    words = tuple(str(entry).strip() for entry in entries)
    for word in words:
        if word != ALL and not _LAST.fullmatch(word) and not _RANGE.fullmatch(word):
            raise FeatherbackError(f"{argument('layers', word)} is not a choice of layers; write {FORMS}.")
    return words


def chosen_layers(choice: Iterable[str], layers: int) -> tuple[int, ...]:
    """Return the indices of the chosen layers of a model with `layers` layers, ascending.

    A share is rounded down to whole layers, but one layer is always chosen. Raises FeatherbackError for an entry that
    is not a choice of layers, that chooses nothing, or that names a layer which the model does not have.
    """
    found: set[int] = set()
    for word in layer_words(choice):
        found.update(layer_range(word, layers))
    if not found:
        raise FeatherbackError(f"{argument('layers', '')} chooses no layer; write {FORMS}.")
    return tuple(sorted(found))


def layer_range(word: str, layers: int) -> range:
    """Return the layers that one entry of a choice names. Raises FeatherbackError as `chosen_layers` does."""
    given = argument("layers", word)
    if word == ALL:
        return range(layers)
    if match := _LAST.fullmatch(word):
        text = match["count"]
        share = text.endswith("%")
        amount = float(text.rstrip("%"))
        if not amount:
            raise FeatherbackError(f"{given} trains nothing; choose at least one layer, such as last:1.")
        if share and amount > 100:
            raise FeatherbackError(f"{given} is more than all layers; the largest share is last:100%.")
        if not share and amount > layers:
            raise FeatherbackError(f"{given}, but the model has {layers} layers; use {argument('layers', ALL)}.")
        count = max(1, int(amount * layers / 100)) if share else int(amount)
        return range(layers - count, layers)
    if match := _RANGE.fullmatch(word):
        first = int(match["first"])
        last = first if match["last"] is None else int(match["last"])
        if last < first:
            raise FeatherbackError(f"{given} ends before it begins; write {last}-{first}.")
        if last >= layers:
            raise FeatherbackError(f"{given}, but the layers of the model are 0 to {layers - 1}.")
        return range(first, last + 1)
    raise AssertionError(word)  # `layer_words` rejects everything else


def written_layers(chosen: Sequence[int], layers: int) -> tuple[str, ...]:
    """Return the choice of these layers, ascending, in its one normal form: ("all",) or ("0", "5", "10-20")."""
    if len(chosen) == layers:
        return EVERY
    ranges: list[list[int]] = []
    for layer in chosen:
        if ranges and ranges[-1][1] == layer - 1:
            ranges[-1][1] = layer
        else:
            ranges.append([layer, layer])
    return tuple(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def described_layers(choice: Sequence[str]) -> str:
    """Return the choice for a list of an adapter's settings: "layers 22-29, "; empty if all layers are adapted."""
    return "" if tuple(choice) == EVERY else f"layers {','.join(choice)}, "
