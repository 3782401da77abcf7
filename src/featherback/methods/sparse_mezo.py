"""Sparse MeZO (arXiv 2402.15751): MeZO that moves only the smallest weights of each tensor.

h, a tensor's threshold, is the magnitude below which 1 - sparsity of its weights lie when it is measured: once at the
beginning of a run, as in the paper, or every --threshold-every steps. A step perturbs and updates m z, with the mask
m = [|theta| <= h]. The mask is computed from the unperturbed theta at each read, so it does not move with the
perturbation. A weight that grows beyond h stays unchanged until h is measured again.

LoRA's B starts as zeros, so none of its weights is smallest: h would be 0, the first step would move all of B beyond
it, and no weight would ever move again. A tensor whose smallest weights are zeros therefore has h = infinity until the
next measurement. So if thresholds are measured once, A is sparse and a B that started as zeros is dense. If training
continues an adapter (--from), or with --threshold-every, both are sparse.

Only weights under the mask have a gradient, so SGD moves no others. AdamW's momentum keeps moving a weight that has
left the mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from featherback.core.options import option
from featherback.engine.backend.protocol import Array
from featherback.engine.host.paged import PagedArray
from featherback.methods.base import Draw
from featherback.methods.mezo import MeZO, MeZOOptions

THRESHOLDS = "thresholds"


@dataclass(frozen=True, kw_only=True)
class SparseMeZOOptions(MeZOOptions):
    """MeZO's options, and which weights count as small. The defaults are the paper's."""

    sparsity: float = option(
        0.8, least=0, below=1, help="Share of each tensor's weights that is left unchanged: the largest ones."
    )
    threshold_every: int = option(
        0, least=0, help="Steps between measurements of the thresholds. 0: measure once, at the beginning."
    )


class SparseMeZO(MeZO):
    """MeZO on the weights below their tensor's threshold."""

    can_train_weights = False
    options_class = SparseMeZOOptions
    options: SparseMeZOOptions

    @cached_property
    def states(self) -> dict[str, PagedArray]:
        if self.adapter is None:
            return {}
        slots = self.adapter.layout.slots
        most = max((len(slots.layer(layer)) for layer in range(slots.layers)), default=0)
        return {THRESHOLDS: PagedArray(slots.layers, most)}

    def _begin_step(self, draw: Draw) -> None:
        every = self.options.threshold_every
        if draw.step == 0 or (every and draw.step % every == 0):
            self._measure()

    def _measure(self) -> None:
        """Measure the thresholds on the current weights."""
        assert self.adapter is not None
        on, ops, layout = self.resources, self.resources.ops, self.adapter.layout
        thresholds = self.states[THRESHOLDS]
        row = np.zeros(thresholds.size, np.float32)
        for layer in layout.adapted:
            with on.frame():
                values = on.floats("which weights are small", layout.size)
                self.adapter.parameters.fetch(layer, values, on)
                for number, slot in enumerate(layout.slots.layer(layer)):
                    count = max(1, round((1 - self.options.sparsity) * slot.size))
                    found = ops.smallest(values[slot.start : slot.start + slot.size], count)
                    row[number] = found if found > 0 and count < slot.size else math.inf
            thresholds.write(layer, row)

    def _add(self, key: tuple[int, ...], factor: float, layer: int, out: Array) -> None:
        """Compute out (size,) += factor m z."""
        assert self.adapter is not None
        on, ops, layout = self.resources, self.resources.ops, self.adapter.layout
        limits = np.empty(self.states[THRESHOLDS].size, np.float32)
        self.states[THRESHOLDS].read(layer, limits)
        # The mask lives as long as `out`: the dry run of chunks assumes that memory grows evenly with tokens.
        mask = on.floats("which weights are small", layout.size)
        self.adapter.parameters.fetch(layer, mask, on)
        for slot, limit in zip(layout.slots.layer(layer), limits.tolist()):
            ops.mark_small(mask[slot.start : slot.start + slot.size], limit)
        ops.add_normal((*key, layer), factor, out, weights=mask)


METHOD = SparseMeZO
