"""SPARTAN against autograd of a module written from the paper: one memory in float64, and whole models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine import backend
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.methods import METHODS
from featherback.methods.base import Draw
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.form import Form
from featherback.nn.adapters import spartan
from featherback.nn.adapters.spartan import MEMORY, Memory, SparseMemory, SpartanKind, SpartanOptions
from featherback.nn.context import Context
from featherback.nn.kept import Kept, KeptState
from featherback.nn.linear import BlockWeights
from featherback.nn.router import Gating, Routing
from featherback.nn.span import Span
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, assert_equal
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support import families
from tests.support.oracle import _loss
from tests.support.spartan import inserted, memory
from tests.support.tiers import some

SEQUENCES = (5, 1, 33)
SMALL: dict[str, Any] = {"parents": 5, "cells": 10, "selected_parents": 2, "cell_temperature": 0.7}
TOKENS, WIDTH = 300, 40
NEAR = 1e-5


@dataclass(frozen=True)
class Alone:
    """A memory outside a model: x and the gradient of y (TOKENS, WIDTH), and the values."""

    options: SpartanOptions
    arrays: dict[str, np.ndarray]

    @classmethod
    def drawn(cls, **options: Any) -> Alone:
        made, rng = SpartanOptions(**options), np.random.default_rng(7)
        rows = {"x": TOKENS, "dy": TOKENS, "parents": made.parents, "keys": made.cells, "values": made.cells}
        return cls(made, {name: rng.normal(0, 0.6, (n, WIDTH)).astype(np.float32) for name, n in rows.items()})

    def truth(self) -> dict[str, np.ndarray]:
        """y and all gradients, in float64."""
        given = {name: torch.from_numpy(values).double() for name, values in self.arrays.items()}
        dy = given.pop("dy")
        for tensor in given.values():
            tensor.requires_grad_()
        y = memory(given["x"], given["parents"], given["keys"], given["values"], self.options)
        y.backward(dy)
        return {"y": y.detach().numpy(), **{name: tensor.grad.numpy() for name, tensor in given.items()}}  # type: ignore[union-attr]

    def ours(self) -> dict[str, np.ndarray]:
        device, branch = backend.of("fp32"), SparseMemory(self.options, WIDTH)
        ctx = Context(device, device.arena(1 << 22), "fp32", Span.following(0, TOKENS, TOKENS))
        x, dy, *values = (self.arrays[name].copy() for name in ("x", "dy", "parents", "keys", "values"))
        gradients = [np.zeros_like(each) for each in values]
        w = BlockWeights({}, {}, adapters={MEMORY: Memory(0, *values, *gradients)})
        kept = Kept({spartan.SELECTED: np.zeros((TOKENS, self.options.selected_parents), np.float32)})
        y = x.copy()
        branch.add_output(ctx, KeptState(kept, again=False), y, w)
        branch.backward(ctx, dy, x, KeptState(kept, again=True), w)
        return {"y": y, "x": dy, **dict(zip(("parents", "keys", "values"), gradients))}

    def check(self) -> None:
        truth, found = self.truth(), self.ours()
        for name, expected in truth.items():
            error = np.linalg.norm(found[name] - expected) / np.linalg.norm(expected)
            assert error <= NEAR, f"{name}: relative error {error:.3g}"


@pytest.mark.parametrize(
    "options", [{}, SMALL, {**SMALL, "selected_parents": 5}, {**SMALL, "selected_parents": 1}], ids=str
)
def test_a_memory_is_the_papers(options: dict[str, Any]) -> None:
    """More tokens than a tile holds, so parents are computed in several tiles."""
    assert TOKENS > 2 * spartan.ROWS
    if options.get("selected_parents") == 1:
        case = Alone.drawn(**options)
        found, truth = case.ours(), case.truth()
        assert not truth["parents"].any()  # one parent's share is 1, whatever its logit
        assert not found["parents"].any()
        del truth["parents"]
        for name, expected in truth.items():
            assert np.linalg.norm(found[name] - expected) <= NEAR * np.linalg.norm(expected), name
    else:
        Alone.drawn(**options).check()


def test_the_papers_module_agrees_with_finite_differences() -> None:
    arrays = Alone.drawn(**SMALL).arrays
    given = [torch.from_numpy(arrays[name]).double() for name in ("x", "parents", "keys", "values")]
    given[0] = given[0][:6]
    for each in given:
        each.requires_grad_()
    assert torch.autograd.gradcheck(partial(memory, options=SpartanOptions(**SMALL)), given)


@dataclass(frozen=True)
class Case:
    twins: Twins
    adapter: Adapter
    sequences: list[list[int]]

    @property
    def options(self) -> SpartanKind:
        assert isinstance(self.adapter.form.kind, SpartanKind)
        return self.adapter.form.kind


def case(twins: Twins, layers: tuple[str, ...] = ("all",), **options: Any) -> Case:
    """Return a case with values that change the model's output clearly."""
    adapter, rng = Adapter(twins.model, Form(SpartanKind(**options), layers=layers)), np.random.default_rng(3)
    state = adapter.state()
    assert all(values.any() != name.endswith(".values") for name, values in state.items())
    adapter.load_state({name: rng.normal(0, 0.3, s).astype(np.float32) for name, s in adapter.shapes().items()})
    return Case(twins, adapter, draw(SEQUENCES, twins.model.config.vocab_size))


