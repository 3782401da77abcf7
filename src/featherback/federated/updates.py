"""Checks of what a node sends: a broken or malicious update must not reach the adapter.

The server trusts no node. An update must have the adapter's tensors, finite values and a possible weight, and its norm
must not be far above those of the other updates. A weight far above those of the others counts for less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from featherback.federated.messages import plain

MOST_TOKENS = 1 << 40
"""More supervised tokens than a node can train on in a round, whatever its options."""
MOST_LOSS = 100.0
"""Larger than the mean loss of any model that is worth training, in nats per token."""
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


class Verdict(NamedTuple):
    """What the referee decides. `reasons`: why updates are rejected. `weights`: of the others in the mean. By node."""

    reasons: dict[int, str]
    weights: dict[int, float]


def examine(
    node: int,
    arrays: Tensors,
    measures: Mapping[str, float],
    shapes: Shapes,
    before: Tensors | None,
    most_tokens: int = MOST_TOKENS,
) -> Update:
    """Read an answer. `before`: the adapter that the node got; None if `arrays` are a change themselves.

    `most_tokens`: the most supervised tokens that a round can have, as its options say. Raises FeatherbackError if a
    tensor cannot be read.
    """
    problem = _problem(arrays, measures, shapes, most_tokens)
    if problem is not None:
        return Update(node, measures, problem)
    squares = 0.0
    for name in shapes:
        change = arrays[name].astype(np.float64) - (before[name] if before is not None else 0)
        squares += float(np.vdot(change, change))
    return Update(node, measures, None, math.sqrt(squares))


def _problem(arrays: Tensors, measures: Mapping[str, float], shapes: Shapes, most_tokens: int) -> str | None:
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
    return problem_of(measures.get("tokens", math.nan), measures.get("loss", math.nan), most_tokens)


def problem_of(tokens: float, loss: float, most_tokens: int, least: float = -MOST_LOSS) -> str | None:
    """Return what is wrong with a mean loss over this many tokens; None if nothing is.

    `least`: the least possible loss. Some objectives have negative ones.
    """
    if not 0 < tokens <= most_tokens:
        return f"its weight is {tokens} supervised tokens; expected 1 to {most_tokens}"
    return None if least <= loss <= MOST_LOSS else f"its loss is {loss}; expected {least:g} to {MOST_LOSS:g}"


def limited(weights: Mapping[int, float], largest: float) -> dict[int, float]:
    """Return weights of which none is more than `largest` times as large as the usual one, their lower median."""
    most = largest * lower_median(weights.values())
    return {node: min(weight, most) for node, weight in weights.items()}


@dataclass
class Referee:
    """Accepts or rejects updates, and limits their weights.

    `largest`: the most times the usual norm that an update may have. A norm of at most `floor` is never absurd, so that
    a node cannot have the others rejected by sending next to nothing. `largest_weight`: the most times the usual weight
    that an update may have; None: no limit. What moves the mean is weight times norm, so an update with a large norm
    has no extra weight.
    """

    largest: float
    largest_weight: float | None
    norms: list[float] = field(default_factory=list)
    """Norms of updates that were accepted, the newest last."""

    def judge(self, updates: Sequence[Update], floor: float) -> Verdict:
        """Decide on the updates of a round. The norms of those that are accepted are remembered."""
        reasons = {each.node: each.problem for each in updates if each.problem is not None}
        norms = {each.node: each.norm for each in updates if each.problem is None}
        usual = lower_median([*norms.values(), *self.norms])
        most = max(self.largest * usual, floor)
        for node, norm in norms.items():
            if norm > most:
                reasons[node] = f"its norm is {norm:.3g}, and that of usual updates is {usual:.3g}"
        good = [each for each in updates if each.node not in reasons]
        self.norms = [*self.norms, *(each.norm for each in good)][-KEPT:]
        weights = {each.node: each.measures["tokens"] for each in good}
        if self.largest_weight is not None:
            usual_weight = lower_median(weights.values())
            weights = limited(weights, self.largest_weight)
            for each in good:
                times = max(1.0, most / each.norm) if each.norm else math.inf
                weights[each.node] = min(weights[each.node], times * usual_weight)
        return Verdict(reasons, weights)


def lower_median(values: Iterable[float]) -> float:
    """Return the lower median: of two values the smaller one, so that one huge value cannot excuse itself."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else math.inf
