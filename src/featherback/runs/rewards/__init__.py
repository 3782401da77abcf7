"""Rewards: what judges the answers that a model writes. Each module is one kind, with its class as `REWARD`.

A kind is imported only if a run names it.
"""

from __future__ import annotations

from featherback.core.registry import Registry
from featherback.runs.rewards.base import Reward

SHARED = ("base", "judge", "limited", "suited", "written")
REWARDS: Registry[type[Reward]] = Registry(__name__, "REWARD", "reward", shared=SHARED)
