"""Which cases `make test` runs, and which only `make test-all` runs.

Each case belongs to one tier. A case is left to the full tier if it has the mark `full`, and it gets that mark in one
of three ways:

- by hand, `@pytest.mark.full("why")`, on a function, on a case (`pytest.param(..., marks=...)`) or as `pytestmark`;
- by its instruction set (a parameter called `isa`): the default tier runs the reference and the fastest one of this
  CPU;
- by its other parameters, where a test has several: the default tier runs a part of all combinations. In the folders
  `WHOLE_MODELS`, whose cases train or read whole models, every value of each parameter still occurs; elsewhere every
  pair of values does.

Tests that plant faults are never left out: `PLANTS` recognises them, and marking one `full` is an error.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

from featherback.engine import kernels

PLANTS = re.compile(r"(?<!de)fault|plant|is_found|(is|are)_caught")  # in the name of a test or of a parameter
REFERENCE = "reference"
WHOLE_MODELS = tuple(f"tests/{name}/" for name in ("exports", "infer", "methods", "models", "optim", "runs"))


def some(values: Iterable[Any], count: int) -> list[Any]:
    """Values of a parameter, all but the first `count` of them for the full tier alone."""
    rest = pytest.mark.full("others of its kind stand for it")
    return [value if index < count else pytest.param(*_tuple(value), marks=rest) for index, value in enumerate(values)]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def mark(items: Sequence[pytest.Item]) -> None:
    """Add the mark `full` to every item that the default tier leaves out."""
    functions: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if any(PLANTS.search(name) for name in (item.originalname, *_parameters(item))):
            if item.get_closest_marker("full"):
                raise pytest.UsageError(f"{item.nodeid} plants a fault: it must run in the default tier")
        elif not item.get_closest_marker("full") and hasattr(item, "callspec"):
            functions[item.nodeid.partition("[")[0]].append(item)
    for cases in functions.values():
        for item in _left_out(cases):
            item.add_marker(pytest.mark.full("another case stands for it"))


def _parameters(item: pytest.Function) -> tuple[str, ...]:
    return tuple(item.callspec.params) if hasattr(item, "callspec") else ()


def _left_out(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Return the cases of one test function that the default tier does not need."""
    usual = {REFERENCE, kernels.available()[-1]}
    chosen = [case for case in cases if case.callspec.params.get("isa", REFERENCE) in usual] or cases
    # One identifier for each `parametrize` and each fixture with parameters: what is given together stays together.
    size = 1 if cases[0].nodeid.startswith(WHOLE_MODELS) else 2
    kept = covering([tuple(enumerate(case.callspec._idlist)) for case in chosen], size)
    ids = {id(chosen[index]) for index in kept}
    return [case for case in cases if id(case) not in ids]


def covering(rows: Sequence[tuple[Hashable, ...]], size: int) -> list[int]:
    """Return the indices of rows that together have every combination of `size` entries that occurs in `rows`.

    Greedy: each time a row with the most new combinations; of several, the one whose entries were taken least often, so
    that each value of a parameter meets many of the others'.
    """
    size = min(size, *(len(row) for row in rows)) if rows else size
    wanted = [set(combinations(row, size)) for row in rows]
    left = set().union(*wanted)
    taken: Counter[Hashable] = Counter()
    heap = [(-len(each), 0, index) for index, each in enumerate(wanted)]
    heapq.heapify(heap)
    kept: list[int] = []
    while left:
        *known, index = heapq.heappop(heap)
        now = [-len(wanted[index] & left), sum(taken[entry] for entry in rows[index])]
        if now != known:  # others were taken since; a row never moves forward
            heapq.heappush(heap, (*now, index))
            continue
        kept.append(index)
        left -= wanted[index]
        taken.update(rows[index])
    return sorted(kept)
