"""What sequences of a batch begin with together is laid down once: docs/derivations/prefixes.md."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import IGNORE, Batch, Further, Int32

LEAST = 8
"""Tokens that are worth sharing: fewer, such as the marks that begin every chat, save less than they cost."""
ALONE = -1
"""In `Batch.prefix`: a sequence that continues no other."""


def share_prefixes(batch: Batch) -> Batch:
    """The same batch with the common prefixes of its sequences as sequences of their own, each before those that
    continue it; the batch itself if that saves nothing.

    Supervised tokens are never shared: the loss on each counts for its own sequence.
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
        weights=None if batch.weights is None else batch.weights[rows],
        further=None if batch.further is None else _moved(batch.further, rows),
    )


def _moved(further: Further, rows: NDArray[np.intp]) -> Further:
    """The same targets where `rows` are the tokens that were kept, in order; supervised ones are there once."""
    order = np.argsort(rows)
    places = order[np.searchsorted(rows, further.rows, sorter=order)]
    again = np.argsort(places, kind="stable")
    return Further(places[again].astype(np.int32), further.ids[again], further.weights[again])


def _unsupervised(targets: Int32) -> int:
    """How many tokens may be shared of a sequence: those that predict nothing, but not all of them."""
    supervised = np.flatnonzero(targets != IGNORE)
    return int(supervised[0]) if supervised.size else len(targets) - 1


def _common(a: Int32, b: Int32) -> int:
    """How many tokens two sequences begin with together."""
    shorter = min(len(a), len(b))
    differing = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differing[0]) if differing.size else shorter


def _best(common: list[int], first: int, last: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Sequences [first, last), in the order of their tokens, in groups (first, last, tokens of the prefix) that save
    most, and the tokens that they save. `common[i]`: tokens that sequences i and i + 1 share.

    Either all are one group, or they part where they share least.
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
