"""WholeModelSettings-model MeZO: losses with weights perturbed when read, against transformers with such weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.backend.protocol import Array
from featherback.methods.base import Draw, Method
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.methods.whole.gradients import Gradient, WeightGradients
from featherback.methods.whole.settings import WholeModelSettings
from featherback.methods.whole.trained_weights import WeightId
from featherback.models.model import Model
from featherback.nn.context import Context
from featherback.optim.rules.sgd import SGD
from tests.methods.conftest import Twins
from tests.methods.test_exact_gradients import draw
from tests.methods.test_whole_weights import in_transformers, places_of
from tests.support.oracle import weight_gradients

KEY, FACTOR = (7, 3, 0), 0.05
TIGHT = 2e-5  # of the loss, relative
LENGTHS = (5, 1, 40, 17)


def estimator(model: Model, tokens: int, options: MeZOOptions | None = None) -> Method:
    plan = replace(Plan.default(model.config, tokens=tokens, compute="fp32"), mlp_tile=256, vocab_tile=48)
    return methods.create("mezo", model, None, plan, options=options, whole=WholeModelSettings(SGD()))


def sink_of(model: Model, method: Method, found: dict[WeightId, Array], leave: str = "") -> WeightGradients:
    def take(ctx: Context, place: WeightId, gradient: Gradient) -> None:
        found[place] = np.full(gradient.shape, np.nan, np.float32)
        for rows, part in gradient.tiles(7):
            found[place][rows] = part

    trained = {place: shape for place, shape in places_of(model).items() if place.part != leave}
    tied = model.config.tie_word_embeddings
    return WeightGradients(model.head, method.resources.weights, model.embedding_scale, tied, take, trained)


def direction(model: Model, method: Method, key: tuple[int, ...] = KEY) -> dict[WeightId, Array]:
    """Return z of every weight."""
    found: dict[WeightId, Array] = {}
    with method._begin(Batch.from_sequences([[1, 2]])) as sweep:
        sink_of(model, method, found).along(sweep.ctx, [(key, 1.0)])
    return found


@contextmanager
def moved(reference: PreTrainedModel, model: Model, by: dict[WeightId, Array]) -> Iterator[None]:
    before = {name: value.detach().clone() for name, value in reference.named_parameters()}
    named = in_transformers(model, by, moves=True)
    assert named.keys() == before.keys()
    with torch.no_grad():
        for name, value in reference.named_parameters():
            value += torch.from_numpy(named[name])
    yield
    with torch.no_grad():
        for name, value in reference.named_parameters():
            value.copy_(before[name])


def test_the_loss_of_moved_weights(dense_twins: Twins) -> None:
    twins = dense_twins
    model, sequences = twins.model, draw(LENGTHS, twins.model.config.vocab_size)
    batch = Batch.from_sequences(sequences)
    method = estimator(model, batch.n_tokens)
    sink, ops = sink_of(model, method, {}), method.resources.backend.ops
    parts = ("embed_tokens", "o_proj", "post_attention_layernorm")
    seen = dict.fromkeys(parts, 0.0)
    for key in (KEY, (7, 3, 1)):  # along a single direction, a part may by chance hardly change the loss
        found = method.loss(batch, perturbations=sink.perturbation(ops, key, FACTOR)) / batch.n_targets
        z = direction(model, method, key)
        with moved(twins.reference, model, {place: np.float32(FACTOR) * part for place, part in z.items()}):
            wanted = weight_gradients(twins.reference, sequences).loss
        assert found == pytest.approx(wanted, rel=TIGHT)
        for part in parts:
            planted = sink_of(model, method, {}, leave=part)
            away = method.loss(batch, perturbations=planted.perturbation(ops, key, FACTOR)) / batch.n_targets - wanted
            seen[part] = max(seen[part], abs(away) / wanted)
    assert min(seen.values()) > 2 * TIGHT, "one that stays where it is would be seen"
    method.close()


def test_the_gradient_is_the_slope_along_each_direction(dense_twins: Twins) -> None:
    twins = dense_twins
    model, sequences = twins.model, draw((19, 30), twins.model.config.vocab_size)
    batch, drawn, epsilon = Batch.from_sequences(sequences), Draw(5, 2), 0.1
    method = estimator(model, batch.n_tokens, MeZOOptions(epsilon=epsilon, directions=2))
    found: dict[WeightId, Array] = {}
    loss = method.gradients(batch, 1 / batch.n_targets, sink_of(model, method, found), drawn)
    wanted = {place: np.zeros_like(part) for place, part in found.items()}
    losses = []
    for number in range(2):
        z, both = direction(model, method, (5, 2, number)), []
        for sign in (1, -1):
            with moved(twins.reference, model, {p: np.float32(sign * epsilon) * part for p, part in z.items()}):
                both.append(weight_gradients(twins.reference, sequences).loss)
        losses += both
        for place, part in z.items():
            wanted[place] += (both[0] - both[1]) / (2 * epsilon) / 2 * part
    assert loss / batch.n_targets == pytest.approx(np.mean(losses), rel=TIGHT)
    largest = max(float(np.abs(part).max()) for part in wanted.values())
    slack = 2 * TIGHT * np.mean(losses) / epsilon  # a difference of losses, times z
    assert slack < 0.1 * largest
    for place, part in wanted.items():
        np.testing.assert_allclose(found[place], part, atol=slack)
    method.close()
