"""Encoders and embeddings in fp32 against float64 autograd of transformers + PEFT, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods
from featherback.core.noise import Draw
from featherback.data.batch import Batch
from featherback.engine.backend.protocol import Array
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.methods import cached
from featherback.methods.memory.plan import Plan
from featherback.methods.whole.gradients import Gradient, WeightGradients
from featherback.methods.whole.settings import WholeModelSettings, weights_of
from featherback.methods.whole.trained_weights import WeightId
from featherback.models import loader
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.models.model import Model
from featherback.nn.adapters import made
from featherback.nn.attention import Attention
from featherback.nn.context import Context
from featherback.nn.encoder import Norm, Places
from featherback.nn.objectives.contrastive import Contrastive
from featherback.nn.objectives.embedding import POOLINGS, KeptEmbeddings
from featherback.nn.pooling import PooledHead
from featherback.optim.rules.sgd import SGD
from tests.methods.conftest import Twins
from tests.methods.support import Result, errors
from tests.support import encoders
from tests.support.encoders import ALPHA, RANK
from tests.support.oracle import random_adapter, with_adapter

BOUND = 1e-5
TEMPERATURE = 0.3


class Pair:
    """Our model and transformers' own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.reference = name, encoders.encoder(name)
        self.model = loader.load(encoders.saved(self.reference, folder))


