"""What storing changed weights cost, in words: an adapter's merge, or a whole training in another number format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from featherback.core.naming import argument
from featherback.core.sizes import shown_mb
from featherback.engine.formats.types import TensorType
from featherback.exports.merged_gguf import MergedGGUF
from featherback.exports.merged_hf import MergedHF
from featherback.exports.merging import ENOUGH, MergeCost

LOST = 10.0
"""Times the size of an update at which an error leaves nothing to be said of it."""


def merge_notes(merged: MergedGGUF | MergedHF) -> list[str]:
    """Lines about a merge: the types, why they are these, and what storing the merged weights did to the update."""
    merge = merged.merge
    notes = [f"merged: {_matrices(merged.types)}; everything else is the base's, byte for byte"]
    for kind, chosen in merge.unwritable.items():
        notes.append(f"{kind.name} cannot be written by Featherback: {chosen.name} was chosen in its place")
    if merge.finer:
        before = sum(info.nbytes for info in merged.adapter.model.store.tensors.values())
        kinds = Counter[str]()
        for (own, kind), count in merge.finer.items():
            kinds[f"{kind.name} in place of {own.name}"] += count
        listed = ", ".join(f"{name} in {count} matrices" for name, count in kinds.most_common())
        notes.append(
            f"finer types keep the update: {listed}, where the base's would keep about "
            f"{_percent(merge.own_cost.surviving)} of it; the weights take {shown_mb(merged.nbytes, 1)}, the base's "
            f"{shown_mb(before, 1)}"
        )
    return [*notes, *cost_notes(merge.cost, "the adapter's update")]


def cost_notes(cost: MergeCost, update: str) -> list[str]:
    """Lines about how much of an `update` of weights survived that they were stored, and what keeps more of it."""
    notes = [
        f"error of storing them: {_percent(cost.relative_error)} of the weights (relative Frobenius norm); {update} is "
        f"{_percent(cost.relative_update)} of them"
    ]
    if cost.noise > LOST:
        notes.append(f"{update} is lost in that error, which is {cost.noise:.0f} times its size")
    elif cost.update:
        notes.append(
            f"of {update} {_percent(cost.surviving)} survives, beside an error of {cost.noise:.2g} times its size"
        )
    if cost.update and not cost.keeps_enough:
        lost = f"most of {update} is lost: " if cost.surviving < 0.5 else ""
        notes.append(
            f"{lost}to keep {ENOUGH:.0%} of it, leave {argument('type')} out, or name a finer type, such as q8_0 or f16"
        )
    return notes


def cost_facts(cost: MergeCost) -> dict[str, Any]:
    """The same as numbers."""
    return {
        "relative_error": cost.relative_error,
        "relative_update": cost.relative_update,
        "surviving": cost.surviving,
        "noise": cost.noise,
    }


def merge_facts(merged: MergedGGUF | MergedHF) -> dict[str, Any]:
    """A merge as numbers."""
    return {"types": type_counts(merged.types), **cost_facts(merged.merge.cost)}


def type_counts(types: Mapping[TensorType, int]) -> dict[str, int]:
    """Matrices by the name of their type."""
    return {kind.name: count for kind, count in types.items()}


def _matrices(types: Counter[TensorType]) -> str:
    return ", ".join(f"{count} matrices as {kind.name}" for kind, count in types.most_common())


def _percent(share: float) -> str:
    return f"{share:.3%}" if share < 0.001 else f"{share:.2%}"
