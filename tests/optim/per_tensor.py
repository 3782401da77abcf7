"""References for optimisers of matrices: a function changes one tensor as a whole, in double."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from featherback.nn.slots import SlotTable
from featherback.optim.rule import as_matrix


@dataclass
class Whole:
    """A tensor (rows, cols), its gradient, and its states."""

    p: torch.Tensor
    key: tuple[int, ...] = ()
    g: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    step: int = 0
    state: dict[str, Any] = field(default_factory=dict)

    def remembered(self, name: str, *shape: int) -> torch.Tensor:
        """Return a state, zeros at first, for changing in place."""
        found: torch.Tensor = self.state.setdefault(name, torch.zeros(shape, dtype=torch.float64))
        return found


Change = Callable[..., None]
"""From a Whole, the learning rate and the rule's options."""


class PerTensor(torch.optim.Optimizer):
    """Apply `change` to every tensor of one parameter (layers, size)."""

    def __init__(self, change: Change, parameters: Any, slots: SlotTable, **options: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})
        (self.p,) = self.param_groups[0]["params"]
        self.change, self.options = change, options
        self.tensors = {
            (layer, place): (slot, Whole(self.part(self.p.data, layer, slot), (layer, place)))
            for layer in range(slots.layers)
            for place, slot in enumerate(slots.layer(layer))
        }

    @staticmethod
    def part(flat: torch.Tensor, layer: int, slot: Any) -> torch.Tensor:
        return flat[layer, slot.start : slot.start + slot.size].reshape(as_matrix(slot.shape)).double()

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for (layer, _), (slot, whole) in self.tensors.items():
            whole.g, whole.step = self.part(self.p.grad, layer, slot), whole.step + 1
            self.change(whole, self.param_groups[0]["lr"], **self.options)
            self.p.data[layer, slot.start : slot.start + slot.size] = whole.p.reshape(-1).float()


def by_torch(optimizer: Callable[..., torch.optim.Optimizer], whole: Whole, lr: float, **options: Any) -> None:
    """One of torch's optimisers, where a vector has one dimension."""
    if not whole.state:
        whole.state["p"] = torch.nn.Parameter(whole.p.squeeze(0).clone())
        whole.state["by"] = optimizer([whole.state["p"]], **options)
    whole.state["by"].param_groups[0]["lr"] = lr
    whole.state["p"].grad = whole.g.squeeze(0).clone()
    whole.state["by"].step()
    whole.p.copy_(whole.state["p"].data.reshape(whole.p.shape))


adafactor: Change = partial(by_torch, partial(torch.optim.Adafactor, eps=(1e-15, 1e-3)))
"""The first eps squared is what the least variance is bounded by."""


def lomo(whole: Whole, lr: float, clip_value: float, weight_decay: float = 0.0) -> None:
    """torch's SGD with clamped gradients."""
    whole.g = whole.g.clamp(-clip_value, clip_value)
    by_torch(torch.optim.SGD, whole, lr, weight_decay=weight_decay)


def lion(whole: Whole, lr: float, weight_decay: float = 0.0) -> None:
    """Algorithm 2 of the paper, with its betas."""
    m = whole.remembered("m", *whole.p.shape)
    step = torch.sign(0.9 * m + 0.1 * whole.g)
    whole.p -= lr * (step + weight_decay * whole.p)
    m.copy_(0.99 * m + 0.01 * whole.g)
