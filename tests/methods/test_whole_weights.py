"""The gradient of every weight of a model, in fp32, against autograd of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.backend.protocol import Array
from featherback.methods.memory.plan import Plan
from featherback.methods.whole.gradients import Gradient, WeightGradients
from featherback.methods.whole.settings import WholeModelSettings, weights_of
from featherback.methods.whole.trained_weights import EMBEDDING, HEAD, WeightId
from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows
from featherback.models.families.qwen35 import DeltaConfig
from featherback.models.model import Model
from featherback.nn.context import Context
from featherback.optim.rules.sgd import SGD
from tests.methods.conftest import Twins
from tests.methods.support import Labels, Result, assert_close
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.families import FAMILIES, dense
from tests.support.families.qwen35 import grouped
from tests.support.oracle import weight_gradients


def places_of(model: Model) -> dict[WeightId, tuple[int, int]]:
    return dict(weights_of(model.config, model.blocks))


def whole_gradients(
    model: Model, sequences: Sequence[Sequence[int]], labels: Labels | None = None, height: int = 7, **plan: Any
) -> tuple[float, dict[WeightId, Array]]:
    """Return the mean loss, and the gradient of every weight."""
    batch = Batch.from_sequences(list(sequences), None if labels is None else list(labels))
    chosen = replace(Plan.default(model.config, tokens=batch.n_tokens, compute="fp32"), **plan)
    method = methods.create("mesp", model, None, chosen, whole=WholeModelSettings(SGD()))
    found: dict[WeightId, Array] = {}

    def take(ctx: Context, place: WeightId, gradient: Gradient) -> None:
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


def in_transformers(model: Model, found: dict[WeightId, Array], *, moves: bool = False) -> dict[str, Array]:
    """Convert gradients, or `moves` of the weights, to the names and layouts of transformers."""
    whole: dict[str, dict[int, Array]] = {}
    for place, gradient in found.items():
        name = model.naming.modules[place.part].format(place.layer)
        if place.layer is not None:
            attention = model.blocks[place.layer].branches[0]
            for part, count in attention.interleaved_heads.items():
                stored, first, _ = attention.parts[part]
                if place.first_row == first and place.part in (stored, f"{part}_bias"):
                    axis = 0 if place.part == stored else 1
                    rows = np.argsort(hf_to_gguf_rows(count, gradient.shape[axis]))
                    gradient = np.take(gradient, rows, axis)
        gradient = _stored_otherwise(model, place, gradient, moves)
        if place.part not in (EMBEDDING, HEAD) and not place.part.endswith("_proj"):
            taps = place.part == "conv" and model.blocks[place.layer].vectors["conv"]  # type: ignore[index]
            gradient = gradient.reshape(taps[0], 1, -1) if taps else gradient[0]
        whole.setdefault(name, {})[place.first_row] = gradient
    return {name: np.concatenate([parts[row] for row in sorted(parts)]) for name, parts in whole.items()}


def _stored_otherwise(model: Model, place: WeightId, gradient: Array, moves: bool) -> Array:
    """Undo what a GGUF file with delta nets has in another order, or as another number."""
    config = model.config
    if place.layer is None or not isinstance(config, DeltaConfig):
        return gradient
    if place.part == "decay":  # the file has A, which is -e^A_log
        rate, values = model.layer(place.layer).vectors["decay"], gradient[0]
        change = np.log((rate + values) / rate) if moves else values * rate
        return grouped(change, config.delta_k_heads, config.delta_v_heads)[None]
    restore = FAMILIES[config.architecture].twin(GGUFReader(model.path), config.head_dim).restore
    block, part = model.blocks[place.layer], model.family.gguf_names[place.part].removeprefix("blk.{}.")
    shape = gradient.shape if place.part in block.projections else block.vectors[place.part]
    return restore(part, gradient.reshape(shape))[1].reshape(gradient.shape)


def check(twins: Twins, sequences: list[list[int]], labels: Labels | None = None, **plan: Any) -> None:
    truth = weight_gradients(twins.reference, sequences, labels)
    loss, found = whole_gradients(twins.model, sequences, labels, mlp_tile=256, vocab_tile=48, **plan)
    assert_close(Result(loss, in_transformers(twins.model, found)), Result(truth.loss, truth.grads), BOUND)


@pytest.mark.parametrize("name", dense())
def test_every_weight(all_twins: dict[str, Twins], name: str) -> None:
    twins = all_twins[name]
    check(twins, draw((5, 1, 40, 17), twins.model.config.vocab_size))


def test_with_unsupervised_tokens(dense_twins: Twins) -> None:
    twins = dense_twins
    sequences = draw((19, 30), twins.model.config.vocab_size)
    labels = [[-100] * 12 + sequences[0][12:], sequences[1].copy()]
    labels[1][5::2] = [-100] * len(labels[1][5::2])
    check(twins, sequences, labels)


def test_with_a_prefix_that_sequences_share(dense_twins: Twins) -> None:
    twins = dense_twins
    prefix, rest = (
        draw((12, 7, 9, 5), twins.model.config.vocab_size)[0],
        draw((7, 9, 5), twins.model.config.vocab_size, 1),
    )
    sequences = [prefix + row for row in rest]
    check(twins, sequences, [[-100] * 12 + row for row in rest])


def test_places_are_what_is_handed_over(dense_twins: Twins) -> None:
    twins = dense_twins
    config, model = twins.model.config, twins.model
    _, found = whole_gradients(model, draw((9,), config.vocab_size))
    assert {place: gradient.shape for place, gradient in found.items()} == places_of(model)
