"""A stack of experts: one adapter for each expert's matrix, with values (E, ...) in one slot per tensor.

A file stores a stack as one tensor (E, out, in), and a projection reads it as the matrix (E out, in). `Experts` takes
the rows of one expert at a time (`Projection.outputs`), and with them the expert's own adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from featherback.engine.backend.protocol import Array
from featherback.nn.adapters.base import AtProjection, Float32, Setup, Values


@dataclass(slots=True)
class Stacked(AtProjection):
    """The adapters of a stack. It is used only through `outputs`, with all rows of one expert."""

    setup: Setup
    experts: int
    height: int  # rows of one expert
    attach: Callable[[Setup], AtProjection]

    @classmethod
    def of(cls, setup: Setup, attach: Callable[[Setup], AtProjection]) -> AtProjection:
        """Return the adapter of a stack whose values (E, ...) are in `setup`. `attach` makes that of one expert."""
        experts, _, height = setup.values["B^T"].shape
        stack = cls(setup, experts, height, attach)
        return stack if experts > 1 else stack.outputs(0, height)

    def outputs(self, first: int, last: int) -> AtProjection:
        expert, extra = divmod(first, self.height)
        assert (extra, last - first) == (0, self.height), "the rows of one expert"
        setup = self.setup
        values, gradients = (
            {name: of_expert(array, expert) for name, array in each.items()} for each in (setup.values, setup.gradients)
        )
        return self.attach(setup._replace(values=values, gradients=gradients))


def of_expert(values: Array, expert: int) -> Array:
    """Return the values (...) of one expert from (E, ...), as a view."""
    return values[expert : expert + 1].reshape(*values.shape[1:])


def by_expert(values: Float32) -> Iterator[Float32]:
    """Yield the matrix of each expert from a stack (E, n, m), or the only matrix (n, m), as views."""
    return iter(values if values.ndim == 3 else values[None])


def stacked_change(
    change: Callable[[Float32, Values, int, int], Float32], before: Float32, values: Values, first: int, last: int
) -> Float32:
    """Return the change of rows [first, last) of a stack (E out, in). `change` returns that of one expert's rows."""
    height, found = values["B^T"].shape[2], np.empty_like(before)
    for expert in range(first // height, -(-last // height)):
        begin, end = max(first, expert * height), min(last, (expert + 1) * height)
        rows = slice(begin - first, end - first)
        own = {name: of_expert(array, expert) for name, array in values.items()}
        found[rows] = change(before[rows], own, begin - expert * height, end - expert * height)
    return found
