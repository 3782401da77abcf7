"""ReGELU2: of GELU's input two bits are kept, and the backward pass has the four-level slope of autograd's oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.backend.arena import aligned
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.nn.encodings import ENCODINGS
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, assert_equal, cosines, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.oracle import random_adapter, reference
from tests.support.slopes import SLOPES, codes

FAMILIES = ("starcoder2", "starcoder2-window")
WITHOUT_DOWN = ("q_proj", "k_proj", "v_proj", "o_proj", "c_fc")
LENGTHS = (5, 1, 40, 17)


class FourSlopes(torch.autograd.Function):
    """GELU, whose gradient is that of the piecewise linear function with the published constants."""

    @staticmethod
    def forward(ctx: Any, z: Any) -> Any:
        ctx.save_for_backward(z)
        return torch.nn.functional.gelu(z, approximate="tanh")

    @staticmethod
    def backward(ctx: Any, da: Any) -> Any:
        (z,) = ctx.saved_tensors
        return da * torch.tensor(SLOPES, dtype=da.dtype)[torch.from_numpy(codes(z.detach().numpy()))]


class Activation(torch.nn.Module):
    def forward(self, z: Any) -> Any:
        return FourSlopes.apply(z)


def with_slopes(twins: Twins, state: dict[str, Any], sequences: Sequence[Sequence[int]]) -> Result:
    """Return autograd's gradients with `FourSlopes` in every MLP."""
    mlps = [layer.mlp for layer in twins.reference.model.layers]
    before = [mlp.act for mlp in mlps]
    for mlp in mlps:
        mlp.act = Activation()
    try:
        found = reference(twins.reference, state, sequences)
    finally:
        for mlp, activation in zip(mlps, before):
            mlp.act = activation
    return Result(found.loss, found.grads)


def kept(twins: Twins, layers: int | None = None) -> dict[str, Any]:
    """Return the fields of a plan that keeps slopes in `layers` layers (None: all)."""
    return {
        "keep": {"up": len(twins.model.blocks) if layers is None else layers},
        "encodings": {"up": "regelu2"},
        "mlp_tile": 256,
        "vocab_tile": 48,
    }


@pytest.mark.parametrize("targets", [WITHOUT_DOWN, ("q_proj", "v_proj"), ("c_fc",)], ids="+".join)
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_four_slopes(all_twins: dict[str, Twins], name: str, targets: Sequence[str]) -> None:
    twins = all_twins[name]
    sequences, state = draw(LENGTHS, 101), random_adapter(twins.reference, 4, targets, seed=1)
    truth, exact = with_slopes(twins, state, sequences), reference(twins.reference, state, sequences)
    assert truth.loss == exact.loss  # the forward pass is exact
    for chunk in (None, 7):
        found = ours(twins.model, state, sequences, **kept(twins), chunk=chunk)
        assert_close(found, truth, BOUND)
    joined = [{"": np.concatenate([each.grads[part].ravel() for part in exact.grads])} for each in (found, exact)]
    whole = cosines(*joined)[""]
    assert 0.8 < whole < 0.9999  # close to the exact gradient, and not equal to it


def test_layers_without_codes_are_exact(all_twins: dict[str, Twins]) -> None:
    """The last layer's gradients depend on no slope below it, the first layer's on all of them."""
    twins = all_twins["starcoder2"]
    sequences, state = draw(LENGTHS, 101), random_adapter(twins.reference, 4, WITHOUT_DOWN, seed=1)
    exact = ours(twins.model, state, sequences, mlp_tile=256, vocab_tile=48)
    found = ours(twins.model, state, sequences, **kept(twins, layers=1))
    for name, gradient in found.grads.items():
        is_equal = np.array_equal(gradient, exact.grads[name])
        assert is_equal == (".layers.1." in name), name


@pytest.mark.parametrize("targets", [("c_proj",), (*WITHOUT_DOWN, "c_proj")], ids=["down", "all"])
def test_an_adapter_on_down_needs_the_activation(all_twins: dict[str, Twins], targets: Sequence[str]) -> None:
    """Gradients are then exact, although a plan asks for codes."""
    twins = all_twins["starcoder2"]
    sequences, state = draw(LENGTHS, 101), random_adapter(twins.reference, 4, targets, seed=1)
    exact = ours(twins.model, state, sequences, mlp_tile=256, vocab_tile=48)
    assert_equal(ours(twins.model, state, sequences, **kept(twins)), exact)


