"""bf16 operands on the tiny models: never much worse than computing everything in bf16, whatever its error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.conftest import Twins
from tests.methods.support import autograd, cosines, errors, ours
from tests.methods.test_exact_gradients import draw
from tests.support.oracle import random_adapter

LEAST_COSINE = 0.998  # as on the real model
ROUNDOFF = 2.0**-8


@pytest.mark.parametrize("tokens", [2, 33, 257])
def test_against_naive_bf16(smooth_twins: Twins, tokens: int) -> None:
    (sequence,) = draw((tokens,), smooth_twins.model.config.vocab_size)
    state = random_adapter(smooth_twins.reference, 4, seed=1)
    for name in state:
        if ".lora_B." in name:
            state[name] *= np.float32(0.25)
    truth = autograd(smooth_twins.reference, state, sequence, torch.float64)
    naive = errors(autograd(smooth_twins.reference, state, sequence, torch.bfloat16).grads, truth.grads)
    found = ours(smooth_twins.model, state, [sequence], compute="bf16")
    for name, error in errors(found.grads, truth.grads, vanished=4 * ROUNDOFF).items():
        # Where the naive sum was lucky, one rounding of an operand is still allowed.
        assert error <= 2 * max(naive[name], ROUNDOFF), f"{name}: {error:.3g}, naive {naive[name]:.3g}"
    there = {name: gradient for name, gradient in truth.grads.items() if gradient.any()}
    cosine = cosines({name: found.grads[name] for name in there}, there)
    assert min(cosine.values()) >= LEAST_COSINE
