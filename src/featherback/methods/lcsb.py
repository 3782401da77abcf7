"""LCSB (arXiv 2602.13073): each step runs the backward pass through some of the blocks only.

A skipped block outputs h + detach(o - h), so its gradient is the identity: the gradient of the residual stream passes
unchanged, the block needs no checkpoint and no recomputation, and its adapter has no gradient. Gradients of selected
blocks below a skipped one are approximate. All batches of a step use the same blocks. For whole models, the weights
outside the blocks are trained in every step. With --layers, the blocks are chosen from the lowest trained one on.

The optimiser does not touch a skipped block, like PyTorch's optimisers if `grad` is None: no decay, no momentum, no
change of its states or its step count.
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
    """How LCSB selects the blocks that have a backward pass."""

    share: float = option(0.5, above=0, most=1, help="Share of the blocks that have a backward pass in each step.")
    order: str = option(
        "cyclic",
        choices=("cyclic", "random"),
        help="How blocks are chosen. cyclic: each step takes the blocks that follow those of the step before, and "
        "continues with the first block after the last. random: each step takes blocks at random.",
    )


class LCSB(MeSP):
    """MeSP with a backward pass through a changing subset of the blocks."""

    options_class = LCSBOptions
    options: LCSBOptions

    @classmethod
    def count_backward(cls, layers: int, options: Any) -> int:
        return min(layers, max(1, round(options.share * layers)))

    def backward_blocks(self, draw: Draw) -> Sequence[int]:
        first = self.first_trained
        layers = len(self.model.blocks) - first
        count = self.count_backward(layers, self.options)
        if self.options.order == "random":
            chosen = np.argsort(bits((draw.seed, draw.step), layers))[:count].tolist()
        else:
            chosen = [(draw.step * count + number) % layers for number in range(count)]
        return sorted((first + each for each in chosen), reverse=True)


METHOD = LCSB
