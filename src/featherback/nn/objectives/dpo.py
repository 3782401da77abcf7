"""Direct preference optimisation (Rafailov et al., 2023, arXiv 2305.18290).

With `label_smoothing` it is conservative DPO (Mitchell, 2023). With `rpo_alpha` it is RPO (Pang et al., 2024, arXiv
2404.19733).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from featherback.core.options import option
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.preference import Pairwise, log_sigmoid, sigmoid


@dataclass(frozen=True, kw_only=True)
class DPO(Pairwise):
    """- (1 - e) log sigmoid(D) - e log sigmoid(-D), with D = beta (score of chosen - score of rejected)."""

    needs_reference: ClassVar[bool] = True

    label_smoothing: float = option(
        0.0, least=0, below=0.5, help="Share of pairs that may be labelled the wrong way round."
    )
    rpo_alpha: float = option(0.0, least=0, help="Weight of the next-token loss of the chosen answers (RPO).")

    @property
    def likelihood_weight(self) -> float:
        return self.rpo_alpha

    def compare(self, chosen: Numbers, rejected: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        d, share = self.beta * (chosen - rejected), self.label_smoothing
        slope = self.beta * (share * sigmoid(d) - (1 - share) * sigmoid(-d))
        return -(1 - share) * log_sigmoid(d) - share * log_sigmoid(-d), slope, -slope


OBJECTIVE = DPO
