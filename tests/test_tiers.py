"""The choice of cases for the default tier."""

from __future__ import annotations

from collections import Counter
from inspect import signature
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest

from featherback.engine import kernels
from tests.support import tiers
from tests.support.sweep import sweep


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_combination_of_so_many_values_stays(size: int) -> None:
    names, counts = "abcd", (5, 4, 3, 2)
    rows = [tuple(zip(names, values)) for values in product(*map(range, counts))]
    kept = [rows[index] for index in tiers.covering(rows, size)]
    wanted, found = ({part for row in each for part in combinations(row, size)} for each in (rows, kept))
    assert found == wanted
    assert len(kept) < 3 * [5, 20, 60][size - 1] / 2


def test_values_meet_many_of_the_others() -> None:
    rows = [(("family", family), ("compute", compute)) for family in range(30) for compute in range(3)]
    kept = [dict(rows[index]) for index in tiers.covering(rows, 1)]
    assert len(kept) == 30
    assert Counter(row["compute"] for row in kept) == {0: 10, 1: 10, 2: 10}


def test_what_stands_for_no_other_case_stays() -> None:
    rows = [(("a", 0), ("b", 0)), (("a", 0), ("b", 1)), (("a", 1), ("b", 0))]
    assert tiers.covering(rows, 2) == [0, 1, 2]
    assert tiers.covering([(("a", 0),), (("a", 1),)], 2) == [0, 1]
    assert tiers.covering([], 2) == []


def test_every_value_stays(make_items: Any) -> None:
    items = make_items("test_sum", a=[*range(5)], b=[*range(4)], c=[*range(3)])
    left_out = tiers.mark(items)
    run = [item.callspec.params for item in items if item not in left_out and not item.marked]
    assert len(run) == 5
    assert [{case[name] for case in run} for name in "abc"] == [{*range(count)} for count in (5, 4, 3)]


def test_the_full_tier_has_every_pair_of_values_of_all_instruction_sets(make_items: Any) -> None:
    if len(sets := kernels.available()) < 3:
        pytest.skip("this CPU has no other instruction sets")
    items = make_items("test_sum", isa=sets, a=[*range(8)], b=[*range(8)])
    left_out = tiers.mark(items)
    run = [item.callspec.params for item in items if item not in left_out]
    assert {(case["isa"], case["a"]) for case in run} == {*product(sets, range(8))}
    assert {(case["a"], case["b"]) for case in run} == {*product(range(8), range(8))}
    assert len(run) < len(items) / 2
    assert any(item.marked for item in items)


def test_the_reference_and_the_fastest_instruction_set_stay(make_items: Any) -> None:
    sets = kernels.available()
    items = make_items("test_sum", isa=sets)
    tiers.mark(items)
    assert [item.callspec.params["isa"] for item in items if not item.marked] == [sets[0], sets[-1]]
    single = make_items("test_sum", isa=[sets[1]])  # asked for by its name
    tiers.mark(single)
    assert not single[0].marked


def test_cases_that_plant_faults_are_never_left_out(make_items: Any) -> None:
    items = make_items("test_a_planted_fault_is_found", a=[0, 1], b=[0, 1], c=[0, 1])
    tiers.mark(items)
    assert not any(item.marked for item in items)
    items[0].add_marker(pytest.mark.full("too long"))
    with pytest.raises(pytest.UsageError, match="plants a fault"):
        tiers.mark(items)


@pytest.fixture
def make_items(request: pytest.FixtureRequest) -> Any:
    """Make items of one function with all combinations of the parameters."""

    def make(function: str, **parameters: list[Any]) -> list[Any]:
        return [
            _Item.of(request.node, function, dict(zip(parameters, chosen)), parameters)
            for chosen in product(*parameters.values())
        ]

    return make


class _Item(pytest.Function):
    """An item with parameters, which belongs to no module's collection."""

    @classmethod
    def of(cls, node: pytest.Item, name: str, params: dict[str, Any], values: dict[str, list[Any]]) -> _Item:
        item = cls.from_parent(node.parent, name=f"{name}[{params}]", callobj=lambda: None)
        item.originalname = name
        ids = [f"{key}{values[key].index(value)}" for key, value in params.items()]
        item.callspec = SimpleNamespace(params=params, _idlist=ids)  # type: ignore[assignment]
        return item

    @property
    def marked(self) -> bool:
        return self.get_closest_marker("full") is not None


def test_a_sweep_meets_every_pair_of_values_and_names_what_fails() -> None:
    met: list[tuple[int, int, str]] = []

    @sweep(*(pytest.mark.parametrize(name, range(5)) for name in "ab"))
    def swept(a: int, b: int, isa: str) -> None:
        met.append((a, b, isa))
        assert (a, b) != (3, 1) or isa == "sound"

    swept(isa="sound")
    assert {*met} == {*product(range(5), range(5), ["sound"])}
    assert [*signature(swept).parameters] == ["isa"]
    with pytest.raises(AssertionError, match=r"^It fails with \{'a': 3, 'b': 1\}"):
        swept(isa="broken")
