"""A teacher's forward pass: the most likely tokens after each supervised token."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import Batch
from featherback.methods.base import ForwardOnly
from featherback.nn.objectives.distilled import Distilled


class LikelyTokens(ForwardOnly):
    """The objective, `Distilled`, says how many tokens and at which temperature."""

    objective: Distilled
    known: int | None = None
    """The size of the student's vocabulary, if it is smaller than the teacher's. Ids beyond it are not returned."""

    def likely(self, batch: Batch) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the tokens after each supervised row and their log-probabilities (n, k), the most likely first."""
        with self._begin(batch) as sweep:
            for i in sweep.enter():
                sweep.forward(i)
            return sweep.likely(self.objective.top_k, self.objective.temperature, self.known)

    def loss(self, batch: Batch, *_: Any, **__: Any) -> float:
        """Do the same for counting memory."""
        self.likely(batch)
        return 0.0
