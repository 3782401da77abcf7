"""Experts: gradients of the gating, memory for any routing, what is read and released, and bad models."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.formats.types import TensorType
from featherback.engine.host.expert_pages import ExpertPages
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.methods import METHODS
from featherback.methods.memory.plan import Plan
from featherback.methods.whole.settings import WholeModelSettings
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.nn.experts import ROUTER, Experts
from featherback.nn.router import Gating, Routing, expected_experts
from featherback.optim.rules.sgd import SGD
from tests.methods.conftest import Twins
from tests.methods.support import adapter_of, ours
from tests.methods.test_exact_gradients import draw
from tests.support.families import cases
from tests.support.families.qwen3moe import TINY_QWEN3MOE
from tests.support.oracle import random_adapter
from tests.support.tiny_models import tiny, write_tiny

GATINGS = {
    "softmax": Gating(experts=9, used=4, normalised=False, scale=1.7),
    "softmax, normalised": Gating(experts=9, used=4, scale=0.6),
    "sigmoid": Gating(experts=9, used=4, sigmoid=True, normalised=False, scale=2.5),
    "sigmoid, normalised": Gating(experts=9, used=4, sigmoid=True, scale=2.5, eps=0.3),
    "all used": Gating(experts=9, used=9),
    "one used": Gating(experts=9, used=1, normalised=False),
}


def torch_weights(gating: Gating, z: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The weights (T, k), in float64, by their definition."""
    scores = torch.sigmoid(z) if gating.sigmoid else torch.softmax(z, dim=1)
    weights = scores.gather(1, chosen)
    if gating.normalised:
        weights = weights / (weights.sum(dim=1, keepdim=True) + gating.eps)
    return gating.scale * weights


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", GATINGS)
def test_gating_is_autograds(name: str, biased: bool) -> None:
    gating, rng = GATINGS[name], np.random.default_rng(0)
    z, dw = (3 * rng.standard_normal((150, n)).astype(np.float32) for n in (gating.experts, gating.used))
    bias = rng.standard_normal(gating.experts).astype(np.float32) if biased else None
    chosen = gating.select(z, bias, "The router")
    scores = 1 / (1 + np.exp(-z.astype(np.float64))) if gating.sigmoid else z
    best = np.argsort(-(scores + (0 if bias is None else bias)), axis=1)[:, : gating.used]
    assert np.array_equal(chosen, np.sort(best, axis=1))
    exact = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    weights = torch_weights(gating, exact, torch.tensor(chosen))
    weights.backward(torch.tensor(dw, dtype=torch.float64))
    np.testing.assert_allclose(gating.weights(z, chosen, ""), weights.detach(), rtol=1e-5, atol=1e-7)
    dz = np.full_like(z, np.nan)
    gating.backward(z, chosen, dw, dz)
    assert exact.grad is not None
    np.testing.assert_allclose(dz, exact.grad, rtol=1e-4, atol=1e-5)


def test_entries_are_sorted_by_expert() -> None:
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permuted(np.tile(np.arange(6), (40, 1)), axis=1)[:, :2], axis=1)
    weights = rng.random(chosen.shape, np.float32)
    routing = Routing.of(chosen, weights)
    for group in routing.groups:
        rows = routing.rows[group.first : group.last]
        tokens, places = np.nonzero(chosen == group.expert)
        assert np.array_equal(rows, tokens)
        assert np.array_equal(routing.weights[group.first : group.last], weights[tokens, places])
    assert np.array_equal(routing.by_token(routing.weights), weights)


def test_how_many_experts_a_batch_needs() -> None:
    assert [expected_experts(tokens, 128, 8) for tokens in (1, 16, 32, 64, 256)] == [8, 82, 112, 126, 128]
    assert expected_experts(5, 4, 4) == 4
    routing = Routing.expected(64, 7, 3)
    assert routing.groups[0].last - routing.groups[0].first == 64
    assert len(routing.groups) == 7
    assert routing.groups[-1].last == 64 * 3
    assert len(Routing.expected(3, 8, 1).groups) == 3


ROUTED = [name for name, (config, _) in cases().items() if hasattr(config, "experts_used")]


