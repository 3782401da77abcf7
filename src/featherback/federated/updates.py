"""Checks of what a node sends: a broken or malicious update must not reach the adapter.

The server trusts no node. An update must have the adapter's tensors, finite values and a plausible weight, and its norm
must not be far above those of the other updates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from featherback.federated.strategies.base import Arrays

MOST_TOKENS = 1 << 40
"""More supervised tokens than a node can train on in a round."""
KEPT = 64
"""Norms of accepted updates that are remembered."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Update:
    """What a node sent. `change`: its adapter minus the one that it got, or its gradient. `measures`: numbers."""

    node: int
    change: Arrays
    measures: Mapping[str, float]

    @property
    def norm(self) -> float:
        """The Euclidean norm of the change."""
        return math.sqrt(sum(float(np.vdot(each, each)) for each in map(np.float64, self.change.values())))


@dataclass
class Referee:
    """Accepts or rejects updates.

    `largest`: the most times the usual norm that an update may have. A norm of at most `floor` is never absurd, so that
    a node cannot have the others rejected by sending next to nothing.
    """

    shapes: Shapes
    largest: float
    norms: list[float] = field(default_factory=list)
    """Norms of updates that were accepted, the newest last."""

    def judge(self, updates: Sequence[Update], floor: float) -> dict[int, str]:
        """Return the reasons by which updates are rejected: {node: reason}. The norms of the others are remembered."""
        reasons = {each.node: reason for each in updates if (reason := self.problem(each)) is not None}
        norms = {each.node: each.norm for each in updates if each.node not in reasons}
        usual = lower_median([*norms.values(), *self.norms])
        for node, norm in norms.items():
            if norm > max(self.largest * usual, floor):
                reasons[node] = f"its norm is {norm:.3g}, and that of usual updates is {usual:.3g}"
        self.norms = [*self.norms, *(norm for node, norm in norms.items() if node not in reasons)][-KEPT:]
        return reasons

    def problem(self, update: Update) -> str | None:
        """Return what is wrong with an update by itself; None if nothing is."""
        missing = self.shapes.keys() - update.change.keys()
        unknown = update.change.keys() - self.shapes.keys()
        if missing or unknown:
            some = sorted(missing or unknown)[0]
            return f"{some} is {'missing' if missing else 'unknown'}"
        for name, shape in self.shapes.items():
            array = update.change[name]
            if array.shape != shape:
                return f"{name} has the shape {array.shape}, not {shape}"
            if array.dtype != np.float32:
                return f"{name} has the type {array.dtype}, not float32"
            if not np.isfinite(array).all():
                return f"{name} holds NaN or infinity"
        tokens, loss = (update.measures.get(name, math.nan) for name in ("tokens", "loss"))
        if not 0 < tokens < MOST_TOKENS:
            return f"its weight is {tokens} supervised tokens"
        return None if math.isfinite(loss) else f"its loss is {loss}"


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median: of two values the smaller one, so that one huge value cannot excuse itself."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else math.inf
