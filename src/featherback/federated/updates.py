"""Checks of what a node sends: a broken or malicious update must not reach the adapter.

The server trusts no node. An update must have the adapter's tensors, finite values and a plausible weight, and its norm
must not be far above those of the other updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback.federated.messages import plain

MOST_TOKENS = 1 << 40
"""More supervised tokens than a node can train on in a round."""
KEPT = 64
"""Norms of accepted updates that are remembered."""

Shapes = Mapping[str, tuple[int, ...]]
Tensors = Mapping[str, npt.NDArray[Any]]
"""Tensors by name. They may come from a node, so nothing about them is sure."""


@dataclass(frozen=True)
class Update:
    """What is known of an answer once its tensors have been read: not they themselves, which would take memory.

    `problem`: what is wrong with it by itself; None if nothing is. `norm`: of the change, if nothing is.
    """

    node: int
    measures: Mapping[str, float]
    problem: str | None
    norm: float = 0.0


def examine(
    node: int, arrays: Tensors, measures: Mapping[str, float], shapes: Shapes, before: Tensors | None
) -> Update:
    """Read an answer. `before`: the adapter that the node got; None if `arrays` are a change themselves.

    Raises FeatherbackError if a tensor cannot be read.
    """
    problem = _problem(arrays, measures, shapes)
    if problem is not None:
        return Update(node, measures, problem)
    squares = 0.0
    for name in shapes:
        change = arrays[name].astype(np.float64) - (before[name] if before is not None else 0)
        squares += float(np.vdot(change, change))
    return Update(node, measures, None, math.sqrt(squares))


def _problem(arrays: Tensors, measures: Mapping[str, float], shapes: Shapes) -> str | None:
    """Return what is wrong with an answer by itself; None if nothing is."""
    missing, unknown = shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys()
    if missing or unknown:
        some = sorted(missing or unknown)[0]
        return f"{plain(some)} is {'missing' if missing else 'unknown'}"
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape:
            return f"{name} has the shape {array.shape}, not {shape}"
        if array.dtype != np.float32:
            return f"{name} has the type {array.dtype}, not float32"
        if not np.isfinite(array).all():
            return f"{name} holds NaN or infinity"
    tokens, loss = (measures.get(name, math.nan) for name in ("tokens", "loss"))
    if not 0 < tokens < MOST_TOKENS:
        return f"its weight is {tokens} supervised tokens"
    return None if math.isfinite(loss) else f"its loss is {loss}"


@dataclass
class Referee:
    """Accepts or rejects updates.

    `largest`: the most times the usual norm that an update may have. A norm of at most `floor` is never absurd, so that
    a node cannot have the others rejected by sending next to nothing.
    """

    largest: float
    norms: list[float] = field(default_factory=list)
    """Norms of updates that were accepted, the newest last."""

    def judge(self, updates: Sequence[Update], floor: float) -> dict[int, str]:
        """Return the reasons by which updates are rejected: {node: reason}. The norms of the others are remembered."""
        reasons = {each.node: each.problem for each in updates if each.problem is not None}
        norms = {each.node: each.norm for each in updates if each.problem is None}
        usual = lower_median([*norms.values(), *self.norms])
        for node, norm in norms.items():
            if norm > max(self.largest * usual, floor):
                reasons[node] = f"its norm is {norm:.3g}, and that of usual updates is {usual:.3g}"
        self.norms = [*self.norms, *(norm for node, norm in norms.items() if node not in reasons)][-KEPT:]
        return reasons


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median: of two values the smaller one, so that one huge value cannot excuse itself."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else math.inf
