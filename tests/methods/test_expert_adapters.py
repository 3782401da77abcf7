"""LoRA on experts and routers, held against PEFT's `target_parameters` and autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.methods import METHODS
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter, LoRA
from featherback.models.architecture.names import parse_targets, short
from featherback.models.form import Form
from featherback.nn.adapters import stacked
from featherback.nn.adapters.lora import LoRAAtProjection
from featherback.nn.block import adaptable
from featherback.nn.linear import Projection
from featherback.nn.router import Gating
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, assert_equal
from tests.methods.test_exact_gradients import BOUND, draw
from tests.methods.test_experts import ROUTED
from tests.support.expert_adapters import autograd_of_experts, random_values
from tests.support.families import TYPICAL
from tests.support.families.qwen3moe import TINY_QWEN3MOE
from tests.support.tiny_models import tiny, write_tiny

EVERYTHING = "all,experts,router"


def ours(adapter: LoRA, sequences: Sequence[Sequence[int]], method: str = "mesp", **plan: Any) -> Result:
    batch = Batch.from_sequences([list(each) for each in sequences])
    usual = Plan.default(adapter.model.config, tokens=batch.n_tokens, compute="fp32")
    tile = max(128, adapter.model.layer(len(adapter.model.blocks) - 1).matrices["down_exps"].type.block_size)
    chosen = replace(usual, **{"mlp_tile": tile, "vocab_tile": 48, **plan})
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    at_work = methods.create(method, adapter.model, adapter, chosen)
    total = at_work.gradients(batch, 1 / batch.n_terms, gradients)
    at_work.close()
    return Result(total / batch.n_terms, adapter.state(gradients))


@pytest.mark.parametrize("name", [name for name in ROUTED if name in TYPICAL])
def test_gradients_are_autograds(all_twins: dict[str, Twins], name: str) -> None:
    """Whole, packed and in chunks; MeBP is equal to the last bit."""
    twins = all_twins[name]
    adapter = random_values(twins.model, EVERYTHING, 3)
    sequences = draw((5, 1, 40, 17), twins.model.config.vocab_size)
    truth = autograd_of_experts(twins.reference, adapter.state(), sequences)
    for plan in ({}, {"weights": "by_matrix"}, {"chunk": 19}):
        found = ours(adapter, sequences, **plan)
        assert_close(found, truth, BOUND)
        if "chunk" not in plan:
            assert_equal(ours(adapter, sequences, "mebp", **plan), found)
    bf16 = [ours(adapter, sequences, method, compute="bf16") for method in ("mesp", "mebp")]
    assert_equal(*bf16)


@pytest.mark.parametrize("targets", ["experts", "router", "q,router", "down_exps"])
def test_some_targets(all_twins: dict[str, Twins], targets: str) -> None:
    for name in ("qwen3moe", "qwen3moe-untied-fused-all-used"):
        twins = all_twins[name]
        adapter, sequences = random_values(twins.model, targets, 4), draw((21,), 101)
        assert_close(ours(adapter, sequences), autograd_of_experts(twins.reference, adapter.state(), sequences), BOUND)


def fault_in_dw(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a weight without what down's adapter adds."""

    def without(self: Projection, ctx: Any, dy: Any, dh: Any, x: Any, dx: Any, **options: Any) -> None:
        if self.name == "down_exps":
            dh = None
        original(self, ctx, dy, dh, x, dx, **options)

    original = Projection.backward_input
    monkeypatch.setattr(Projection, "backward_input", without)


def fault_in_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every expert has the first one's adapter."""
    monkeypatch.setattr(stacked, "of_expert", lambda values, expert: values[:1].reshape(*values.shape[1:]))


def fault_in_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """dh without s."""

    def unscaled(self: LoRAAtProjection, ctx: Any, dy: Any, dh: Any, *, accumulate: bool = False) -> None:
        ctx.ops.lora_in(dy, self.b, dh, 1.0, accumulate=accumulate)

    monkeypatch.setattr(LoRAAtProjection, "read_backward", unscaled)