def truth(given: Case) -> Result:
    with inserted(given.twins.reference, given.adapter.state(), given.options) as tensors:
        loss, _ = _loss(given.twins.reference, given.sequences, None, lambda *_: None)
        loss.backward()
    return Result(loss.item(), {name: tensor.grad.numpy() for name, tensor in tensors.items()})  # type: ignore[union-attr]


def ours(given: Case, method: str = "mesp", **plan: Any) -> Result:
    """Return a method's loss and gradients, in as much memory as its dry run predicted."""
    adapter, batch = given.adapter, Batch.from_sequences(given.sequences)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    tile = 256 if given.twins.model.config.intermediate_size > 256 else 64
    chosen = Plan(**{"tokens": batch.n_tokens, "compute": "fp32", "mlp_tile": tile, "vocab_tile": 48, **plan})
    at_work = methods.create(method, given.twins.model, adapter, chosen)
    total = at_work.gradients(batch, 1 / batch.n_targets, gradients, Draw(seed=1))
    scratch = at_work.resources.scratch
    assert scratch.high_water == scratch.capacity
    at_work.close()
    return Result(total / batch.n_targets, adapter.state(gradients))


def check(given: Case, method: str = "mesp", **plan: Any) -> None:
    assert_close(ours(given, method, **plan), truth(given), BOUND)


PLANS: list[tuple[str, dict[str, Any]]] = [
    ("mesp", {}), ("mesp", {"chunk": 5}), ("mesp", {"keep": {"memory in": 2}}), ("mebp", {}),
]  # fmt: skip


@pytest.mark.parametrize("name", some(sorted(families.MODELS, key=("gemma2", "llama").__contains__, reverse=True), 2))
def test_gradients_are_autograds(all_twins: dict[str, Twins], name: str) -> None:
    given = case(all_twins[name])
    expected = truth(given)
    for method, plan in PLANS:
        assert_close(ours(given, method, **plan), expected, BOUND)


def test_some_layers_have_a_memory(all_twins: dict[str, Twins]) -> None:
    given = case(all_twins["qwen2"], ("last:1",), **SMALL)
    layout = given.adapter.layout
    assert [len(block.branches) for block in layout.blocks] == [2] * (layout.slots.layers - 1) + [3]
    check(given)


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_mebp_is_mesp(all_twins: dict[str, Twins], compute: str) -> None:
    given = case(all_twins["llama"])
    assert_equal(*(ours(given, method, compute=compute) for method in ("mesp", "mebp")))


@pytest.mark.parametrize("method", METHODS.names)
def test_every_method_takes_what_was_counted(all_twins: dict[str, Twins], method: str) -> None:
    given = case(all_twins["qwen2"], **SMALL)
    for compute in ("bf16", "int16"):
        found = ours(given, method, compute=compute)
        assert all(np.isfinite(values).all() for values in found.grads.values())


def test_it_decodes(all_twins: dict[str, Twins]) -> None:
    given, (tokens,) = case(all_twins["llama"]), draw((12,), 101)
    with inserted(given.twins.reference, given.adapter.state(), given.options), torch.no_grad():
        expected = given.twins.reference(input_ids=torch.tensor([tokens])).logits[0].numpy()
    decoder = Decoder(given.twins.model, given.adapter, len(tokens), compute="fp32")
    parts = [decoder.forward(tokens[:9], every=True), *(decoder.forward([each])[None] for each in tokens[9:])]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=2e-4 * np.abs(expected).max())
    assert decoder.arenas[0].high_water <= decoder.arenas[0].capacity
    decoder.close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"cells": 50},
            "50 cells cannot be shared evenly by 16 parents. Make .*cells a multiple of .*parents, such as 48",
        ),
        ({"selected_parents": 17}, "A token cannot select 17 of 16 parents"),
        ({"cell_temperature": 0.0}, "cell-temperature is 0.0; it must be a positive number"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FeatherbackError, match=complaint):
        SpartanKind(**options)


def _softmax_over_all(patch: pytest.MonkeyPatch) -> None:
    """Fault: p is the softmax over all parents, not over the selected ones."""
    patch.setattr(spartan, "Gating", partial(Gating, normalised=False))


def _temperature_on_parents(patch: pytest.MonkeyPatch) -> None:
    """Fault: the parents' logits are divided by the temperature too."""
    scores = SparseMemory._scores

    def divided(self: SparseMemory, ctx: Any, n: Any, values: Any) -> Any:
        found = scores(self, ctx, n, values)
        ctx.ops.scale(found, 1 / self.options.cell_temperature)
        return found

    patch.setattr(SparseMemory, "_scores", divided)


def _values_unweighted(patch: pytest.MonkeyPatch) -> None:
    """Fault: V is not weighted by the parent."""
    of = Routing.of
    patch.setattr(Routing, "of", lambda chosen, weights: of(chosen, np.ones_like(weights)))


def _no_parents_gradient(patch: pytest.MonkeyPatch) -> None:
    """Fault: the softmax over the parents passes nothing back."""
    patch.setattr(SparseMemory, "_parents_backward", lambda *_: None)


FAULTS = [_softmax_over_all, _temperature_on_parents, _values_unweighted, _no_parents_gradient]


@pytest.mark.parametrize("plant", FAULTS)
def test_a_planted_fault_is_found(
    all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    given = case(all_twins["qwen2"])
    expected, plain = truth(given), Alone.drawn(**SMALL)
    plant(monkeypatch)
    given.adapter.layout.blocks = given.adapter.form.extended(given.twins.model.blocks)  # made with the fault
    with pytest.raises(AssertionError):
        assert_close(ours(given), expected, BOUND)
    with pytest.raises(AssertionError):
        plain.check()
