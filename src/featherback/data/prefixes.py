"""Store prefixes that sequences of a batch have in common only once: docs/derivations/prefixes.md."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import IGNORE, Batch, ExtraTargets, Int32

LEAST = 8
"""Fewest tokens worth sharing. Shorter prefixes, such as the header of every chat, save less than they cost."""
ALONE = -1
"""Value in `Batch.prefix` of a sequence that continues no other."""


def share_prefixes(batch: Batch) -> Batch:
    """Turn common prefixes of a batch's sequences into separate sequences, placed before those that continue them.

    If this saves nothing, the batch is returned unchanged. Supervised tokens are never shared, because each contributes
    to the loss of its own sequence.
    """
    bounds = [slice(int(a), int(b)) for a, b in pairwise(batch.cu_seqlens)]
    free = [_unsupervised(batch.targets[place]) for place in bounds]
    candidates = [s for s, count in enumerate(free) if count >= LEAST]
    if len(candidates) < 2:
        return batch
    order = sorted(candidates, key=lambda s: batch.tokens[bounds[s]].tolist())
    common = [
        min(free[a], free[b], _common(batch.tokens[bounds[a]], batch.tokens[bounds[b]])) for a, b in pairwise(order)
    ]
    _, found = _best(common, 0, len(order))
    if not found:
        return batch
    groups = [(sorted(order[first:last]), length) for first, last, length in found]
    shared = {s for members, _ in groups for s in members}
    groups += [([s], 0) for s in range(len(bounds)) if s not in shared]
    places: list[slice] = []
    prefix: list[int] = []
    origin: list[int] = []
    for members, length in sorted(groups):
        start = ALONE
        if length:
            start = len(places)
            first = bounds[members[0]].start
            places.append(slice(first, first + length))
            prefix.append(ALONE)
            origin.append(ALONE)
        for s in members:
            places.append(slice(bounds[s].start + length, bounds[s].stop))
            prefix.append(start)
            origin.append(s)
    rows = np.concatenate([np.arange(place.start, place.stop) for place in places])
    cu_seqlens = np.cumsum([0, *(place.stop - place.start for place in places)], dtype=np.int32)
    return replace(
        batch,
        tokens=batch.tokens[rows],
        targets=batch.targets[rows],
        positions=batch.positions[rows],
        cu_seqlens=cu_seqlens,
        prefix=np.array(prefix, np.int32),
        origin=np.array(origin, np.int32),
        rows=rows,
        weights=None if batch.weights is None else batch.weights[rows],
        rollouts=None if batch.rollouts is None else batch.rollouts.at(rows),
        further=None if batch.further is None else _reordered(batch.further, rows),
    )


def _reordered(further: ExtraTargets, rows: NDArray[np.intp]) -> ExtraTargets:
    """Adapt the targets to a new order of tokens. `rows` are the kept tokens; each supervised token occurs once."""
    order = np.argsort(rows)
    places = order[np.searchsorted(rows, further.rows, sorter=order)]
    again = np.argsort(places, kind="stable")
    owners = None if further.sequences is None else further.sequences[again]
    return ExtraTargets(places[again].astype(np.int32), further.ids[again], further.weights[again], owners)


def _unsupervised(targets: Int32) -> int:
    """Count the leading tokens that may be shared: those without a target, but at most all except the last."""
    supervised = np.flatnonzero(targets != IGNORE)
    return int(supervised[0]) if supervised.size else len(targets) - 1


def _common(a: Int32, b: Int32) -> int:
    """Return the length of the common prefix of two sequences."""
    shorter = min(len(a), len(b))
    differing = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differing[0]) if differing.size else shorter


def _best(common: list[int], first: int, last: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Find the groups of the sorted sequences [first, last) that save the most tokens by sharing a prefix.

    Return the number of saved tokens and the groups as (first, last, prefix length). `common[i]` is the length of the
    common prefix of sequences i and i + 1. Either all sequences form one group, or they are split where they share
    least.
    """
    if last - first < 2:
        return 0, []
    length = min(common[first : last - 1])
    whole = length * (last - first - 1) if length >= LEAST else 0
    cuts = [first, *(i + 1 for i in range(first, last - 1) if common[i] == length), last]
    parts = [_best(common, a, b) for a, b in pairwise(cuts)]
    saved = sum(part for part, _ in parts)
    if whole and whole >= saved:
        return whole, [(first, last, length)]
    return saved, [group for _, groups in parts for group in groups]