@pytest.fixture(scope="module", params=["bert", "roberta"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    found = Pair(request.param, tmp_path_factory.mktemp(request.param))
    yield found
    found.model.close()


def adapter_of(model: Model, state: dict[str, np.ndarray]) -> Adapter:
    kind = made({"rank": RANK, "alpha": ALPHA, "rslora": False, "dora": False})
    adapter = Adapter(model, Form(kind))
    adapter.load_state(dict(state))
    return adapter


def ours(
    pair: Pair | Twins, state: dict[str, np.ndarray], batch: Batch, objective: Contrastive, method: str = "mesp",
    part: int | None = None, dropout: float = 0.0, **plan: Any,
) -> Result:  # fmt: skip
    """Return our mean loss and its gradient. `part`: tokens that pass together; None: all."""
    adapter = adapter_of(pair.model, state)
    adapter.dropout = dropout
    chosen = Plan.default(pair.model.config, tokens=part or batch.n_tokens, compute="fp32")
    chosen = replace(chosen, mlp_tile=256, **plan)
    found = PagedArray(adapter.parameters.layers, adapter.layer_size)
    at_work = methods.create(method, pair.model, adapter, chosen, objective=objective)
    loss = cached.gradients(at_work, batch, 1 / batch.n_terms, found, Draw())
    if not dropout:
        assert cached.loss(at_work, batch, objective) == pytest.approx(loss, rel=1e-6)
    if part is None and pair.model.family.is_encoder:  # the dry run has counted the memory
        assert at_work.resources.scratch.high_water == at_work.resources.scratch.capacity
    at_work.close()
    return Result(loss / batch.n_terms, adapter.state(found))


def truth(pair: Pair, state: dict[str, np.ndarray], examples: Any, pooling: str, sizes: Any = ()) -> Result:
    peft = encoders.with_adapter(pair.reference, state).double()
    found = [[encoders.pooled(peft, ids, pooling) for ids in row] for row in examples]
    loss = encoders.contrastive(found, TEMPERATURE, sizes)
    loss.backward()
    grads = encoders.gradients(peft)
    peft.unload()
    pair.reference.float()
    return Result(loss.item(), grads)


def worst(found: Result, true: Result) -> float:
    assert found.grads.keys() == true.grads.keys()
    return max([abs(found.loss - true.loss) / abs(true.loss), *errors(found.grads, true.grads).values()])


def apart(found: Result, true: Result) -> float:
    """Return the distance of the whole gradients, relative to the true one's length."""
    change = [found.grads[name].astype(np.float64) - each for name, each in true.grads.items()]
    length, size = (
        np.sqrt(sum(float((x.astype(np.float64) ** 2).sum()) for x in xs)) for xs in (change, true.grads.values())
    )
    return float(length / size)


def compared(pair: Pair, pooling: str = "mean", negatives: int = 0, sizes: Any = (), **how: Any) -> float:
    state, examples = encoders.random_state(pair.reference), encoders.texts(101, negatives)
    objective = Contrastive(pooling=pooling, contrast=TEMPERATURE, sizes=",".join(map(str, sizes)))
    return worst(
        ours(pair, state, encoders.batch_of(examples), objective, **how), truth(pair, state, examples, pooling, sizes)
    )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_gradients_are_autograds(pair: Pair, pooling: str) -> None:
    assert compared(pair, pooling) < BOUND


@pytest.mark.parametrize(
    "how", [{"negatives": 2}, {"sizes": (48, 16, 8)}, {"method": "mebp"}, {"keep_h": True}, {"part": 30}], ids=str
)
def test_in_other_ways(pair: Pair, how: dict[str, Any]) -> None:
    assert compared(pair, **how) < BOUND


def test_cached_gradients_are_those_of_one_batch(pair: Pair) -> None:
    """The parts are passed one by one, and every text is in the loss of every other."""
    state, batch = encoders.random_state(pair.reference), encoders.batch_of(encoders.texts(101, 1, 12))
    objective = Contrastive(contrast=TEMPERATURE)
    whole = ours(pair, state, batch, objective)
    for part in (20, 64):
        assert apart(ours(pair, state, batch, objective, part=part), whole) < 1e-6


def test_dropout_is_the_same_in_both_passes(pair: Pair) -> None:
    state, batch = encoders.random_state(pair.reference), encoders.batch_of(encoders.texts(101, 0, 8))
    objective = Contrastive(contrast=TEMPERATURE)
    whole = ours(pair, state, batch, objective, dropout=0.2)
    assert apart(ours(pair, state, batch, objective, part=30, dropout=0.2), whole) < 1e-6
    assert apart(ours(pair, state, batch, objective), whole) > 1e-3


def test_every_weight(pair: Pair) -> None:
    """Whole models: tables, norms and biases too."""
    examples = encoders.texts(101)
    batch, config = encoders.batch_of(examples), pair.model.config
    plan = replace(Plan.default(config, tokens=batch.n_tokens, compute="fp32"), mlp_tile=256)
    objective = Contrastive(contrast=TEMPERATURE)
    method = methods.create("mesp", pair.model, None, plan, whole=WholeModelSettings(SGD()), objective=objective)
    found: dict[WeightId, Array] = {}

    def take(ctx: Context, place: WeightId, gradient: Gradient) -> None:
        found[place] = np.concatenate([part.copy() for _, part in gradient.tiles(7)])

    places = dict(weights_of(config, pair.model.blocks))
    sink = WeightGradients(pair.model.head, method.resources.weights, 1.0, True, take, places)
    loss = cached.gradients(method, batch, 1 / batch.n_terms, sink, Draw())
    method.close()
    assert found.keys() == places.keys()
    reference = pair.reference.double().requires_grad_(True)
    true = encoders.contrastive(
        [[encoders.pooled(reference, ids, "mean") for ids in row] for row in examples], TEMPERATURE
    )
    true.backward()
    shapes = {name: each.shape for name, each in reference.named_parameters()}
    names = pair.model.naming.tensors
    mine = {names[place.part].format(place.layer): each for place, each in found.items()}
    grads = encoders.gradients(reference)
    for name in grads:  # a constant added to all keys changes no attention
        grads[name] *= not name.endswith("key.bias")
    reference.zero_grad()
    pair.reference.float().requires_grad_(False)
    assert (
        worst(
            Result(loss / batch.n_terms, {k: v.reshape(shapes[k]) for k, v in mine.items()}), Result(true.item(), grads)
        )
        < BOUND
    )


def test_embeddings_do_not_depend_on_their_batch(pair: Pair) -> None:
    examples = encoders.texts(101)
    batch = encoders.batch_of(examples)
    kept = KeptEmbeddings(pooling="cls")
    method = methods.create(
        "mesp", pair.model, None, Plan.default(pair.model.config, tokens=batch.n_tokens, compute="fp32")
    )
    method.loss(batch, objective=kept)
    method.close()
    with torch.no_grad():
        true = [encoders.pooled(pair.reference, ids, "cls").numpy() for row in examples for ids in row]
    np.testing.assert_allclose(kept.found[0], np.stack(true), atol=1e-5)


def test_a_whole_model_needs_all_texts_in_one_pass(pair: Pair) -> None:
    batch = encoders.batch_of(encoders.texts(101))
    plan = Plan.default(pair.model.config, tokens=20, compute="fp32")
    method = methods.create("mesp", pair.model, None, plan, whole=WholeModelSettings(SGD()), objective=Contrastive())
    with pytest.raises(FeatherbackError, match="changes a weight as soon as its gradient is known"):
        cached.gradients(method, batch, 1.0, None, Draw())  # type: ignore[arg-type]
    method.close()


def _causal(monkeypatch: pytest.MonkeyPatch) -> None:
    def sees(self: Attention, *arguments: Any, **options: Any) -> Any:
        self.window = 0
        return usual(self, *arguments, **options)

    usual = Attention.forward
    monkeypatch.setattr(Attention, "forward", sees)


def _norm_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def backward(self: Norm, ctx: Any, dy: Array, *others: Any) -> None:
        with ctx.frame():
            before = ctx.floats("before", *dy.shape)
            ctx.ops.cast(dy, before)
            usual(self, ctx, dy, *others)
            ctx.ops.scale_columns(before, None, dy, accumulate=True)

    usual = Norm.backward
    monkeypatch.setattr(Norm, "backward", backward)


def _first_place(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Places._rows
    monkeypatch.setattr(Places, "_rows", lambda self, ctx: usual(self, ctx) + 1)


def _one_text_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def shares(self: PooledHead, ctx: Any, rows: Any) -> Any:
        found = usual(self, ctx, rows)
        found.weights[-1] *= 0.9
        return found

    usual = PooledHead._shares
    monkeypatch.setattr(PooledHead, "_shares", shares)


@pytest.mark.parametrize("fault", [_causal, _norm_added, _first_place, _one_text_less], ids=lambda each: each.__name__)
def test_a_fault_is_found(pair: Pair, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert compared(pair) > 10 * BOUND


def test_a_fault_of_the_cache_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that only see themselves."""
    monkeypatch.setattr(cached, "_is_divided", lambda method, batch, objective: False)
    state, batch = encoders.random_state(pair.reference), encoders.batch_of(encoders.texts(101, 0, 8))
    objective = Contrastive(contrast=TEMPERATURE)
    whole = ours(pair, state, batch, objective)
    total = [ours(pair, state, part, objective) for _, part in batch.divided(60)]
    mixed = {name: sum(each.grads[name] for each in total) for name in whole.grads}
    assert worst(Result(whole.loss, mixed), whole) > 1e-3


@pytest.mark.parametrize("part", [None, 60])
def test_a_model_that_writes_text_embeds_by_its_last_token(all_twins: dict[str, Twins], part: int | None) -> None:
    """Beginnings that texts share are computed once. Compared in float32, as other gradients of these models."""
    twins = all_twins["llama"]
    examples = encoders.texts(101)
    examples = [[np.concatenate([examples[0][0], ids]) for ids in row] for row in examples]
    state = random_adapter(twins.reference, RANK, seed=1)
    peft = with_adapter(twins.reference, state, ALPHA)
    hidden = peft.base_model.model.model
    loss = encoders.contrastive(
        [[encoders.pooled(hidden, ids, "last") for ids in row] for row in examples], TEMPERATURE
    )
    loss.backward()
    true = Result(loss.item(), encoders.gradients(peft))
    peft.unload()
    objective = Contrastive(pooling="last", contrast=TEMPERATURE)
    assert worst(ours(twins, state, encoders.batch_of(examples), objective, part=part), true) < 1e-4
