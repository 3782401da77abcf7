"""Sparse MeZO (arXiv 2402.15751): MeZO that moves only the smallest weights of each tensor.

h, a tensor's threshold, is the magnitude below which 1 - sparsity of its weights lie when it is measured: at the
beginning of a run, as the paper has it, and every --threshold-every steps if asked for. A step perturbs and updates m z
with m = [|theta| <= h], of the unperturbed theta each time it is read: so m does not move with the perturbation, and a
weight that outgrows h rests until h is measured again.

LoRA's B begins as zeros, which have no smallest: h would be 0, the first step would move all of B above it, and none
would ever move again. So a tensor whose smallest weights are zeros is not thinned out: h is infinite, until measured
again. With the threshold measured once, A is sparse and a B that began as zeros is dense; with one that training starts
from (--from), or with --threshold-every, both are sparse.

Only weights under the mask have a gradient, so SGD moves no others. AdamW's momentum goes on moving a weight that has
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
    """MeZO's, and which weights are small; the defaults are the paper's."""

    sparsity: float = option(
        0.8, least=0, below=1, help="Share of each tensor's weights, the largest, that is left alone."
    )
    threshold_every: int = option(
        0, least=0, help="Steps between measurements of what is small. 0: once, at the beginning."
    )


class SparseMeZO(MeZO):
    """MeZO's directions, but for the weights above their tensor's threshold."""

    can_train_weights = False
    options_class = SparseMeZOOptions
    options: SparseMeZOOptions

    @cached_property
    def states(self) -> dict[str, PagedArray]:
        if self.adapter is None:
            return {}
        slots = self.adapter.layout.slots
        most = max(len(slots.layer(layer)) for layer in range(slots.layers))
        return {THRESHOLDS: PagedArray(slots.layers, most)}

    def _begin_step(self, draw: Draw) -> None:
        every = self.options.threshold_every
        if draw.step == 0 or (every and draw.step % every == 0):
            self._measure()

    def _measure(self) -> None:
        """The thresholds of the weights as they are."""
        assert self.adapter is not None
        on, ops, layout = self.resources, self.resources.ops, self.adapter.layout
        thresholds = self.states[THRESHOLDS]
        row = np.zeros(thresholds.size, np.float32)
        for layer in range(len(self.model.blocks)):
            with on.frame():
                values = on.floats("which weights are small", layout.size)
                self.adapter.parameters.fetch(layer, values, on)
                for number, slot in enumerate(layout.slots.layer(layer)):
                    count = max(1, round((1 - self.options.sparsity) * slot.size))
                    found = ops.smallest(values[slot.start : slot.start + slot.size], count)
                    row[number] = found if found > 0 and count < slot.size else math.inf
            thresholds.write(layer, row)

    def _add(self, key: tuple[int, ...], factor: float, layer: int, out: Array) -> None:
        """out (size,) += factor m z."""
        assert self.adapter is not None
        on, ops, layout = self.resources, self.resources.ops, self.adapter.layout
        limits = np.empty(self.states[THRESHOLDS].size, np.float32)
        self.states[THRESHOLDS].read(layer, limits)
        # It stays as long as `out`: the account of chunks relies on what is held growing evenly with the tokens.
        mask = on.floats("which weights are small", layout.size)
        self.adapter.parameters.fetch(layer, mask, on)
        for slot, limit in zip(layout.slots.layer(layer), limits.tolist()):
            ops.mark_small(mask[slot.start : slot.start + slot.size], limit)
        ops.add_normal((*key, layer), factor, out, weights=mask)


METHOD = SparseMeZO
