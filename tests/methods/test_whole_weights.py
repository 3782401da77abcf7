"""The gradient of every weight of a model, in fp32, against autograd of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.backend.protocol import Array
from featherback.methods.memory.plan import Plan
from featherback.methods.whole.gradients import Gradient, WeightGradients
from featherback.methods.whole.places import EMBEDDING, HEAD, Place, trained_places
from featherback.methods.whole.settings import Whole
from featherback.models.architecture.permute import gguf_to_hf_rows
from featherback.models.model import Model
from featherback.nn.context import Context
from featherback.optim.rules.sgd import SGD
from tests.methods.conftest import Twins
from tests.methods.support import Labels, Result, assert_close
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.oracle import weight_gradients


def places_of(model: Model) -> dict[Place, tuple[int, int]]:
    config = model.config
    return dict(trained_places(model.blocks, config.vocab_size, config.hidden_size, config.tie_word_embeddings))


def whole_gradients(
    model: Model, sequences: Sequence[Sequence[int]], labels: Labels | None = None, height: int = 7, **plan: Any
) -> tuple[float, dict[Place, Array]]:
    """The mean loss, and the gradient of every place."""
    batch = Batch.from_sequences(list(sequences), None if labels is None else list(labels))
    chosen = replace(Plan.default(model.config, tokens=batch.n_tokens, compute="fp32"), **plan)
    method = methods.create("mesp", model, None, chosen, whole=Whole(SGD()))
    found: dict[Place, Array] = {}

    def take(ctx: Context, place: Place, gradient: Gradient) -> None:
        assert place not in found
        found[place] = np.full(gradient.shape, np.nan, np.float32)
        for again in range(2):  # what is read twice is the same
            for rows, part in gradient.tiles(height):
                if again:
                    np.testing.assert_array_equal(found[place][rows], part)
                found[place][rows] = part
        if gradient.few is not None:
            few = np.zeros(gradient.shape, np.float32)
            for rows, part in gradient.few:
                few[rows] = part
            np.testing.assert_array_equal(few, found[place])

    tied = model.config.tie_word_embeddings
    sink = WeightGradients(model.head, method.resources.weights, model.embedding_scale, tied, take, places_of(model))
    loss = method.gradients(batch, 1 / batch.n_targets, sink)
    method.close()
    return loss / batch.n_targets, found


def in_transformers(model: Model, found: dict[Place, Array]) -> dict[str, Array]:
    """By the names, and in the layouts, that transformers has."""
    whole: dict[str, dict[int, Array]] = {}
    for place, gradient in found.items():
        name = model.naming.modules[place.part].format(place.layer)
        if place.layer is not None:
            attention = model.blocks[place.layer].branches[0]
            for part, count in attention.interleaved_heads.items():
                stored, first, _ = attention.parts[part]
                if place.first_row == first and place.part in (stored, f"{part}_bias"):
                    axis = 0 if place.part == stored else 1
                    rows = gguf_to_hf_rows(count, gradient.shape[axis])
                    gradient = np.take(gradient, rows, axis)
        if place.part not in (EMBEDDING, HEAD) and not place.part.endswith("_proj"):
            gradient = gradient[0] if place.part != "conv" else gradient.reshape(model.config.hidden_size, 1, -1)
        whole.setdefault(name, {})[place.first_row] = gradient
    return {name: np.concatenate([parts[row] for row in sorted(parts)]) for name, parts in whole.items()}


def check(twins: Twins, sequences: list[list[int]], labels: Labels | None = None, **plan: Any) -> None:
    truth = weight_gradients(twins.reference, sequences, labels)
    loss, found = whole_gradients(twins.model, sequences, labels, mlp_tile=256, vocab_tile=48, **plan)
    assert_close(Result(loss, in_transformers(twins.model, found)), Result(truth.loss, truth.grads), BOUND)


def test_every_weight(twins: Twins) -> None:
    check(twins, draw((5, 1, 40, 17), twins.model.config.vocab_size))


def test_with_unsupervised_tokens(twins: Twins) -> None:
    sequences = draw((19, 30), twins.model.config.vocab_size)
    labels = [[-100] * 12 + sequences[0][12:], sequences[1].copy()]
    labels[1][5::2] = [-100] * len(labels[1][5::2])
    check(twins, sequences, labels)


def test_with_a_prefix_that_sequences_share(twins: Twins) -> None:
    prefix, rest = (
        draw((12, 7, 9, 5), twins.model.config.vocab_size)[0],
        draw((7, 9, 5), twins.model.config.vocab_size, 1),
    )
    sequences = [prefix + row for row in rest]
    check(twins, sequences, [[-100] * 12 + row for row in rest])


def test_places_are_what_is_handed_over(twins: Twins) -> None:
    config, model = twins.model.config, twins.model
    _, found = whole_gradients(model, draw((9,), config.vocab_size))
    places = trained_places(model.blocks, config.vocab_size, config.hidden_size, config.tie_word_embeddings)
    assert {place: gradient.shape for place, gradient in found.items()} == dict(places)
