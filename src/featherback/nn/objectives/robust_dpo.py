"""DPO that stays unbiased if some labels are wrong (Chowdhury et al., 2024, arXiv 2403.00409)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.preference import Pairwise, log_sigmoid, sigmoid


@dataclass(frozen=True, kw_only=True)
class RobustDPO(Pairwise):
    """(- (1 - e) log sigmoid(D) + e log sigmoid(-D)) / (1 - 2 e), with D as in DPO: beta times the margin."""

    needs_reference: ClassVar[bool] = True

    label_smoothing: float = option(
        0.1, least=0, below=0.5, help="Share of pairs that are labelled the wrong way round."
    )

    def compare(self, chosen: Numbers, rejected: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        d, share = self.beta * (chosen - rejected), self.label_smoothing
        losses = (share * log_sigmoid(-d) - (1 - share) * log_sigmoid(d)) / (1 - 2 * share)
        slope = -self.beta * ((1 - share) * sigmoid(-d) + share * sigmoid(d)) / (1 - 2 * share)
        return losses, slope, -slope


OBJECTIVE = RobustDPO
