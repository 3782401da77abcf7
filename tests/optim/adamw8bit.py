"""The reference for AdamW with 8-bit moments: torch's formulas, with every number rounded separately to a level."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import torch

from featherback.core.noise import numbers
from featherback.nn.slots import SlotTable

FIRST = (np.arange(128) / 127) ** 2
SECOND = (np.arange(256) / 255) ** 4
BLOCK = 256


class AdamW8bit(torch.optim.Optimizer):
    """One parameter (layers, size). Each tensor of a layer has its own blocks."""

    def __init__(self, parameters: Any, slots: SlotTable, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": 1.0, "weight_decay": weight_decay})
        self.steps, self.slots = 0, slots

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.steps += 1
        (group,) = self.param_groups
        (p,) = group["params"]
        if not self.state[p]:
            self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
        m, v = self.state[p]["m"], self.state[p]["v"]
        m.mul_(0.9).add_(p.grad, alpha=0.1)
        v.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        denominator = (v / (1 - 0.999**self.steps)).sqrt().add_(1e-8)
        p.addcdiv_(m, denominator, value=-group["lr"] / (1 - 0.9**self.steps))
        for number, (moment, levels) in enumerate(((m, FIRST), (v, SECOND))):
            for layer, row in enumerate(moment):
                for place, slot in enumerate(self.slots.layer(layer)):
                    part = row[slot.start : slot.start + slot.size]
                    key = (0, self.steps, layer, place, 0, number)
                    part.copy_(torch.from_numpy(rounded(part.numpy(), levels, key)))


def rounded(row: np.ndarray, levels: np.ndarray, key: tuple[int, ...]) -> np.ndarray:
    """Return a tensor's moments as they are read back."""
    levels = levels.astype(np.float32)
    found = np.zeros_like(row)
    blocks = -(-row.size // BLOCK)
    drawn = numbers((crc32(b"adamw8bit"), *key), range(blocks), range(BLOCK)).ravel()
    for start in range(0, row.size, BLOCK):
        block = row[start : start + BLOCK]
        scale = np.abs(block).max()
        for place, value in enumerate(block, start):
            if scale == 0:
                continue
            magnitude = np.abs(value) / scale
            low = int(np.searchsorted(levels, magnitude, side="right")) - 1
            if low + 1 < levels.size:
                share = (magnitude - levels[low]) / (levels[low + 1] - levels[low])
                low += (int(drawn[place]) + 0.5) / 65536 < share
            if key[-1] == 1:
                low = max(low, 1)
            found[place] = np.copysign(levels[low] * scale, value)
    return found
