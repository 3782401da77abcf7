"""Identity preference optimisation (Azar et al., 2023, arXiv 2310.12036), per token, as its authors compute it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from featherback.data.batch import Answers
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.preference import Pairwise


@dataclass(frozen=True, kw_only=True)
class IPO(Pairwise):
    """(h - 1 / (2 beta))^2, with h the mean score per token of chosen minus that of rejected."""

    needs_reference: ClassVar[bool] = True
    per_token: ClassVar[bool] = True
    rate: ClassVar[float] = 0.01

    def compare(self, chosen: Numbers, rejected: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        beyond = chosen - rejected - 1 / (2 * self.beta)
        return beyond**2, 2 * beyond, -2 * beyond

    def rewards(self, answers: Answers, logp: Numbers, lengths: Numbers) -> Numbers:
        return self.beta * (logp - answers.reference)  # of the whole answer, as for DPO


OBJECTIVE = IPO
