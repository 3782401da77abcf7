"""bf16 operands on the tiny models: never much worse than computing everything in bf16, whatever its error."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.conftest import Twins
from tests.methods.support import autograd, cosines, errors, ours
from tests.methods.test_exact_gradients import draw
from tests.support.oracle import random_adapter
from tests.support.tiers import some

LEAST_COSINE = 0.998  # as on the real model
ROUNDOFF = 2.0**-8
DRAWS = {2: 7, 33: 1, 257: 1}
"""Tokens -> sequences, of which the median counts.

Two tokens take few roundings. Their sum is small or large by chance, in the naive computation as well, so on some
sequences either of the two is several times as far off as the other.
"""


@pytest.mark.parametrize("tokens", some(DRAWS, 2))
def test_against_naive_bf16(smooth_twins: Twins, tokens: int) -> None:
    state = random_adapter(smooth_twins.reference, 4, seed=1)
    for name in state:
        if ".lora_B." in name:
            state[name] *= np.float32(0.25)
    found, naive, cosine = [], [], []
    for sequence in draw((tokens,) * DRAWS[tokens], smooth_twins.model.config.vocab_size):
        truth = autograd(smooth_twins.reference, state, sequence, torch.float64).grads
        rounded = autograd(smooth_twins.reference, state, sequence, torch.bfloat16).grads
        gradients = ours(smooth_twins.model, state, [sequence], compute="bf16").grads
        naive.append(errors(rounded, truth))
        found.append(errors(gradients, truth, vanished=4 * ROUNDOFF))
        there = {name: gradient for name, gradient in truth.items() if gradient.any()}
        cosine.append(cosines({name: gradients[name] for name in there}, there))
    for name in naive[0]:
        error, allowed = (np.median([each[name] for each in of]) for of in (found, naive))
        # Where the naive sum was lucky, one rounding of an operand is still allowed.
        assert error <= 2 * max(allowed, ROUNDOFF), f"{name}: {error:.3g}, naive {allowed:.3g}"
    assert min(np.median([each[name] for each in cosine]) for name in cosine[0]) >= LEAST_COSINE
