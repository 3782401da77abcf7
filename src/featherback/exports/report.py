"""Notes and figures about the rounding of changed weights: after a merge, or after conversion of a trained model."""

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
"""If the rounding error is this many times the update, the update counts as lost."""


def merge_notes(merged: MergedGGUF | MergedHF) -> list[str]:
    """Notes about a merge: the types, the reasons for them, and how much of the update survives the rounding."""
    merge = merged.merge
    notes = [f"merged: {_matrices(merged.types)}; everything else was copied byte for byte"]
    for kind, chosen in merge.unwritable.items():
        notes.append(f"Featherback cannot write {kind.name}; it used {chosen.name} instead")
    if merge.finer:
        before = sum(info.nbytes for info in merged.adapter.model.store.tensors.values())
        kinds = Counter[str]()
        for (own, kind), count in merge.finer.items():
            kinds[f"{kind.name} instead of {own.name}"] += count
        listed = ", ".join(f"{name} in {count} matrices" for name, count in kinds.most_common())
        notes.append(
            f"finer types keep the update: {listed}; the base model's types would keep about "
            f"{_percent(merge.own_cost.surviving)} of it. The merged weights take {shown_mb(merged.nbytes, 1)}; the "
            f"base model's weights take {shown_mb(before, 1)}"
        )
    beside = merged.notes if isinstance(merged, MergedHF) else []
    return [*notes, *cost_notes(merge.cost, "the adapter's update"), *beside]


def cost_notes(cost: MergeCost, update: str) -> list[str]:
    """Notes about how much of an update survives the rounding, and how to keep more. `update`: its name."""
    notes = [
        f"rounding error: {_percent(cost.relative_error)} of the weights (relative Frobenius norm); size of {update}: "
        f"{_percent(cost.relative_update)} of the weights"
    ]
    if cost.noise > LOST:
        notes.append(f"{update} is lost: the rounding error is {cost.noise:.0f} times as large as the update")
    elif cost.update:
        notes.append(
            f"{_percent(cost.surviving)} of {update} survives; rounding adds noise {cost.noise:.2g} times as large as "
            "the update"
        )
    if cost.update and not cost.keeps_enough:
        lost = f"most of {update} is lost: " if cost.surviving < 0.5 else ""
        notes.append(
            f"{lost}to keep {ENOUGH:.0%} of it, remove {argument('type')}, or choose a finer type, such as q8_0 or f16"
        )
    return notes


def cost_facts(cost: MergeCost) -> dict[str, Any]:
    """The figures of `cost_notes`."""
    return {
        "relative_error": cost.relative_error,
        "relative_update": cost.relative_update,
        "surviving": cost.surviving,
        "noise": cost.noise,
    }


def merge_facts(merged: MergedGGUF | MergedHF) -> dict[str, Any]:
    """The figures of `merge_notes`."""
    return {"types": type_counts(merged.types), **cost_facts(merged.merge.cost)}


def type_counts(types: Mapping[TensorType, int]) -> dict[str, int]:
    """Name of the type -> number of matrices."""
    return {kind.name: count for kind, count in types.items()}


def _matrices(types: Counter[TensorType]) -> str:
    return ", ".join(f"{count} matrices as {kind.name}" for kind, count in types.most_common())


def _percent(share: float) -> str:
    return f"{share:.3%}" if share < 0.001 else f"{share:.2%}"
