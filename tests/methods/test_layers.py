"""Adapters on some layers: gradients against PEFT's `layers_to_transform` in float64, and no work that nobody needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.host.checkpoints import Checkpoints
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.methods.base import FIRST, Draw
from featherback.methods.lcsb import LCSB, LCSBOptions
from featherback.methods.memory.plan import Plan
from featherback.methods.mesp import MeSP
from featherback.models.adapter import LoRA
from featherback.models.form import Layout
from tests.methods.conftest import Twins
from tests.methods.support import Result, adapter_of, assert_close, assert_equal, autograd, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.oracle import State, random_adapter

CHOICES: dict[str, tuple[str, ...]] = {  # family -> choices of layers
    "llama": ("last:1", "0"),
    "qwen2-late-window": ("last:1", "1", "0,2"),
    "smollm3": ("last:2", "1-3", "1,3"),
    "gemma3": ("last:25%", "2,5"),
    "lfm2": ("last:50%",),
    "phi3": ("1",),
}


def layers_of(twins: Twins, choice: str) -> tuple[int, ...]:
    return LoRA(twins.model, 1, layers=choice).layers


def state_of(twins: Twins, layers: Sequence[int]) -> State:
    """Return a random adapter of these layers."""
    state = random_adapter(twins.reference, 4, seed=1)
    return {name: values for name, values in state.items() if any(f".layers.{layer}." in name for layer in layers)}


def check(twins: Twins, choice: str, method: str = "mesp", length: int = 33, **plan: Any) -> None:
    layers = layers_of(twins, choice)
    (sequence,) = draw((length,), twins.model.config.vocab_size)
    state = state_of(twins, layers)
    truth = autograd(twins.reference, state, sequence, torch.float64, layers)
    found = ours(twins.model, state, [sequence], method=method, mlp_tile=256, vocab_tile=48, **plan)
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


@pytest.mark.parametrize("method", ["mesp", "mebp"])
@pytest.mark.parametrize(("name", "choice"), [(name, each) for name, some in CHOICES.items() for each in some])
def test_gradients_are_pefts(all_twins: dict[str, Twins], name: str, choice: str, method: str) -> None:
    check(all_twins[name], choice, method)


@pytest.mark.parametrize(
    "plan",
    [{"chunk": 5}, {"chunk": 32}, {"keep": {"gate": 1, "up": 1}}, {"keep_h": False}, {"keep": {"m": 2}}],
    ids=str,
)
@pytest.mark.parametrize("choice", ["last:2", "1,3"])
def test_in_every_layout(all_twins: dict[str, Twins], choice: str, plan: dict[str, Any]) -> None:
    check(all_twins["smollm3"], choice, **plan)


def test_no_layer_is_chosen_twice(all_twins: dict[str, Twins]) -> None:
    """All layers, in any words, are the adapter as it always was."""
    twins = all_twins["smollm3"]
    state, sequences = random_adapter(twins.reference, 4, seed=1), draw((9, 20), twins.model.config.vocab_size)
    before = ours(twins.model, state, sequences)
    adapter = LoRA(twins.model, 4, 16.0, layers="0,1,0-4,last:100%")
    adapter.load_state(state)
    assert adapter.form == LoRA(twins.model, 4, 16.0).form
    gathered = PagedArray(adapter.parameters.layers, adapter.layer_size)
    batch = Batch.from_sequences(sequences)
    plan = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
    methods.create("mesp", twins.model, adapter, plan).gradients(batch, 1 / batch.n_targets, gathered)
    assert_equal(Result(before.loss, adapter.state(gathered)), before)


class Counted:
    """Counts the blocks that are differentiated, and the block inputs that are saved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backward = self.saved = 0
        block_backward, save = MeSP.block_backward, Checkpoints.save

        def backward(method: MeSP, *values: Any) -> None:
            self.backward += 1
            block_backward(method, *values)

        def saving(store: Checkpoints, *values: Any) -> None:
            self.saved += 1
            save(store, *values)

        monkeypatch.setattr(MeSP, "block_backward", backward)
        monkeypatch.setattr(Checkpoints, "save", saving)


