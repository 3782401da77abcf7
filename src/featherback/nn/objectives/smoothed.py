"""Next-token loss with label smoothing (Szegedy et al., 2016), as in `torch.nn.functional.cross_entropy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from featherback.core.options import option
from featherback.data.batch import Targets
from featherback.nn.objectives.base import Objective, PerTarget
from featherback.nn.objectives.next_token import NEXT_TOKEN


@dataclass(frozen=True, kw_only=True)
class Smoothed(Objective):
    """(1 - e) * next-token loss + e * mean over the vocabulary of - log p, multiplied by the token's weight."""

    over_vocabulary: ClassVar[bool] = True

    label_smoothing: float = option(
        0.1, least=0, below=1, help="Share of each target that is spread evenly over the vocabulary."
    )

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        share, weights = self.label_smoothing, 1.0 if targets.weights is None else targets.weights
        loss, slopes = NEXT_TOKEN(targets, logp)
        spread = -float(np.sum(weights * logp.mean))
        first, further = (1 - share) * slopes.first, (1 - share) * slopes.further
        return (1 - share) * loss + share * spread, PerTarget(first, further, -share * weights)


OBJECTIVE = Smoothed
