"""Objectives: what training minimises. Each module here is one and holds its class as `OBJECTIVE`."""

from __future__ import annotations

from featherback.core.registry import OwnOptions, Registry
from featherback.nn.objectives.base import Objective

OBJECTIVES: Registry[type[Objective]] = Registry(__name__, "OBJECTIVE", "objective", shared=("base",))
OPTIONS: OwnOptions[Objective] = OwnOptions(OBJECTIVES, OBJECTIVES.__getitem__)
"""An objective with its options is an instance of its class."""
