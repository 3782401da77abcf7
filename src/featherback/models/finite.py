"""Check that a model's weights are finite."""

from __future__ import annotations

import math

import numpy as np

from featherback.engine import kernels
from featherback.engine.formats.matrix import Matrix
from featherback.errors import FeatherbackError
from featherback.models.model import Model

_ROWS = 64
"""Rows of a matrix that are checked at once."""


def check_weights(model: Model) -> None:
    """Raise FeatherbackError, naming the tensor, if a weight of the model is not finite."""
    if where := broken_tensor(model):
        raise FeatherbackError(f"{model.path} is broken: {where} holds NaN or infinity.")


def broken_tensor(model: Model) -> str | None:
    """Name the first tensor with a value that is not finite; None if all are. Reads the whole model in small pieces."""
    tables = {"the embedding": model.embed_tokens, "the head": model.head.weight}
    for name, matrix in tables.items():
        if not _finite(matrix):
            return name
    if not np.isfinite(model.head.norm).all():
        return "the last norm"
    for name, vector in model.top_vectors.items():
        if not np.isfinite(vector).all():
            return name
    for index in range(model.config.num_hidden_layers):
        weights = model.layer(index)
        for name, vector in weights.vectors.items():
            if not np.isfinite(vector).all():
                return f"{name} of layer {index}"
        for name, matrix in weights.matrices.items():
            if not _finite(matrix):
                return f"{name} of layer {index}"
    return None


def _finite(matrix: Matrix) -> bool:
    """Whether a stored matrix holds only finite numbers. Its pages are dropped after they are read."""
    out = np.empty((min(_ROWS, matrix.rows), matrix.cols), np.float32)
    for first in range(0, matrix.rows, _ROWS):
        ids = np.arange(first, min(first + _ROWS, matrix.rows), dtype=np.int32)
        rows = out[: ids.size]
        kernels.gather_rows(kernels.matrix(matrix), ids, rows)
        kernels.drop_pages(matrix.rows_between(first, first + ids.size).data)
        if not math.isfinite(kernels.sum_squares(rows.reshape(-1))):
            return False
    return True