def work_of(twins: Twins, choice: str, method: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Return how many blocks a step differentiates, how many inputs it saves, and how many fit in the store."""
    with monkeypatch.context() as context:
        counted = Counted(context)
        adapter = adapter_of(twins.model, state_of(twins, layers_of(twins, choice)))
        batch = Batch.from_sequences(draw((33,), twins.model.config.vocab_size))
        plan = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
        at_work = methods.create(method, twins.model, adapter, plan)
        counted.backward = 0  # the dry run counts too
        at_work.gradients(batch, 1.0, adapter.parameters.zeros_like(adapter.layer_size))
        store = at_work.resources.checkpoints
        assert isinstance(store, Checkpoints)
        assert store._arrays is not None
        slots = len(store._arrays)
        at_work.close()
        return counted.backward, counted.saved, slots


@pytest.mark.parametrize("method", ["mesp", "mebp"])
def test_no_backward_pass_and_no_checkpoint_below(
    all_twins: dict[str, Twins], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = all_twins["gemma3"]
    for choice, blocks in (("last:1", 1), ("2,5", 5), ("0", 7), ("last:3", 3)):
        assert work_of(twins, choice, method, monkeypatch) == (blocks, blocks, blocks), choice


class Early(MeSP):
    """Fault: the backward pass stops one block above the lowest trained one."""

    def backward_blocks(self, draw: Draw) -> Sequence[int]:
        return range(self.first_trained + 1, len(self.model.blocks))[::-1]


class Late(MeSP):
    """Fault: the backward pass goes one block too far."""

    def backward_blocks(self, draw: Draw) -> Sequence[int]:
        return range(max(self.first_trained - 1, 0), len(self.model.blocks))[::-1]

    @classmethod
    def count_backward(cls, layers: int, options: Any) -> int:
        return layers + 1


def test_planted_faults_are_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping early loses gradients. Stopping late only wastes work and memory, which are counted."""
    twins = all_twins["smollm3"]
    with monkeypatch.context() as context:
        context.setattr(methods.mesp, "METHOD", Early)
        with pytest.raises((AssertionError, MemoryError)):
            check(twins, "last:2")
        context.setattr(methods.mesp, "METHOD", Late)
        with pytest.raises((AssertionError, MemoryError, KeyError)):
            assert work_of(twins, "last:2", "mesp", monkeypatch) == (2, 2, 2)

    monkeypatch.setattr(Layout, "kinds", lambda self, layer, to=Layout.kinds: to(self, max(layer - 1, 0)))
    with pytest.raises((AssertionError, MemoryError, KeyError)):  # adapters one layer too high
        check(twins, "1-3")


def test_lcsb_selects_among_the_blocks_from_the_lowest_on(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["gemma3"]
    adapter = LoRA(twins.model, 2, layers="3,5")
    for order in ("cyclic", "random"):
        method = object.__new__(LCSB)
        method.model, method.adapter, method.options = twins.model, adapter, LCSBOptions(order=order, share=0.5)
        chosen = [tuple(method.backward_blocks(Draw(step=step))) for step in range(40)]
        assert {block for blocks in chosen for block in blocks} == {3, 4, 5, 6}
        assert {len(set(blocks)) for blocks in chosen} == {2}


def test_lcsb_of_all_blocks_is_mesp(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["smollm3"]
    state, sequences = state_of(twins, (2, 4)), draw((33,), twins.model.config.vocab_size)
    found = ours(twins.model, state, sequences, method="lcsb", options=LCSBOptions(share=1.0))
    assert_equal(found, ours(twins.model, state, sequences))


@pytest.mark.parametrize("method", ["mezo", "sparse_mezo"])
def test_mezo_moves_the_chosen_layers_only(all_twins: dict[str, Twins], method: str) -> None:
    """The same loss and slope as an adapter of all layers has whose other values are not there."""
    twins = all_twins["smollm3"]
    adapter = adapter_of(twins.model, state_of(twins, (1, 3)))
    gathered = PagedArray(adapter.parameters.layers, adapter.layer_size)
    gathered.clear()
    batch = Batch.from_sequences(draw((33,), twins.model.config.vocab_size))
    plan = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
    at_work = methods.create(method, twins.model, adapter, plan)
    at_work.gradients(batch, 1.0, gathered, FIRST)
    assert [layer for layer in range(gathered.layers) if gathered.holds(layer)] == [1, 3]
    assert all(values.any() for values in adapter.state(gathered).values())
    slopes = [g / z for g, z in zip(*(_flat(adapter, each) for each in (gathered, _direction(adapter))))]
    if method == "mezo":
        np.testing.assert_allclose(slopes, slopes[0], rtol=1e-4)
    at_work.close()


def _direction(adapter: LoRA) -> PagedArray:
    """Return MeZO's first direction, for the chosen layers."""
    from featherback.engine import backend

    found = adapter.parameters.zeros_like(adapter.layer_size)
    for layer in adapter.layers:
        row = np.zeros(adapter.layer_size, np.float32)
        backend.of("fp32").ops.add_normal((0, 0, 0, layer), 1.0, row)
        found.write(layer, row)
    return found


def _flat(adapter: LoRA, values: PagedArray) -> np.ndarray:
    return np.concatenate([array.ravel()[:50] for array in adapter.state(values).values()])


def test_only_chosen_layers_are_stored(all_twins: dict[str, Twins]) -> None:
    """Values, gradients and states of the others take no memory and no disk."""
    model = all_twins["smollm3"].model
    some, every = LoRA(model, 4, layers="1,3"), LoRA(model, 4)
    assert some.parameters.rows == (1, 3)
    assert some.parameters.nbytes * 5 == every.parameters.nbytes * 2
    assert some.state().keys() == {name for name in every.state() if ".layers.1." in name or ".layers.3." in name}
    kept = every.state()
    assert all(np.array_equal(values, kept[name]) for name, values in some.state().items())  # the same initial values
    row = np.ones(some.layer_size, np.float32)
    some.parameters.read(2, row)
    assert not row.any()
    with pytest.raises(KeyError):
        some.parameters.write(2, row)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("last:0", "trains nothing"),
        ("last:0%", "trains nothing"),
        ("5", "the layers of the model are 0 to 4"),
        ("3-9", "the layers of the model are 0 to 4"),
        ("3-1", "ends before it begins; write 1-3"),
        ("last:6", 'the model has 5 layers; use layers="all"'),
        ("last:101%", "is more than all layers"),
        ("last", "is not a choice of layers; write all, last:8, last:25%, or a list such as 0,5,10-20"),
        ("-1", "is not a choice of layers"),
        ("1;2", "is not a choice of layers"),
        ("", "is not a choice of layers"),
        ([], "chooses no layer"),
        ([True], "is not a choice of layers"),
        ("9" * 30, "is not a choice of layers"),
    ],
)
def test_choices_without_meaning(all_twins: dict[str, Twins], choice: Any, says: str) -> None:
    with pytest.raises(FeatherbackError) as caught:
        LoRA(all_twins["smollm3"].model, 1, layers=choice)
    assert says in str(caught.value).replace("--layers all", 'layers="all"')
    assert str(caught.value).count(". ") == 0


def test_layers_without_the_targets(all_twins: dict[str, Twins]) -> None:
    model = all_twins["lfm2"].model
    without = next(n for n, block in enumerate(model.blocks) if "q_proj" not in block.projections)
    with pytest.raises(FeatherbackError, match=f"The layers {without} have none of the projections q"):
        LoRA(model, 1, targets="q", layers=without)


def test_choices_in_all_forms(all_twins: dict[str, Twins]) -> None:
    model = all_twins["gemma3"].model  # 7 layers
    for choice, layers in (
        ("last:25%", (6,)),
        ("last:50%", (4, 5, 6)),
        ("last:1%", (6,)),
        ("last:2", (5, 6)),
        ("0, 2-3", (0, 2, 3)),
        (4, (4,)),
        ([0, "5-6"], (0, 5, 6)),
        ("0,last:1", (0, 6)),
    ):
        assert LoRA(model, 1, layers=choice).layers == layers
    assert LoRA(model, 1, layers="0,1,5,6").form.layers == ("0-1", "5-6")


def test_gradients_do_not_depend_on_the_layers_above(all_twins: dict[str, Twins]) -> None:
    """dA and dB of a layer are those of an adapter that is zero elsewhere."""
    twins = all_twins["smollm3"]
    sequences, state = draw((33,), twins.model.config.vocab_size), random_adapter(twins.reference, 4, seed=1)
    some = state_of(twins, (1, 3))
    zeros = {name: values * np.float32(name in some) for name, values in state.items()}
    found, every = ours(twins.model, some, sequences), ours(twins.model, zeros, sequences)
    assert found.loss == every.loss
    assert_close(found, replace(every, grads={name: every.grads[name] for name in some}), 1e-6)
