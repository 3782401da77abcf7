"""Matrices of several tiles, their gradients step by step, and a record of the accesses to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np

from featherback import optim
from featherback.core.options import described
from featherback.engine import backend
from featherback.engine.backend.arena import Arena
from featherback.engine.backend.device import Device
from featherback.optim.layerwise import HeldTensor
from featherback.optim.rule import Rule

SETTINGS = {"weight_decay": 0.05, "clip_value": 0.4, "update_gap": 7}
SHAPES = {"tall": (2400, 160), "wide": (160, 2400), "vector": (1, 700)}


class Counted(HeldTensor):
    """Accesses to a tensor."""

    readings = 0
    openings = 0
    looks = 0

    def gradient(self) -> Iterator[tuple[slice, np.ndarray]]:
        object.__setattr__(self, "readings", self.readings + 1)
        return super().gradient()

    @contextmanager
    def values(self, rows: slice) -> Iterator[np.ndarray]:
        object.__setattr__(self, "openings", self.openings + 1)
        with super().values(rows) as values:
            yield values

    def read(self, rows: slice) -> AbstractContextManager[np.ndarray]:
        object.__setattr__(self, "looks", self.looks + 1)
        return super().read(rows)


def room() -> Device:
    """Return a device with enough memory for every test here."""
    return Device(backend.of("fp32"), Arena(1 << 26))


def made(name: str) -> tuple[Rule, dict[str, Any]]:
    settings = {key: value for key, value in SETTINGS.items() if key in described(optim.RULES[name])}
    return optim.OPTIONS.make(name, settings), settings


def tensor_of(rule: Rule, shape: tuple[int, int], role: str = "matrix") -> Counted:
    values = 0.1 * np.random.default_rng(1).standard_normal(shape, np.float32)
    states = {name: np.zeros(size, np.float32) for name, size in rule.state_sizes(shape, role).items()}
    return Counted(room(), values, np.empty(shape, np.float32), states, (3, 1), role)


@cache
def gradient(shape: tuple[int, int], step: int, harsh: bool = True) -> np.ndarray:
    """A constant direction plus noise; if harsh, rows and columns differ in size, and one gradient is far larger."""
    rng, usual = np.random.default_rng(step), np.random.default_rng(99)
    found = usual.standard_normal(shape, np.float32) + rng.standard_normal(shape, np.float32)
    if harsh:
        found *= np.outer(*(np.exp(usual.standard_normal(n)) for n in shape)).astype(np.float32)
        found *= 10.0 if step == 12 else 1.0
    return found


def close(before: np.ndarray, ours: np.ndarray, theirs: np.ndarray, within: float = 1.0) -> None:
    """`within`: the share of elements that must agree within 1e-5 of the largest."""
    assert np.linalg.norm(theirs - before) > 0.3 * np.linalg.norm(before)  # an error would be seen
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)
    assert np.mean(np.abs(ours - theirs) < 1e-5 * np.abs(theirs).max()) >= within
