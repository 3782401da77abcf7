from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator seeded by the test's name, so that the numbers are the same in every run and order."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
