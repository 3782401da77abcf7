"""The two orders of V heads that share K heads: grouped, as in Hugging Face's files, and tiled, as in GGUF files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class GroupedHeads:
    """V heads of `size` rows (or columns) each, behind `first` others.

    Grouped, V heads h R ... h R + R - 1 belong to K head h, with R = v_heads / k_heads. Tiled, V heads h, h + k_heads,
    h + 2 k_heads ... do.
    """

    k_heads: int
    v_heads: int
    size: int
    first: int = 0

    def after(self, count: int) -> GroupedHeads:
        """Return these heads behind `count` other rows."""
        return replace(self, first=count)

    def tiled(self) -> NDArray[np.intp]:
        """Return an index (first + v_heads size,) such that `grouped[index]` is tiled."""
        heads = np.arange(self.v_heads * self.size).reshape(self.k_heads, self.v_heads // self.k_heads, self.size)
        return np.concatenate([np.arange(self.first), self.first + heads.swapaxes(0, 1).reshape(-1)])
