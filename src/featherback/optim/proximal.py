"""Pull parameters towards their values before the first step: the proximal term of FedProx.

Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020, arXiv 1812.06127), equation 2: a node that
starts from w0 minimises

    loss(w) + mu / 2 |w - w0|^2,        whose gradient is   g + mu (w - w0).

Clipping applies to g only, so a large distance does not weaken the gradient of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.nn.slots import MATRIX
from featherback.optim.rule import Rule, StepArgs, Tensor

START = "start"
"""Name of the state that holds the values before the first step. It is laid out like the parameters."""


@dataclass(frozen=True, kw_only=True)
class Proximal(Rule):
    """An update rule whose gradient includes the proximal term with the factor `mu`."""

    rule: Rule
    mu: float

    def state_sizes(self, shape: tuple[int, ...], role: str = MATRIX) -> dict[str, int]:
        return {**self.rule.state_sizes(shape, role), START: math.prod(shape)}

    def update(self, tensor: Tensor, turn: StepArgs) -> None:
        self.rule.update(_Pulled(tensor, self.mu / turn.grad_scale), turn)


@dataclass(frozen=True)
class _Pulled:
    """A tensor whose gradient includes the pull. Implements `optim.rule.Tensor`."""

    tensor: Tensor
    factor: float  # the rule multiplies gradients by the step's grad_scale, which must not change the pull

    @property
    def on(self) -> Device:
        return self.tensor.on

    @property
    def shape(self) -> tuple[int, int]:
        return self.tensor.shape

    @property
    def key(self) -> tuple[int, ...]:
        return self.tensor.key

    @property
    def role(self) -> str:
        return self.tensor.role

    def gradient(self) -> Iterator[tuple[slice, Array]]:
        on, ops, cols = self.on, self.on.ops, self.shape[1]
        for rows, gradient in self.tensor.gradient():
            size = gradient.shape[0] * cols
            with on.frame():
                pulled = on.floats("gradient with the proximal term", size)
                with self.read(rows) as values, self.state(START, rows.start * cols, size) as start:
                    ops.subtract(values.reshape(size), start, pulled)
                ops.multiply(pulled, self.factor, pulled)
                ops.add(pulled, gradient.reshape(size), pulled)
                yield rows, pulled.reshape(*gradient.shape)

    def read(self, rows: slice) -> AbstractContextManager[Array]:
        return self.tensor.read(rows)

    def values(self, rows: slice) -> AbstractContextManager[Array]:
        return self.tensor.values(rows)

    def state(self, name: str, first: int = 0, count: int | None = None) -> AbstractContextManager[Array]:
        return self.tensor.state(name, first, count)
