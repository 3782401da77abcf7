"""Average a run's adapters over its steps, which removes the noise of single steps.

Polynomial-decay averaging (Shamir and Zhang, ICML 2013, arXiv 1212.1824, with eta = 1): after step t of a tensor p

    mean = mean + 2 / (t + 1) (p - mean),

so step t has a weight proportional to t, counting the steps that changed the tensor. The average has no parameters to
tune and does not depend on the run's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from featherback.engine.host.paged import PagedArray
from featherback.nn.slots import MATRIX
from featherback.optim.rule import Rule, StepArgs, Tensor, piece_rows, pieces, tiles

MEAN = "mean"
"""Name of the state that holds the mean. It is laid out like the parameters."""


@dataclass(frozen=True, kw_only=True)
class Averaged(Rule):
    """An update rule that also keeps the mean of the values, as a further state."""

    rule: Rule

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        return {**self.rule.state_sizes(shape, role), MEAN: math.prod(shape)}

    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        self.rule.update(tensor, turn)
        on, ops, weight, cols = tensor.on, tensor.on.ops, 2 / (turn.step + 1), tensor.shape[1]
        for rows in tiles(tensor.shape):
            count = (rows.stop - rows.start) * cols
            with tensor.read(rows) as values, tensor.state(MEAN, rows.start * cols, count) as mean:
                flat = values.reshape(count)
                with on.frame():
                    room = on.floats("distance from the mean", piece_rows(mean.shape))
                    for part in pieces(on, mean.shape):
                        off = room[: len(mean[part])]
                        ops.subtract(flat[part], mean[part], off)
                        ops.multiply(off, weight, off)
                        ops.add(mean[part], off, mean[part])


def begin(state: PagedArray, parameters: PagedArray) -> None:
    """Set a state that is laid out like the parameters to their values. A mean keeps them until a layer moves."""
    row = np.empty(parameters.size, np.float32)
    for layer in parameters.rows:
        parameters.read(layer, row)
        state.write(layer, row)
