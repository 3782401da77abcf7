"""Simple preference optimisation (Meng et al., 2024, arXiv 2405.14734): no reference, scores per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.preference import Pairwise, log_sigmoid, sigmoid


@dataclass(frozen=True, kw_only=True)
class SimPO(Pairwise):
    """- (1 - e) log sigmoid(D) - e log sigmoid(-D), with D = beta (score of chosen - score of rejected) - gamma."""

    per_token: ClassVar[bool] = True
    rate: ClassVar[float] = 0.01

    simpo_gamma: float = option(0.5, least=0, help="Margin by which beta times the scores should differ.")
    label_smoothing: float = option(
        0.0, least=0, below=0.5, help="Share of pairs that may be labelled the wrong way round."
    )

    def compare(self, chosen: Numbers, rejected: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        d, share = self.beta * (chosen - rejected) - self.simpo_gamma, self.label_smoothing
        slope = self.beta * (share * sigmoid(d) - (1 - share) * sigmoid(-d))
        return -(1 - share) * log_sigmoid(d) - share * log_sigmoid(-d), slope, -slope


OBJECTIVE = SimPO
