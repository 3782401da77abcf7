"""Group sequence policy optimisation (Zheng et al., 2025, arXiv 2507.18071): one ratio for a whole answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.core.options import option
from featherback.data.batch import Targets
from featherback.nn.objectives.base import Numbers, PerTarget
from featherback.nn.objectives.grpo import GRPO


@dataclass(frozen=True, kw_only=True)
class GSPO(GRPO):
    """The ratio is the geometric mean of the ratios of an answer's tokens. It is closer to 1, and so are the limits."""

    whole_batch: ClassVar[bool] = True

    clip: float = option(
        3e-4, above=0, below=1, help="How far a probability may fall below that of sampling before its gradient is cut."
    )
    clip_higher: float | None = option(4e-4, above=0, help="How far a probability may rise before its gradient is cut.")

    def log_ratios(self, targets: Targets, logp: PerTarget) -> Numbers:
        each, own = super().log_ratios(targets, logp), targets.sequences
        lengths = np.maximum(np.bincount(own), 1)
        means: Numbers = np.bincount(own, each) / lengths
        return means[own]


OBJECTIVE = GSPO
