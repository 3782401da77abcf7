"""Facts about a model that people are told."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

from featherback.models.layout import layer_shapes, top_shapes

if TYPE_CHECKING:
    from featherback.models.model import Model
    from featherback.weights.matrix import Matrix


def parameters(model: Model) -> int:
    """Number of weights, norms and biases among them; a tied head is counted once."""
    parts = [top_shapes(model.config), *layer_shapes(model.config)]
    return sum(prod(shape) for part in parts for shape in part.values())


def formats(model: Model) -> list[str]:
    """The number formats of its matrices, the commonest (by bytes) first."""
    count: Counter[str] = Counter()
    for matrix in matrices(model):
        count[matrix.type.name] += matrix.nbytes
    return [name for name, _ in count.most_common()]


def matrices(model: Model) -> list[Matrix]:
    """Its matrices, a tied head counted once."""
    layers = (model.layer(i).matrices.values() for i in range(model.config.num_hidden_layers))
    return model.tables + [matrix for layer in layers for matrix in layer]