def _off_by_one(encoding: Any, ops: Any, da: Any, stored: Any, dz: Any) -> None:
    """Fault: each code has the next code's slope."""
    ops.slope_backward(da, stored, np.roll(encoding.slopes, -1), dz)


def _swapped(encoding: Any, ops: Any, da: Any, stored: Any, dz: Any) -> None:
    """Fault: the codes of a byte are read in the opposite order."""
    if isinstance(stored, np.ndarray):
        codes = sum((stored >> shift & 3) << 6 - shift for shift in (0, 2, 4, 6)).astype(np.uint8)
        ops.slope_backward(da, codes, encoding.slopes, dz)


def _other_bounds(encoding: Any, ops: Any, values: Any, stored: Any) -> None:
    """Fault: the outer bounds are those of another function."""
    ops.slope_codes(values, np.float32([-6.305, -0.0012, 6.326]), stored)


@pytest.mark.parametrize(
    ("part", "planted"),
    [("backward", _off_by_one), ("backward", _swapped), ("store", _other_bounds)],
    ids=["slopes off by one", "codes swapped", "other bounds"],
)
def test_planted_faults_are_found(
    all_twins: dict[str, Twins], part: str, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = all_twins["starcoder2"]
    sequences, state = draw(LENGTHS, 101), random_adapter(twins.reference, 4, WITHOUT_DOWN, seed=1)
    truth = with_slopes(twins, state, sequences)
    monkeypatch.setattr(type(ENCODINGS["regelu2"]), part, planted)
    with pytest.raises(AssertionError):
        assert_close(ours(twins.model, state, sequences, **kept(twins)), truth, BOUND)


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
def test_codes_take_the_bytes_of_the_dry_run(all_twins: dict[str, Twins], compute: str) -> None:
    """A code takes two bits: an eighth of the exact bytes in bf16, a sixteenth in fp32, in groups of 64 columns."""
    model, tokens = all_twins["starcoder2"].model, 64
    batch = Batch.from_sequences([np.arange(tokens) % model.config.vocab_size])
    size, layers = model.config.intermediate_size, len(model.blocks)
    exact = {"bf16": 2, "fp32": 4}[compute] * size
    for encodings, row in (({}, exact), ({"up": "regelu2"}, -(-size // 64) * 16)):
        adapter = LoRA(model, 4, targets="q,k,v,o,up")
        plan = Plan(
            tokens=tokens, compute=compute, mlp_tile=256, vocab_tile=48, keep={"up": layers}, encodings=encodings
        )
        at_work = methods.create("mesp", model, adapter, plan)
        at_work.gradients(batch, 1.0, PagedArray(adapter.parameters.layers, adapter.layer_size))
        room, scratch = at_work.resources.kept, at_work.resources.scratch
        assert room.high_water == room.capacity == layers * aligned((tokens, row), np.dtype(np.uint8))
        assert scratch.high_water == scratch.capacity
        at_work.close()


def test_constants_are_published_ones() -> None:
    """They make a sum of ReLUs that ends with slope 1, and that is closer to GELU than with other bounds."""
    from tests.support.slopes import A, C

    encoding: Any = ENCODINGS["regelu2"]
    np.testing.assert_array_equal(encoding.bounds, np.float32(C))
    np.testing.assert_array_equal(encoding.slopes, np.float32(SLOPES))
    assert abs(sum(A) - 1) < 1e-9
    z = np.linspace(-12, 12, 200_001)
    gelu = torch.nn.functional.gelu(torch.from_numpy(z)).numpy()

    def distance(a: Any, c: Any) -> float:
        total = sum(weight * np.maximum(z - bound, 0) for weight, bound in zip(a, c))
        return float(((total - gelu) ** 2).mean())

    best = distance(A, C)
    for index in range(3):
        for step in (-0.02, 0.02):
            moved = list(C)
            moved[index] += step
            assert distance(A, moved) > best
