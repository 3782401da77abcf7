"""Return the contents of files or RAM as an array."""

from __future__ import annotations

import numpy as np

from featherback.engine.host.paged import PagedArray


def as_rows(paged: PagedArray) -> np.ndarray:
    """(layers, size)"""
    out = np.empty((paged.layers, paged.size), np.float32)
    for layer in range(paged.layers):
        paged.read(layer, out[layer])
    return out
