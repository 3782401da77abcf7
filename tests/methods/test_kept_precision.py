"""Gate and up kept in 8-bit blocks: the effect on gradients and memory, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods
from featherback.data.batch import Batch
from featherback.engine.backend.arena import aligned
from featherback.engine.backend.cpu import CPU
from featherback.engine.backend.protocol import Array, Operations
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.nn.context import Context
from featherback.nn.encodings import ENCODINGS, Encoding
from featherback.nn.kept import Intermediate, Kept
from featherback.nn.span import Span
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_equal, cosines, errors, ours
from tests.methods.test_exact_gradients import draw
from tests.support.blocks8 import rounded
from tests.support.oracle import random_adapter, reference
from tests.support.tiers import some

GATES = ("gate", "up")
IN_BLOCKS = dict.fromkeys(GATES, "blocks8")
BOUND = 1e-3
"""Relative to each tensor's norm."""
DRAWS = 3
"""Batches. A number halfway between two codes, within float32's rounding, may become either. Which batch has such a
number depends on the instruction set. A fault would be in all of them."""
FAMILIES = ("llama", "wide-heads", "gemma3", "phi3", "granite")


class AsKept(torch.autograd.Function):
    """function(gate, up), differentiated by autograd at the gate and up that 8-bit blocks return."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], gate: Any, up: Any, *parameters: Any) -> Any:
        ctx.function, ctx.parameters = function, parameters
        ctx.save_for_backward(gate, up)
        return function(gate, up)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        with torch.enable_grad():
            kept = [torch.from_numpy(rounded(x.detach()[0].numpy()))[None].requires_grad_() for x in ctx.saved_tensors]
            y = ctx.function(*kept)
            return (None, *torch.autograd.grad(y, [*kept, *ctx.parameters], dy))


def _forward(mlp: Any, x: Any) -> Any:
    """A gated unit of transformers that is differentiated in that way."""
    fused = getattr(mlp, "gate_up_proj", None)
    gate, up = (mlp.gate_proj(x), mlp.up_proj(x)) if fused is None else fused(x).chunk(2, dim=-1)
    activation = mlp.activation_fn if fused is not None else mlp.act_fn
    trained = [parameter for parameter in mlp.down_proj.parameters() if parameter.requires_grad]
    return AsKept.apply(lambda g, u: mlp.down_proj(activation(g) * u), gate, up, *trained)


def in_blocks(peft: Any, first: int, count: int) -> None:
    for layer in peft.base_model.model.model.layers:
        layer.mlp.forward = partial(_forward, layer.mlp)


def compared(twins: Twins, seed: int = 0, **plan: Any) -> tuple[Result, Result, Result]:
    """Return our gradients with gate and up in blocks, and autograd's with and without blocks."""
    sequences = draw((5, 1, 40, 17), twins.model.config.vocab_size, seed)
    state = random_adapter(twins.reference, 4, seed=1)
    exact = reference(twins.reference, state, sequences)
    try:
        rough = reference(twins.reference, state, sequences, before=in_blocks)
    finally:
        for layer in twins.reference.model.layers:
            layer.mlp.__dict__.pop("forward", None)
    # The norm after a unit is differentiated at the unit's output, which is kept exactly.
    behind = ["mlp_out"] if twins.model.blocks[0].branches[1].post_norm else []
    keep = dict.fromkeys([*GATES, *behind], len(twins.model.blocks))
    found = ours(twins.model, state, sequences, keep=keep, encodings=IN_BLOCKS, mlp_tile=256, vocab_tile=48, **plan)
    return found, Result(rough.loss, rough.grads), Result(exact.loss, exact.grads)


@pytest.mark.parametrize("name", some(FAMILIES, 1))
def test_gradients_are_those_at_rounded_gates(all_twins: dict[str, Twins], name: str) -> None:
    wrong = []
    for found, rough, exact in (compared(all_twins[name], seed) for seed in range(DRAWS)):
        assert abs(found.loss - exact.loss) < 1e-5 * exact.loss
        wrong.append(max(errors(found.grads, rough.grads).values()))
        away = errors(found.grads, exact.grads)
        assert 5 * BOUND < max(away.values()) < 2e-2
        assert min(cosines(found.grads, exact.grads).values()) > 0.9998
    assert min(wrong) < BOUND
    assert max(wrong) < 5 * BOUND


def test_in_chunks(all_twins: dict[str, Twins]) -> None:
    found, rough, _ = compared(all_twins["wide-heads"], chunk=7)
    assert max(errors(found.grads, rough.grads).values()) < BOUND


def _of_the_next(encoding: Any, ops: Operations, stored: Array, values: Array) -> None:
    """Fault: codes with the scale of the next block."""
    if not isinstance(stored, np.ndarray):  # a dry run's
        return
    blocks = stored.reshape(len(stored), -1, 34)
    moved = np.concatenate([np.roll(blocks[:, :, :2], 1, axis=1), blocks[:, :, 2:]], axis=2)
    ops.decode(moved.reshape(stored.shape), values)


