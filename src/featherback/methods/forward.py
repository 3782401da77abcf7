"""Methods that only run forward: they measure a model, and train nothing."""

from __future__ import annotations

from typing import Any

from featherback.methods.base import Method, Options


class ForwardOnly(Method):
    """Measures the loss of a model with its adapter, without checkpoints, gradients or optimiser states."""

    needs_checkpoints = False

    @classmethod
    def count_backward(cls, layers: int, options: Options) -> int:
        return 0

    def gradients(self, *_: Any) -> float:
        raise NotImplementedError("a forward pass has no gradients")
