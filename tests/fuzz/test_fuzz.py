"""Damaged files of every kind: a clear refusal or something that works, and nothing else. `make fuzz` tries more."""

from __future__ import annotations

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.run import fuzz

CASES = 250


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind: str) -> None:
    outcomes, findings = fuzz(kind, seed=0, count=CASES)
    assert not findings
    assert sum(outcomes.values()) == CASES
    assert outcomes["accepted"] > CASES // 150  # the mutations reach both
    assert outcomes["refused"] > CASES // 10
