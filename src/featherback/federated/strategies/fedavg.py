"""Federated averaging (McMahan et al., AISTATS 2017, arXiv 1602.05629): the mean, weighted by supervised tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from featherback.federated.strategies.base import Strategy


@dataclass(frozen=True, kw_only=True)
class FedAvg(Strategy):
    FLOWER: ClassVar[str] = "FedAvg"


STRATEGY = FedAvg
