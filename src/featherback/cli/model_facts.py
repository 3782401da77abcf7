"""Facts about a model that several commands print."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from featherback.models.model import Model
    from featherback.weights.matrix import Matrix


def parameters(model: Model) -> int:
    """Number of weights."""
    norms = (2 * model.config.num_hidden_layers + 1) * model.config.hidden_size
    return norms + sum(matrix.rows * matrix.cols for matrix in matrices(model))


def formats(model: Model) -> list[str]:
    """The number formats of its matrices, the commonest (by bytes) first."""
    count: Counter[str] = Counter()
    for matrix in matrices(model):
        count[matrix.type.name] += matrix.nbytes
    return [name for name, _ in count.most_common()]


def matrices(model: Model) -> list[Matrix]:
    """Its matrices, a tied head counted once."""
    heads = (
        [model.embed_tokens] if model.config.tie_word_embeddings else [model.embed_tokens, model.head.weight]
    )
    layers = (model.layer(i).matrices.values() for i in range(model.config.num_hidden_layers))
    return heads + [matrix for layer in layers for matrix in layer]
