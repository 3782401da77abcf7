"""What a merge cost, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from featherback.adapters.merging import MergeCost
from featherback.weights.types import TensorType

LOST = 10.0
"""Times the size of an update at which an error leaves nothing to be said of it."""


def merge_notes(
    cost: MergeCost, types: Counter[TensorType], changed: Mapping[TensorType, TensorType]
) -> list[str]:
    """Lines about a merge: the types, and what storing the merged weights did to them."""
    stored = ", ".join(f"{count} matrices as {kind.name}" for kind, count in types.most_common())
    notes = [f"merged: {stored}; everything else is the base's, byte for byte"]
    for kind, chosen in changed.items():
        notes.append(f"{kind.name} cannot be written by Featherback: {chosen.name} was chosen in its place")
    notes.append(
        f"error of storing them: {_percent(cost.relative_error)} of the merged weights (relative Frobenius norm); "
        f"the adapter's update is {_percent(cost.relative_update)} of them"
    )
    if cost.noise > LOST:
        notes.append(f"the update is lost in that error, which is {cost.noise:.0f} times its size")
    elif cost.update:
        notes.append(
            f"of the update {_percent(cost.surviving)} survives, beside an error of {cost.noise:.2g} times its size"
        )
    if cost.noise > 1:
        notes.append(
            "the error is larger than the update: --type q8_0 or f16 keeps more, and an adapter that is not merged "
            "keeps all"
        )
    return notes


def merge_facts(cost: MergeCost, types: Counter[TensorType]) -> dict[str, Any]:
    """The same as numbers."""
    return {
        "types": {kind.name: count for kind, count in types.items()},
        "relative_error": cost.relative_error,
        "relative_update": cost.relative_update,
        "surviving": cost.surviving,
        "noise": cost.noise,
    }


def _percent(share: float) -> str:
    return f"{share:.3%}" if share < 0.001 else f"{share:.2%}"
