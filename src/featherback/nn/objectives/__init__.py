"""Objectives: the losses that training can minimise. Each module here is one, with its class as `OBJECTIVE`."""

from __future__ import annotations

from featherback.core.registry import OwnOptions, Registry
from featherback.nn.objectives.base import Objective

OBJECTIVES: Registry[type[Objective]] = Registry(
    __name__,
    "OBJECTIVE",
    "objective",
    shared=("base", "distilled", "embedding", "preference", "recorded", "sampled", "scored"),
)
OPTIONS: OwnOptions[Objective] = OwnOptions(OBJECTIVES, OBJECTIVES.__getitem__)
"""The options of objectives. An objective with its options is an instance of its class."""