@pytest.mark.parametrize("name", [*ROUTED, "bitnet", "lfm2", "qwen35"])
def test_greedy_text_is_transformers(all_twins: dict[str, Twins], name: str) -> None:
    from featherback.infer.decoder import Decoder

    twins = all_twins[name]
    (tokens,) = draw((9,), twins.model.config.vocab_size)
    wanted = twins.reference.generate(
        torch.tensor([tokens]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0].tolist()
    decoder, found = Decoder(twins.model, compute="fp32"), list(tokens)
    logits = decoder.forward(tokens)
    for _ in range(12):
        found.append(int(logits.argmax()))
        logits = decoder.forward(found[-1:])
    decoder.close()
    assert found == wanted


def run(model: Model, name: str, lengths: tuple[int, ...], **plan: Any) -> Any:
    """Run a batch and a loss. Returns the scratch memory."""
    rng = np.random.default_rng(0)
    batch = Batch.from_sequences([rng.integers(0, model.config.vocab_size, n) for n in lengths])
    batch.targets[:] = 1
    adapter = LoRA(model, 4)
    gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
    chosen = Plan(tokens=sum(lengths), mlp_tile=256, vocab_tile=33, **plan)
    at_work = methods.create(name, model, adapter, chosen)
    at_work.gradients(batch, 1.0, gradients)
    at_work.loss(batch)
    at_work.close()
    assert at_work.resources.kept.high_water <= at_work.resources.kept.capacity
    return at_work.resources.scratch


@pytest.mark.parametrize("weights", ["resident", "paged", "by_matrix", "streamed"])
@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize("method", METHODS.names)
def test_memory_is_enough_for_any_routing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, chunk: int | None, weights: str
) -> None:
    """It is used to the last byte if all tokens pass the same experts."""
    if chunk is not None and not METHODS[method].can_chunk:
        return
    model = models.load(write_tiny(tmp_path / "a.gguf", tiny(TINY_QWEN3MOE, vocab_size=33), TensorType.F16))
    for lengths in ((20, 1, 43), (2,)):
        scratch = run(model, method, lengths, chunk=chunk, weights=weights)
        assert scratch.high_water <= scratch.capacity
        monkeypatch.setattr(Gating, "select", lambda self, z, bias, where: np.tile(np.arange(self.used), (len(z), 1)))
        scratch = run(model, method, lengths, chunk=chunk, weights=weights)
        assert scratch.high_water == scratch.capacity or method == "mebp"  # which holds the arrays of all experts
        monkeypatch.undo()


@pytest.mark.parametrize("compute", ["bf16", "int16"])
def test_the_selection_is_kept(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, compute: str) -> None:
    """The backward pass starts from a rounded checkpoint, and must not select again."""
    twins, calls = all_twins["qwen3moe"], Counter[str]()
    select = Gating.select

    def counted(self: Gating, *arguments: Any) -> Any:
        calls["select"] += 1
        return select(self, *arguments)

    monkeypatch.setattr(Gating, "select", counted)
    state, sequences = random_adapter(twins.reference, 4), draw((33, 5), 101)
    for chunk, times in ((None, 1), (19, 2)):
        calls.clear()
        ours(twins.model, state, sequences, compute=compute, chunk=chunk)
        assert calls["select"] == times * twins.model.config.num_hidden_layers


@pytest.mark.parametrize("compute", ["bf16", "int16"])
def test_other_computes_are_near(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, compute: str) -> None:
    """If all select the same experts, gradients differ by rounding only."""
    twins = all_twins["qwen3moe"]

    def of_position(self: Gating, z: Any, bias: Any, where: str) -> Any:
        return np.sort((np.arange(len(z))[:, None] * 2 + np.arange(self.used)) % self.experts, axis=1)

    monkeypatch.setattr(Gating, "select", of_position)
    state, sequences = random_adapter(twins.reference, 4), draw((33,), 101)
    exact, found = (ours(twins.model, state, sequences, compute=each) for each in ("fp32", compute))
    for name, wanted in exact.grads.items():
        assert np.linalg.norm(found.grads[name] - wanted) < 0.03 * np.linalg.norm(wanted), name


