"""Prompts as tokens, each with its record: what rewards read to judge answers to it.

In a token file the record follows the prompt: its JSON in UTF-8, a token for each byte. Only the record is marked as
supervised, so that holding out, copying and comparing examples treat a prompt and its record as one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from featherback.data.batch import Batch
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError

Ids = npt.NDArray[np.int32]
BYTES = 256
"""The smallest vocabulary in which each byte of a record is a token."""


class PromptFile(TokenFile):
    """Makes batches of prompts, for a model to answer."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.max_length = self.longest

    def prompt(self, i: int) -> Ids:
        """Return the tokens (n,) of prompt i."""
        tokens, is_record = self.seq(i)
        return tokens[: int(np.argmax(is_record))]

    def record(self, i: int) -> Mapping[str, Any]:
        """Return the record of prompt i."""
        tokens, is_record = self.seq(i)
        found: Mapping[str, Any] = json.loads(tokens[is_record].astype(np.uint8).tobytes())
        return found

    @property
    def mean_length(self) -> float:
        """The mean number of tokens of a prompt."""
        return (self.n_tokens - self.n_targets) / max(1, self.n_sequences)

    def n_terms(self, i: int) -> int:
        return 1

    def lengths(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array([self.prompt(int(i)).size for i in indices], np.int64)

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        return replace(Batch.from_sequences([self.prompt(int(i)) for i in indices]), source=self._places(indices))


def with_record(prompt: npt.NDArray[Any], record: Mapping[str, Any]) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Return the tokens of a prompt with its record, and which of them are the record's."""
    content = np.frombuffer(json.dumps(record, ensure_ascii=False, default=str).encode(), np.uint8)
    tokens = np.concatenate([prompt.astype(np.int32), content.astype(np.int32)])
    return tokens, np.arange(tokens.size) >= prompt.size


def check_vocabulary(size: int) -> None:
    """Raise FeatherbackError if the vocabulary is too small for records."""
    if size < BYTES:
        raise FeatherbackError(f"The model has only {size} tokens; learning from its own answers needs {BYTES}.")
