"""A token file of examples with several answers, with their log-probabilities before training if they are needed."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from featherback.data.batch import Batch
from featherback.data.labelled import scored_answers
from featherback.data.pairs import pair_batch
from featherback.data.token_file import TokenFile


class MarkedFile(TokenFile):
    """Makes batches of examples. `with_prompts`: the tokens of prompts are targets too.

    `scored`: a trained head scores the last token of each answer, and tokens have no targets.
    """

    def __init__(self, path: str | os.PathLike[str], with_prompts: bool = False, scored: bool = False) -> None:
        super().__init__(path)
        self._with_prompts, self._scored = with_prompts, scored
        self.reference: npt.NDArray[np.float64] | None = None
        """The log-probabilities of each example's two answers before training (n_sequences, 2), if they are known."""

    def n_terms(self, i: int) -> int:
        return 1

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        examples = [(self.seq(int(i))[0], self.marks(int(i))) for i in indices]
        known = None if self.reference is None else self.reference[indices].reshape(-1)
        batch = pair_batch(examples, known, self._with_prompts)
        return scored_answers(batch) if self._scored else batch
