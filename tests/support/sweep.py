"""Tests that loop over a grid of parameters: one case, not one for each combination."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from tests.support.tiers import covering

Test = Callable[..., None]


def sweep(*grids: pytest.MarkDecorator) -> Callable[[Test], Test]:
    """Run a test with every pair of values of the grids, each a `pytest.mark.parametrize`, in one case.

    What else they are combined with is drawn at random, seeded by the test's name. A failure names the combination.
    """
    axes = [_values(grid.mark) for grid in grids]

    def decorate(test: Test) -> Test:
        rows = list(product(*(range(len(axis)) for axis in axes)))
        random.Random(test.__name__).shuffle(rows)
        chosen = [rows[index] for index in covering([tuple(enumerate(row)) for row in rows], 2)]

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for row in chosen:
                values = {name: value for axis, index in zip(axes, row) for name, value in axis[index].items()}
                try:
                    test(**fixtures, **values)
                except Exception as error:
                    raise AssertionError(f"It fails with {values}: {error}") from error

        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if all(name not in axis[0] for axis in axes)]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate


def _values(mark: pytest.Mark) -> list[dict[str, Any]]:
    names, values = mark.args
    if isinstance(names, str):
        return [{names: value} for value in values]
    return [dict(zip(names, each, strict=True)) for each in values]