def fault_in_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of experts that are not multiplied by the weights."""
    monkeypatch.setattr(CPUOperations, "scale_rows", lambda self, x, factors: None)


def fault_in_router(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router's adapter sees the scores' gradient with the other sign."""
    original = Gating.backward

    def turned(self: Gating, z: Any, chosen: Any, dw: Any, dz: Any) -> None:
        original(self, z, chosen, -dw, dz)

    monkeypatch.setattr(Gating, "backward", turned)


@pytest.mark.parametrize(
    "plant",
    [fault_in_dw, fault_in_experts, fault_in_scale, fault_in_weights, fault_in_router],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    twins = all_twins["qwen3moe"]
    adapter, sequences = random_values(twins.model, EVERYTHING, 3), draw((33,), 101)
    truth = autograd_of_experts(twins.reference, adapter.state(), sequences)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        assert_close(ours(adapter, sequences), truth, BOUND)


@pytest.mark.parametrize("method", METHODS.names)
def test_memory_is_enough_for_any_routing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    path = write_tiny(tmp_path / "a.gguf", tiny(TINY_QWEN3MOE, vocab_size=33), TensorType.F16)
    model = models.load(path)
    adapter = random_values(model, EVERYTHING, 4)
    for lengths, same in (((20, 1, 43), False), ((20, 1, 43), True), ((2,), False)):
        if same:
            monkeypatch.setattr(
                Gating, "select", lambda self, z, bias, where: np.tile(np.arange(self.used), (len(z), 1))
            )
        batch = Batch.from_sequences(draw(lengths, 33))
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        plan = Plan(tokens=sum(lengths), mlp_tile=256, vocab_tile=33)
        at_work = methods.create(method, model, adapter, plan)
        at_work.gradients(batch, 1.0, gradients)
        scratch = at_work.resources.scratch
        at_work.close()
        assert scratch.high_water <= scratch.capacity
        assert scratch.high_water == scratch.capacity or method == "mebp" or not same
        monkeypatch.undo()


def test_names_of_targets() -> None:
    known = ("q_proj", "v_proj", "gate_exps", "up_exps", "down_exps", "router")
    assert parse_targets("all", known) == ("q_proj", "v_proj")
    assert parse_targets("all,experts", known) == known[:5]
    assert parse_targets("router,q", known) == ("q_proj", "router")
    assert parse_targets(known[2:], known) == known[2:]
    assert short(known) == "q,v,experts,router"
    assert short(("q_proj", "down_exps")) == "q,down_exps"
    assert parse_targets(short(("q_proj", "down_exps")), known) == ("q_proj", "down_exps")
    for targets in ("experts", "router"):
        with pytest.raises(FeatherbackError, match=r"^Unknown LoRA target .*; expected one of: q, v, all"):
            parse_targets(targets, known[:2])


def test_seeds_of_other_targets_stay(all_twins: dict[str, Twins]) -> None:
    """Values of the usual targets do not depend on whether experts are adapted."""
    model = all_twins["qwen2moe"].model
    usual, more = LoRA(model, 4).state(), LoRA(model, 4, targets=EVERYTHING).state()
    assert all(np.array_equal(more[name], values) for name, values in usual.items())
    first, second = more["model.layers.0.mlp.experts.gate_proj.lora_A.weight"][:2]
    assert not np.array_equal(first, second)
    assert abs(first).max() <= model.config.hidden_size**-0.5
    assert adaptable(model.blocks)[-4:] == ("router", "gate_exps", "up_exps", "down_exps")


@pytest.mark.parametrize(
    ("options", "what"), [({"dora": True}, "DoRA"), ({"adapter": "ia3"}, "IA3"), ({"dropout": 0.1}, "dropout")], ids=str
)
def test_kinds_that_cannot_adapt_experts(all_twins: dict[str, Twins], options: dict[str, Any], what: str) -> None:
    for targets, named in (("all,experts", "experts"), ("router", "router"), ("up_exps,router", "router,up_exps")):
        message = rf"^{named} cannot be adapted with {what}, only with LoRA without dropout; "
        with pytest.raises(FeatherbackError, match=message):
            Adapter(all_twins["qwen3moe"].model, Form.of(targets=targets, **options))
