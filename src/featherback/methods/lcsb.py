"""LCSB (arXiv 2602.13073): each step goes back through some of the blocks only.

A skipped block outputs h + detach(o - h): its gradient is the identity. So the gradient of the residual stream passes
it unchanged, and the block has no checkpoint and is not computed again; its adapter's gradient is zero. Gradients of
selected blocks below a skipped one are approximate. The blocks of a step are the same for all of its batches. Of whole
models, what lies outside the blocks is trained in every step.

No gradient is handed out for a skipped block, and the optimiser leaves it alone, as PyTorch's do where `grad` is None:
neither decay nor momentum moves it, its states and its count of updates stand still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback.core.noise import Draw, bits
from featherback.core.options import option
from featherback.methods.base import KeepingOptions
from featherback.methods.mesp import MeSP


@dataclass(frozen=True, kw_only=True)
class LCSBOptions(KeepingOptions):
    """Which blocks a step goes back through."""

    share: float = option(0.5, above=0, most=1, help="Share of the blocks that each step goes back through.")
    order: str = option(
        "cyclic",
        choices=("cyclic", "random"),
        help="Which blocks those are: the next ones, from the first on and around; or others at random each step.",
    )


class LCSB(MeSP):
    """MeSP through a rotating subset of the blocks."""

    options_class = LCSBOptions
    options: LCSBOptions

    @classmethod
    def returned(cls, layers: int, options: Any) -> int:
        return min(layers, max(1, round(options.share * layers)))

    def way_back(self, draw: Draw) -> Sequence[int]:
        layers = len(self.model.blocks)
        count = self.returned(layers, self.options)
        if self.options.order == "random":
            chosen = np.argsort(bits((draw.seed, draw.step), layers))[:count].tolist()
        else:
            chosen = [(draw.step * count + number) % layers for number in range(count)]
        return sorted(chosen, reverse=True)


METHOD = LCSB
