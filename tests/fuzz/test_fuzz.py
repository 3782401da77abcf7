"""A damaged file of any kind must either work or be rejected with a clear error. `make fuzz` tries more."""

from __future__ import annotations

import pytest

from tests.fuzz.kinds import KINDS
from tests.fuzz.run import fuzz
from tests.support import tiers


# How many mutations there are, and the least of them that are accepted and refused: they reach both.
@pytest.mark.parametrize(("cases", "accepted", "refused"), tiers.some([(60, 0, 7), (250, 2, 26)], 1))
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(kind: str, cases: int, accepted: int, refused: int) -> None:
    outcomes, findings = fuzz(kind, seed=0, count=cases)
    assert not findings
    assert sum(outcomes.values()) == cases
    assert outcomes["accepted"] >= accepted
    assert outcomes["refused"] >= refused