@pytest.mark.parametrize("weights", ["paged", "by_matrix", "streamed"])
def test_only_selected_experts_are_read_and_released(
    all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, weights: str
) -> None:
    twins, expected, released = all_twins["qwen3moe"], list[tuple[int, int]](), Counter[int]()
    config = twins.model.config
    monkeypatch.setattr(ExpertPages, "expect", lambda self, part: expected.append((part.offset, part.nbytes)))
    monkeypatch.setattr(ExpertPages, "release", lambda self, matrix: released.update([matrix.nbytes]))
    monkeypatch.setattr(Gating, "select", lambda self, z, bias, where: np.tile([1, 4, 6], (len(z), 1)))
    state, sequences = random_adapter(twins.reference, 4), draw((9,), 101)
    found = ours(twins.model, state, sequences, weights=weights)
    resident = ours(twins.model, state, sequences)
    assert all(np.array_equal(found.grads[name], resident.grads[name]) for name in found.grads)
    stacks = [twins.model.layer(i).matrices for i in range(config.num_hidden_layers)]
    wanted = {
        (part.offset, part.nbytes)
        for layer in stacks
        for name in ("gate_exps", "up_exps", "down_exps")
        for height in [layer[name].rows // config.experts]
        for part in [layer[name].rows_between(e * height, (e + 1) * height) for e in (1, 4, 6)]
    }
    passes = expected[: len(expected)]
    assert set(passes) == wanted
    assert sum(released.values()) >= len(wanted)


def bad(tmp_path: Path, part: str = "", value: float = 0.0, **metadata: Any) -> Path:
    keys = {f"qwen3moe.{key}": each for key, each in metadata.items()}
    path = write_tiny(tmp_path / "bad.gguf", TINY_QWEN3MOE, TensorType.F32, metadata=keys)
    if part:
        model = models.load(path)
        offset = model.layer(1).matrices[part].offset
        model.close()
        data = np.memmap(path, np.float32, "r+", offset, (TINY_QWEN3MOE.experts, TINY_QWEN3MOE.hidden_size))
        data[2] = value
        data.flush()
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_router_that_is_not_finite(tmp_path: Path, value: float) -> None:
    model = models.load(bad(tmp_path, ROUTER, value))
    with pytest.raises(FeatherbackError, match=r"^The router of layer 1 gives NaN or infinite scores, .*[.]$"):
        run(model, "mesp", (5,))


def test_a_token_without_experts() -> None:
    gating, z = Gating(experts=4, used=2, sigmoid=True), np.full((3, 4), -1e4, np.float32)
    chosen = gating.select(z, None, "The router")
    with pytest.raises(FeatherbackError, match=r"^The router of layer 3 routes a token to no expert, .*[.]$"):
        gating.weights(z, chosen, "The router of layer 3")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": np.uint32(0)}, "0 experts"),
        ({"expert_count": np.uint32(4_000_000_000)}, "4000000000 experts"),
        ({"expert_count": np.uint32(8)}, r"has shape \(7, .*needs \(8"),
        ({"expert_used_count": np.uint32(0)}, "to 0 experts"),
        ({"expert_used_count": np.uint32(8)}, "to 8 experts"),
        ({"expert_used_count": np.int32(-1)}, "to -1 experts"),
        ({"expert_gating_func": np.uint32(9)}, "expert_gating_func .* is 9"),
        ({"expert_gating_func": np.uint32(3), "expert_weights_norm": False}, "expert_weights_norm .* is False"),
        ({"expert_weights_scale": np.float32(np.nan)}, "weights_scale"),
        ({"expert_weights_norm": "yes"}, "expert_weights_norm .* is 'yes'"),
        ({"expert_feed_forward_length": np.int32(-5)}, "widths -5"),
        ({"expert_group_count": np.uint32(4)}, "expert_group_count .* is 4"),
    ],
    ids=str,
)
def test_absurd_counts(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatherbackError) as caught:
        models.load(bad(tmp_path, **metadata))
    assert re.search(message, str(caught.value))
    assert str(caught.value).count("\n") == 0


def test_whole_models_with_experts_are_not_trained(all_twins: dict[str, Twins]) -> None:
    with pytest.raises(FeatherbackError, match=r"experts.*train an adapter"):
        WholeModelSettings(SGD()).check(all_twins["qwen3moe"].model)


def test_all_is_attention(all_twins: dict[str, Twins]) -> None:
    model = all_twins["qwen3moe"].model
    assert LoRA(model, 4).layout.form.targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert isinstance(model.blocks[0].branches[1], Experts)


def test_an_adapter_of_the_same_values_has_the_same_gradient_in_a_smaller_budget(
    all_twins: dict[str, Twins], tmp_path: Path
) -> None:
    twins = all_twins["qwen3moe"]
    state, sequences = random_adapter(twins.reference, 4), draw((33, 12), 101)
    exact = ours(twins.model, state, sequences)
    small = ours(twins.model, state, sequences, folder=tmp_path, weights="by_matrix", checkpoints="file", states="file")
    assert all(np.array_equal(exact.grads[name], small.grads[name]) for name in exact.grads)
    assert adapter_of(twins.model, state).layout.kinds(0).keys() == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert replace(Plan.default(twins.model.config, tokens=5)).mlp_tile == 256
