"""LCSB against autograd of a model whose skipped blocks output h + detach(o - h)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from featherback.engine.backend.protocol import Array
from featherback.engine.host.paged import PagedArray
from featherback.methods import lcsb
from featherback.methods.base import Draw
from featherback.methods.lcsb import LCSB, LCSBOptions
from featherback.methods.sweep import Layer
from featherback.nn.context import Context
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, ours
from tests.methods.test_exact_gradients import BOUND, draw
from tests.support.oracle import Reference, State, random_adapter, reference

HALF = LCSBOptions()


def skipping(twins: Twins, state: State, sequences: list[list[int]], skipped: Sequence[int]) -> Reference:
    """Return autograd's gradients, with some blocks skipped."""

    def skip(module: torch.nn.Module, given: Any, output: Any) -> Any:
        h, whole = given[0], isinstance(output, torch.Tensor)
        o = output if whole else output[0]
        passed = h + (o - h).detach() + 0 * o  # 0, so that its adapter's gradients are zeros instead of none
        return passed if whole else (passed, *output[1:])

    layers = twins.reference.model.layers
    hooks = [layers[index].register_forward_hook(skip) for index in skipped]
    try:
        return reference(twins.reference, state, sequences)
    finally:
        for hook in hooks:
            hook.remove()


def check(twins: Twins, selected: Sequence[int], options: LCSBOptions = HALF, step: int = 0, **plan: Any) -> None:
    sequences = draw((33, 9), twins.model.config.vocab_size)
    state = random_adapter(twins.reference, 4, seed=1)
    skipped = sorted(set(range(twins.model.config.num_hidden_layers)) - set(selected))
    truth = skipping(twins, state, sequences, skipped)
    found = ours(
        twins.model, state, sequences, method="lcsb", options=options, draw=Draw(step=step), mlp_tile=256,
        **plan,
    )  # fmt: skip
    for name, gradient in found.grads.items():
        expected_zero = any(f"layers.{index}." in name for index in skipped)
        assert gradient.any() != expected_zero, name
    assert_close(found, Result(truth.loss, truth.grads), BOUND)


ROUNDS: dict[str, tuple[float, list[list[int]]]] = {
    "llama": (0.5, [[0], [1]]),
    "qwen2-late-window": (0.6, [[0, 1], [0, 2], [1, 2]]),
    "smollm3": (0.4, [[0, 1], [2, 3], [0, 4]]),
    "gemma3": (0.5, [[0, 1, 2, 3], [0, 4, 5, 6], [1, 2, 3, 4]]),
}
"""Share -> the blocks of the first steps."""


@pytest.mark.parametrize("name", ROUNDS)
def test_selected_blocks_and_no_others(all_twins: dict[str, Twins], name: str) -> None:
    share, rounds = ROUNDS[name]
    for step, selected in enumerate(rounds):
        check(all_twins[name], selected, LCSBOptions(share=share), step)


@pytest.mark.parametrize("plan", [{"chunk": 5}, {"keep": {"gate": 1, "up": 1}}, {"keep_h": False}], ids=str)
def test_in_every_layout(all_twins: dict[str, Twins], plan: dict[str, Any]) -> None:
    check(all_twins["qwen2-late-window"], [0, 2], LCSBOptions(share=0.6), 1, **plan)


def test_all_blocks_are_mesp(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["smollm3"]
    sequences, state = draw((33,), twins.model.config.vocab_size), random_adapter(twins.reference, 4, seed=1)
    exact = ours(twins.model, state, sequences)
    found = ours(twins.model, state, sequences, method="lcsb", options=LCSBOptions(share=1.0))
    assert found.loss == exact.loss
    assert all(np.array_equal(found.grads[name], exact.grads[name]) for name in exact.grads)


class Dropping(LCSB):
    """Fault: the gradient of a skipped block is dropped."""

    def block_backward(self, ctx: Context, layer: Layer, dy: Array, x: Array) -> None:
        super().block_backward(ctx, layer, dy, x)
        ctx.ops.fill(dy, 0)  # of the last block; the next one is skipped, and nothing comes after the first


class Missing(LCSB):
    """Fault: a block that should be skipped is not."""

    def backward_blocks(self, draw: Draw) -> Sequence[int]:
        return range(len(self.model.blocks))[::-1]

    @classmethod
    def count_backward(cls, layers: int, options: Any) -> int:
        return layers


@pytest.mark.parametrize("fault", [Dropping, Missing])
def test_planted_faults_are_found(
    all_twins: dict[str, Twins], fault: type[LCSB], monkeypatch: pytest.MonkeyPatch
) -> None:
    twins, half = all_twins["qwen2-late-window"], LCSBOptions(share=0.6)
    check(twins, [0, 2], half, 1)
    monkeypatch.setattr(lcsb, "METHOD", fault)
    with pytest.raises(AssertionError):
        check(twins, [0, 2], half, 1)


def test_orders(all_twins: dict[str, Twins]) -> None:
    """Random blocks depend only on seed and step, and every block is chosen sometimes."""
    model = all_twins["gemma3"].model

    def chosen(order: str, seed: int, step: int) -> tuple[int, ...]:
        method = object.__new__(LCSB)
        method.model, method.adapter, method.options = model, None, LCSBOptions(order=order, share=0.3)
        return tuple(method.backward_blocks(Draw(seed, step)))

    assert [chosen("cyclic", 0, step) for step in range(4)] == [(1, 0), (3, 2), (5, 4), (6, 0)]
    drawn = [chosen("random", 5, step) for step in range(40)]
    assert (
        drawn == [chosen("random", 5, step) for step in range(40)] != [chosen("random", 6, step) for step in range(40)]
    )
    assert all(len(set(blocks)) == 2 and sorted(blocks, reverse=True) == list(blocks) for blocks in drawn)
    assert {block for blocks in drawn for block in blocks} == set(range(7))


def test_the_optimiser_leaves_a_skipped_layer_alone() -> None:
    """Skipped blocks rest as in PyTorch's AdamW without a gradient: no decay, no momentum, no step counted."""
    from featherback import optim
    from featherback.nn.slots import SlotTable

    rng = np.random.default_rng(0)
    start = rng.standard_normal((3, 11)).astype(np.float32)
    parameters = PagedArray(3, 11)
    tensors = [torch.nn.Parameter(torch.from_numpy(row.copy())) for row in start]
    for layer, row in enumerate(start):
        parameters.write(layer, row)
    ours = optim.create("adamw", parameters, SlotTable([{"w": (11,)}] * 3), {"weight_decay": 0.1})
    theirs = torch.optim.AdamW(tensors, lr=1e-2, weight_decay=0.1)
    gradients = PagedArray(3, 11)
    for step in range(7):
        gradients.clear()
        theirs.zero_grad(set_to_none=True)
        for layer in {step % 3, (step + 1) % 3} - {2 if step < 3 else 3}:
            row = rng.standard_normal(11).astype(np.float32)
            gradients.write(layer, row)
            tensors[layer].grad = torch.from_numpy(row.copy())
        ours.step(gradients, 1e-2)
        theirs.step()
    for layer, tensor in enumerate(tensors):
        found = np.empty(11, np.float32)
        parameters.read(layer, found)
        np.testing.assert_allclose(found, tensor.detach().numpy(), rtol=1e-5, atol=1e-7)
