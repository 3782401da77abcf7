"""The memory account of a command: what one run names is enough for the next, whose programs take somewhat more."""

from __future__ import annotations

import os

import pytest

from featherback.core.sizes import MB
from featherback.runs.account import BETWEEN_RUNS, Account


@pytest.mark.parametrize("more", [-MB, 0, BETWEEN_RUNS - MB])
def test_a_named_budget_is_enough_for_a_run_that_takes_more(more: int) -> None:
    """Regression: the margin between two runs was added again to what the second run used."""
    search = Account()
    search.add_used(60 * MB)
    named = Account(limit=search.needed)
    named.add_used(60 * MB + more)
    assert not named.is_over


def test_more_than_the_budget_is_noticed() -> None:
    for used, is_over in ((59 * MB, False), (59 * MB + 1, True), (70 * MB, True)):
        account = Account(limit=60 * MB)
        account.add_used(used)
        assert account.is_over == is_over
        assert account.needed == used + BETWEEN_RUNS


def test_what_a_plan_needs_has_its_own_margin() -> None:
    account = Account(limit=60 * MB)
    account.add_used(40 * MB)
    account.add(50 * MB)
    assert account.needed == 50 * MB


def test_what_a_waiting_process_holds_is_counted() -> None:
    alone, beside = Account(), Account(root=os.getppid())
    for account in (alone, beside):
        account.add_peak(60 * MB)
    assert alone.used == 60 * MB
    assert beside.used > alone.used
