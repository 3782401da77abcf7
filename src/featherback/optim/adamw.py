"""AdamW: Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

from __future__ import annotations

from pathlib import Path

from featherback import kernels
from featherback.adapters.lora import LoRA
from featherback.optim.layerwise import Float32, LayerwiseOptimizer


class AdamW(LayerwiseOptimizer):
    """m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m' / (sqrt(v') + eps) + decay p), ' unbiased."""

    STATES = ("first_moment", "second_moment")

    def __init__(
        self,
        adapter: LoRA,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        place: str | Path | None = None,
    ) -> None:
        super().__init__(adapter, place)
        self.beta1, self.beta2, self.eps, self.weight_decay = beta1, beta2, eps, weight_decay

    def _update(
        self, parameter: Float32, gradient: Float32, states: list[Float32], lr: float, grad_scale: float
    ) -> None:
        m, v = states
        kernels.adamw(
            parameter,
            gradient,
            m,
            v,
            lr,
            self.beta1,
            self.beta2,
            self.eps,
            self.weight_decay,
            self.steps,
            grad_scale,
        )
