from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers in every run and every order."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