def _of_few_bits(encoding: Any, ops: Operations, values: Array, stored: Array) -> None:
    """Fault: codes without their last bits."""
    if not isinstance(stored, np.ndarray):
        return
    ops.encode(values, stored)
    codes = stored.reshape(len(stored), -1, 34)[:, :, 2:]
    codes &= 0xFE


@pytest.mark.parametrize("fault", [("load", _of_the_next), ("store", _of_few_bits)], ids=["scales", "bits"])
def test_planted_faults_are_found(
    all_twins: dict[str, Twins], fault: tuple[str, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, planted = fault
    monkeypatch.setattr(type(ENCODINGS["blocks8"]), name, planted)
    found, rough, _ = compared(all_twins["llama"])
    assert max(errors(found.grads, rough.grads).values()) > 5 * BOUND


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
def test_one_of_both_in_blocks(all_twins: dict[str, Twins], compute: str) -> None:
    """The other one is kept exactly, or computed again."""
    twins = all_twins["llama"]
    sequences, state = draw((33,), 101), random_adapter(twins.reference, 4, seed=1)
    run = partial(ours, twins.model, state, sequences, compute=compute, mlp_tile=256, vocab_tile=48)
    exact = run(keep=dict.fromkeys(GATES, 2))
    for keep in (dict.fromkeys(GATES, 2), {"up": 2}, {"up": 1}):
        found = run(keep=keep, encodings={"up": "blocks8"})
        assert found.loss == exact.loss
        assert 0 < max(errors(found.grads, exact.grads).values()) < 2e-2


def test_what_is_exact_stays_as_it_was(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["llama"]
    sequences, state = draw((33,), 101), random_adapter(twins.reference, 4, seed=1)
    run = partial(ours, twins.model, state, sequences, mlp_tile=256, vocab_tile=48)
    kept = run(keep=dict.fromkeys(GATES, 2), encodings=dict.fromkeys(GATES, "operand"))
    assert_equal(kept, run())


@pytest.mark.parametrize(("compute", "bits"), [("bf16", 16), ("fp32", 32)])
def test_bytes_are_those_of_the_dry_run(all_twins: dict[str, Twins], compute: str, bits: int) -> None:
    """The arena has the size from the dry run, and is full at the peak."""
    model, tokens = all_twins["wide-heads"].model, 64
    batch = Batch.from_sequences([np.arange(tokens) % model.config.vocab_size])
    plan = Plan(tokens=tokens, compute=compute, mlp_tile=256, vocab_tile=48, keep=dict.fromkeys(GATES, 2))
    for encodings, per_number in (({}, bits), (IN_BLOCKS, 8.5)):
        adapter = LoRA(model, 4)
        at_work = methods.create("mesp", model, adapter, replace(plan, encodings=encodings))
        at_work.loss(batch)
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        at_work.gradients(batch, 1.0, gradients)
        kept, scratch = at_work.resources.kept, at_work.resources.scratch
        size = int(tokens * model.config.intermediate_size * per_number) // 8
        assert kept.high_water == kept.capacity == 4 * aligned((size,), np.dtype(np.uint8))
        assert scratch.high_water == scratch.capacity
        at_work.close()


class Slopes(Encoding):
    """An encoding with two bits per number: which of four slopes an activation has."""

    precision, in_place = "2bit", False
    slopes = np.float32([0, 0.25, 0.75, 1])

    def row(self, width: int, operand: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
        return -(-width // 4), np.dtype(np.uint8)

    def part(self, first: int, last: int) -> slice:
        return slice(first // 4, -(-last // 4))

    def store(self, ops: Operations, values: Array, stored: Array) -> None:
        codes = np.digitize(values, [-1, 0, 1]).astype(np.uint8)
        codes = np.pad(codes, [(0, 0), (0, -codes.shape[1] % 4)]).reshape(len(codes), -1, 4)
        stored[...] = (codes << np.arange(0, 8, 2, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)

    def load(self, ops: Operations, stored: Array, values: Array) -> None:
        codes = stored[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
        values[...] = self.slopes[codes.reshape(len(stored), -1)[:, : values.shape[1]]]


def test_a_code_of_two_bits_is_an_encoding_like_others() -> None:
    """In tiles of columns, over two spans of tokens."""
    width, tokens, encoding = 42, 9, Slopes()
    backend = CPU("fp32")
    (elements, dtype) = encoding.row(width, np.dtype(np.float32))
    kept = Kept({"slope": np.zeros((tokens, elements), dtype)}, encodings={"slope": encoding})
    z = np.random.default_rng(0).standard_normal((tokens, width)).astype(np.float32) * 2
    found = np.empty_like(z)
    for span in (Span.following(0, 5, tokens), Span.following(5, 4, tokens)):
        ctx = Context(backend, backend.arena(0), "fp32", span)
        assert kept.rows("slope", span) is None
        for columns in (slice(0, 16), slice(16, 32), slice(32, 42)):
            kept.store(ctx, "slope", z[span.own, columns], columns)
        for columns in (slice(0, 32), slice(32, 42)):
            kept.load(ctx, "slope", found[span.own, columns], columns)
    np.testing.assert_array_equal(found, encoding.slopes[np.digitize(z, [-1, 0, 1])])
    assert Intermediate(42).encoded("2bit") is None
