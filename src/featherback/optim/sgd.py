"""Plain stochastic gradient descent: no state, so no memory."""

from __future__ import annotations

from pathlib import Path

from featherback import kernels
from featherback.adapters.lora import LoRA
from featherback.optim.layerwise import Float32, LayerwiseOptimizer


class SGD(LayerwiseOptimizer):
    """p -= lr (g + decay p)."""

    def __init__(self, adapter: LoRA, weight_decay: float = 0.0, place: str | Path | None = None) -> None:
        super().__init__(adapter, place)
        self.weight_decay = weight_decay

    def _update(
        self, parameter: Float32, gradient: Float32, states: list[Float32], lr: float, grad_scale: float
    ) -> None:
        kernels.sgd(parameter, gradient, lr, self.weight_decay, grad_scale)
