"""DAPO (Yu et al., 2025, arXiv 2503.14476): every token counts the same, a higher upper limit, dynamic sampling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featherback.core.options import option
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.grpo import GRPO


@dataclass(frozen=True, kw_only=True)
class DAPO(GRPO):
    """The mean is over the tokens of all answers. Prompts whose answers all have the same reward are replaced."""

    clip_higher: float | None = option(0.28, above=0, help="How far a probability may rise before its gradient is cut.")
    sampling_rounds: int = option(
        3, least=1, help="How often a step may sample to replace prompts whose answers all have the same reward."
    )

    @property
    def rounds(self) -> int:
        return self.sampling_rounds

    def weights(self, lengths: Numbers) -> Numbers:
        return np.full(lengths.shape, lengths.size / max(1.0, float(lengths.sum())))


OBJECTIVE = DAPO
