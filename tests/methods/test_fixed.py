"""Products in fixed point on the tiny models: gradients compared with the exact ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.conftest import Twins
from tests.methods.support import autograd, cosines, errors, ours
from tests.methods.test_exact_gradients import draw
from tests.support.oracle import random_adapter

MEDIAN, WORST, LEAST_COSINE = 1e-3, 5e-3, 0.99999  # docs/decisions/fixed-point.md has what was measured


@pytest.mark.parametrize("tokens", [2, 33, 257])
def test_gradients(smooth_twins: Twins, tokens: int) -> None:
    (sequence,) = draw((tokens,), smooth_twins.model.config.vocab_size)
    state = random_adapter(smooth_twins.reference, 4, seed=1)
    for name in state:  # as in test_bf16: less of one product's error is multiplied by the next
        if ".lora_B." in name:
            state[name] *= np.float32(0.25)
    truth = autograd(smooth_twins.reference, state, sequence, torch.float64)
    found = ours(smooth_twins.model, state, [sequence], compute="int16")
    assert abs(found.loss - truth.loss) <= 1e-4 * truth.loss
    error = errors(found.grads, truth.grads, vanished=WORST)
    assert np.median(list(error.values())) <= MEDIAN
    assert max(error.values()) <= WORST
    there = {name: gradient for name, gradient in truth.grads.items() if gradient.any()}
    assert min(cosines({name: found.grads[name] for name in there}, there).values()) >= LEAST_COSINE
