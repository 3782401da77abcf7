"""Which cases `make test` runs, which only `make test-all` runs, and which combinations of parameters nothing runs.

A case is left to the full tier if it has the mark `full`, and it gets that mark in one of three ways:

- by hand, `@pytest.mark.full("why")`, on a function, on a case (`pytest.param(..., marks=...)`) or as `pytestmark`;
- by its instruction set (a parameter called `isa`): the default tier runs the reference and the fastest one of this
  CPU;
- by its other parameters, where a test has several: the default tier runs a part of all combinations, in which every
  value of each parameter occurs;
- by its family, in the folders `OF_FAMILIES`: the default tier runs the cases `FEW`, which have every kind of layer.
  The tests `EVERY_FAMILY`, which compare each family with transformers and autograd, run all of them.

The full tier runs every pair of values, of all instruction sets too. It runs other combinations only if they are named:
`pytest 'FILE::TEST[CASE]'`.

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
from tests.support import families

PLANTS = re.compile(r"(?<!de)fault|plant|is_found|(is|are)_caught")  # in the name of a test or of a parameter
REFERENCE = "reference"
OF_FAMILIES = ("tests/infer/", "tests/methods/")
FEW = {"llama", "gemma3", "qwen35moe", "gpt-oss", "lfm2moe", "wide-heads", "bitnet"}
EVERY_FAMILY = {
    "tests/infer/test_decoder.py::test_logits_are_those_of_transformers",
    "tests/methods/test_exact_gradients.py::test_every_family",
    "tests/methods/test_expert_adapters.py::test_gradients_are_autograds",
    "tests/methods/test_whole_weights.py::test_every_weight",
}


def some(values: Iterable[Any], count: int) -> list[Any]:
    """Values of a parameter, all but the first `count` of them for the full tier alone."""
    rest = pytest.mark.full("others of its kind stand for it")
    return [value if index < count else pytest.param(*_tuple(value), marks=rest) for index, value in enumerate(values)]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def mark(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Add the mark `full` to every item that the default tier leaves out; return those that both tiers leave out."""
    functions: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if any(PLANTS.search(name) for name in (item.originalname, *_parameters(item))):
            if item.get_closest_marker("full"):
                raise pytest.UsageError(f"{item.nodeid} plants a fault: it must run in the default tier")
        elif not item.get_closest_marker("full") and hasattr(item, "callspec"):
            functions[item.nodeid.partition("[")[0]].append(item)
    left_out: list[pytest.Item] = []
    for cases in functions.values():
        # One identifier for each `parametrize` and each fixture with parameters: what is given together stays together.
        rows = [tuple(enumerate(case.callspec._idlist)) for case in cases]
        default = _default(cases, rows)
        full = covering(rows, 2, default)
        for index, case in enumerate(cases):
            if index in full:
                case.add_marker(pytest.mark.full("another case stands for it"))
            elif index not in default:
                left_out.append(case)
    return left_out


def _parameters(item: pytest.Function) -> tuple[str, ...]:
    return tuple(item.callspec.params) if hasattr(item, "callspec") else ()


def _default(cases: list[pytest.Function], rows: list[tuple[Hashable, ...]]) -> list[int]:
    """Return the indices of the cases of one test function that the default tier runs."""
    usual = {REFERENCE, kernels.available()[-1]}
    chosen = [i for i, case in enumerate(cases) if case.callspec.params.get("isa", REFERENCE) in usual]
    chosen = chosen or [*range(len(cases))]
    test = cases[0].nodeid.partition("[")[0]
    if test.startswith(OF_FAMILIES) and test not in EVERY_FAMILY:
        others = families.cases().keys() - FEW
        chosen = [i for i in chosen if others.isdisjoint(entry for _, entry in rows[i])] or chosen
    return [chosen[index] for index in covering([rows[i] for i in chosen], 1)]


def covering(rows: Sequence[tuple[Hashable, ...]], size: int, taken: Sequence[int] = ()) -> list[int]:
    """Return the indices of rows that, with those `taken`, have every combination of `size` entries in `rows`.

    Greedy: each time a row with the most new combinations; of several, the one whose entries were taken least often, so
    that each value of a parameter meets many of the others'.
    """
    size = min(size, *(len(row) for row in rows)) if rows else size
    wanted = [set(combinations(row, size)) for row in rows]
    left = set().union(*wanted).difference(*(wanted[index] for index in taken))
    often = Counter(entry for index in taken for entry in rows[index])
    heap = [(-len(each), 0, index) for index, each in enumerate(wanted)]
    heapq.heapify(heap)
    kept: list[int] = []
    while left:
        *known, index = heapq.heappop(heap)
        now = [-len(wanted[index] & left), sum(often[entry] for entry in rows[index])]
        if now != known:  # others were taken since; a row never moves forward
            heapq.heappush(heap, (*now, index))
            continue
        kept.append(index)
        left -= wanted[index]
        often.update(rows[index])
    return sorted(kept)
