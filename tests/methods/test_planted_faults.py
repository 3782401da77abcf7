"""The check against autograd finds a block that is composed wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.methods import sweep
from featherback.models.model import Model
from featherback.models.rope.linear import Linear
from featherback.models.rope.longrope import LongRope
from featherback.nn.attention import Attention
from featherback.nn.block import rotaries
from featherback.nn.context import Context
from featherback.nn.experts import Experts
from featherback.nn.glu import GatedUnit
from featherback.nn.linear import BlockWeights, Projection, Rows, normed
from featherback.nn.paired_gates import PairedGates
from featherback.nn.router import Gating, Routing
from featherback.nn.span import Span, spans
from tests.methods.conftest import Twins
from tests.methods.test_exact_gradients import check, draw

ATTENTION, MLP = 0, 1  # branches of a block


def with_config(**changes: object) -> Callable[[Model], None]:
    """Use the blocks of a changed configuration."""

    def plant(model: Model) -> None:
        model.blocks = model.family.blocks(replace(model.config, **changes))  # type: ignore[arg-type]
        model.rotaries = rotaries(model.blocks)

    return plant


def without_norm_of_heads(model: Model) -> None:
    """Rotate queries and keys without norming them."""
    for block in model.blocks:
        block.branches[0].qk_norm = None
        for name in ("q_norm", "k_norm"):
            block.vectors.pop(name, None)


def scores_scaled_by(scale: float) -> Callable[[Model], None]:
    """Scale scores by another factor."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            block.branches[0].scale = scale

    return plant


def without_final_cap(model: Model) -> None:
    """Leave the logits uncapped."""
    model.head = replace(model.head, softcap=0.0)


def without_embedding_scale(model: Model) -> None:
    """Use embeddings as they are stored."""
    model.embedding_scale = 1.0


def with_multipliers(**changes: float) -> Callable[[Model], None]:
    """Use other multipliers in the whole model."""

    def plant(model: Model) -> None:
        config = replace(model.config, **changes)  # type: ignore[arg-type]
        model.blocks, model.embedding_scale = (model.family.blocks(config), model.family.embedding_scale(config))
        model.rotaries = rotaries(model.blocks)
        divided = model.family.logit_divisor(config) / model.family.logit_divisor(model.config)
        model.head = replace(model.head, norm=model.head.norm / divided, eps=model.family.norm_eps(config))

    return plant


def with_eps_of_the_file(model: Model) -> None:
    """Use norms that ignore the divisor of the residual stream."""
    for block in model.blocks:
        block.branches[0].eps = block.branches[1].eps = model.config.rms_norm_eps


def with_silu(model: Model) -> None:
    """Use another activation."""
    for block in model.blocks:
        block.branches[1].gated.activation = "silu"


def without(*vectors: str) -> Callable[[Model], None]:
    """Leave out vectors of every layer: a LayerNorm without bias is computed as an RMS norm."""

    def plant(model: Model) -> None:
        for block in set(model.blocks):
            for name in vectors:
                del block.vectors[name]

    return plant


def without_last_bias(model: Model) -> None:
    """Compute the last LayerNorm as an RMS norm."""
    model.head = replace(model.head, bias=None)


def with_half_the_slope(model: Model) -> None:
    """Leave out the 2 of relu2's slope, 2 relu(g)."""

    def halved(
        backward: Callable[..., None], ctx: Context, tiles: Any, gradients: Any, *rest: Any, **more: Any
    ) -> None:
        gate = gradients["gate"]
        ctx.ops.scale_columns(gate, np.full(gate.shape[1], 0.5, np.float32), gate)
        backward(ctx, tiles, gradients, *rest, **more)

    for unit in {id(block.branches[MLP]): block.branches[MLP] for block in model.blocks}.values():
        unit.gated.input_backward = partial(halved, unit.gated.input_backward)


def without_sub_norm(half: int) -> Callable[[Model], None]:
    """Leave out the norm inside attention or MLP, forward and backward."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            block.branches[half].__class__ = (Attention, GatedUnit)[half]

    return plant


def without_gradient_of_sub_norm(model: Model) -> None:
    """Pass the gradient through the norm inside attention as if it only multiplied by its weight."""

    def backward(
        attention: Attention, ctx: Context, state: Any, dy: Any, w: BlockWeights, do: Any, beside: Any
    ) -> None:
        s = normed(ctx, "s", state.o, w, "attn_sub_norm", attention.eps)
        w.projections["o_proj"].backward(ctx, s, dy, do)
        ctx.ops.scale_columns(do, w.vectors["attn_sub_norm"], do)

    for block in model.blocks:
        block.branches[ATTENTION]._project_output_backward = partial(backward, block.branches[ATTENTION])


def without_vector(half: int, norm: str) -> Callable[[Model], None]:
    """Leave out the norm `norm` in every layer."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            setattr(block.branches[half], norm, None)

    return plant


def with_norm_of_each_head(model: Model) -> None:
    """Norm queries and keys by head, with the weights of the first."""
    for block in set(model.blocks):
        turn, turn_back = block.branches[0]._norm_and_rotate, block.branches[0]._norm_and_rotate_backward
        size = block.branches[0].head_dim

        def first(w: BlockWeights, size: int = size) -> BlockWeights:
            part = {name: v[:size] if name in ("q_norm", "k_norm") else v for name, v in w.vectors.items()}
            return BlockWeights(w.projections, part)

        block.branches[0]._norm_and_rotate = lambda ctx, part, w, *rest, to=turn: to(ctx, part, first(w), *rest)  # type: ignore[method-assign, misc]
        block.branches[0]._norm_and_rotate_backward = lambda ctx, part, w, *rest, to=turn_back: to(
            ctx, part, first(w), *rest
        )  # type: ignore[method-assign, misc]


def with_norm_before(half: int) -> Callable[[Model], None]:
    """Let attention or MLP read the normed residual stream, with the weights of its output norm."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            part = block.branches[half]
            part.pre_norm = part.post_norm

    return plant


def with_norms_swapped(model: Model) -> None:
    """Norm attention's output with the weights of the norm after the MLP."""
    for block in set(model.blocks):  # equal layers share a block
        attention, mlp = block.branches
        attention.post_norm, mlp.post_norm = mlp.post_norm, attention.post_norm


def swapped(half: int, one: str, other: str) -> Callable[[Model], None]:
    """Exchange the rows of two equally large parts of a fused projection."""

    def plant(model: Model) -> None:
        for parts in {id(part): part for part in (block.branches[half].parts for block in model.blocks)}.values():
            parts[one], parts[other] = parts[other], parts[one]

    return plant


def with_factors_of_q(model: Model) -> None:
    """For keys, use the right rows of W, but the rows of B that belong to the first queries."""
    for block in model.blocks:
        block.branches[0].parts["k"] = FactorsOfFirstRows(*block.branches[0].parts["k"])


class FactorsOfFirstRows(Rows):
    """Use the adapter of the projection's first rows for other rows."""

    def of(self, w: BlockWeights) -> Projection:
        first = w.projections[self.stored].outputs(0, self.last - self.first)
        return super().of(w)._replace(adapter=first.adapter)


def with_scaling(**changes: object) -> Callable[[Model], None]:
    """Use the blocks of a configuration with another rotary scaling."""

    def plant(model: Model) -> None:
        assert model.config.rope_scaling is not None
        with_config(rope_scaling=replace(model.config.rope_scaling, **changes))(model)

    return plant


def whole_heads_rotated(model: Model) -> None:
    """Scale all columns, by factors that grow in the same way."""
    scaling = model.config.rope_scaling
    assert isinstance(scaling, LongRope)
    short, long = (np.interp(np.linspace(0, 11, 16), np.arange(12), f) for f in (scaling.short, scaling.long))
    stretched = replace(scaling, short=short.astype(np.float32), long=long.astype(np.float32))
    with_config(rotary_dim=None, rope_scaling=stretched)(model)


def rows_in_order_where_nothing_rotates(model: Model) -> None:
    """Read layers without rotation as if their rows of q and k were in Hugging Face's order."""
    for block in model.blocks:
        if block.branches[0].rotary is None:
            block.branches[0].interleaved_heads = {}


def with_gating(**changes: Any) -> Callable[[Model], None]:
    """Compute the weights of experts from scores in another way."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            if isinstance(branch := block.branches[1], Experts):
                branch.gating = replace(branch.gating, **changes)

    return plant


def without_routing_gradient(model: Model) -> None:
    """Treat the weights of experts as constants."""
    for block in model.blocks:
        block.branches[1]._router_backward = lambda *_: None


def with_rows_of_others(model: Model) -> None:
    """Let each expert read the token after the one that was routed to it."""
    for block in set(model.blocks):
        route = block.branches[1]._route

        def mixed(*arguments: Any, route: Callable[..., Routing] = route) -> Routing:
            found = route(*arguments)
            return replace(found, rows=np.roll(found.rows, 1))

        block.branches[1]._route = mixed


def with_the_next_expert(model: Model) -> None:
    """Use the weights of the expert after the selected one."""
    for block in set(model.blocks):
        branch = block.branches[1]
        branch._weights = lambda w, expert, own=branch: Experts._weights(own, w, (expert + 1) % own.gating.experts)


def with_biased_weights(model: Model) -> None:
    """Add a bias to the scores from which the weights are computed."""
    for branch in {block.branches[1] for block in model.blocks}:
        if isinstance(branch, Experts):
            own = {field.name: getattr(branch.gating, field.name) for field in fields(branch.gating)}
            branch.gating = BiasedGating(**own)


@dataclass(frozen=True, kw_only=True)
class BiasedGating(Gating):
    def _unscaled(self, z: Any, chosen: Any) -> Any:
        return super()._unscaled(z + np.linspace(-0.5, 0.5, self.experts, dtype=np.float32), chosen)


def without_selection_bias(model: Model) -> None:
    """Select experts by their scores alone."""
    for block in model.blocks:
        if isinstance(branch := block.branches[1], Experts):
            branch.biased = False


def without_shared_expert(model: Model) -> None:
    """Leave out the expert that all tokens pass."""
    for block in model.blocks:
        block.branches[1].shared = None


def with_ungated_shared_expert(model: Model) -> None:
    """Add the shared expert's output as it is."""
    for block in model.blocks:
        block.branches[1].shared.gated = False


def without_gradient_of_the_gate(model: Model) -> None:
    """Treat the shared expert's gate as a constant."""
    for block in model.blocks:
        shared = block.branches[1].shared
        gates = shared._gates
        shared.backward = lambda ctx, dy, n, dn, w, own=shared, of=gates: _with_constant_gate(
            own, of, ctx, dy, n, dn, w
        )


def _with_constant_gate(shared: Any, gates: Any, ctx: Any, dy: Any, n: Any, dn: Any, w: Any) -> None:
    with ctx.frame():
        scaled = ctx.floats("dy, gated", *dy.shape)
        ctx.ops.cast(dy, scaled)
        ctx.ops.scale_rows(scaled, gates(ctx, n, w))
        ungated = copy(shared)
        ungated.gated = False
        del ungated.backward
        ungated.backward(ctx, scaled, n, dn, w)


def with_tiled_heads(model: Model) -> None:
    """Take V heads h, h + k_heads ... for those of one K head."""
    for branch in {block.branches[0] for block in model.blocks}:
        branch.tiled = True


def with_a_for_b(model: Model) -> None:
    """Take the first half of a K head's columns for a."""
    for branch in {block.branches[0] for block in model.blocks}:
        if isinstance(branch, PairedGates):
            branch._halves = lambda both, own=branch: PairedGates._halves(own, both)[::-1]


def without_gradient_of_b(model: Model) -> None:
    """Pass no gradient through beta."""

    def inward(own: Any, ctx: Context, state: Any, dp: Any, dz: Any, da: Any, db: Any) -> Any:
        ctx.ops.fill(db, 0)
        return PairedGates._inward(own, ctx, state, dp, dz, da, db)

    for branch in {block.branches[0] for block in model.blocks}:
        if isinstance(branch, PairedGates):
            branch._inward = partial(inward, branch)


FAULTS: dict[str, tuple[str, Callable[[Model], None]]] = {
    "no fault": ("mistral-window", with_config()),
    "window too long by one": ("mistral-window", with_config(windows=(8, 8))),
    "window too short by one": ("mistral-window", with_config(windows=(6, 6))),
    "window too long by one in the last layer": ("qwen2-late-window", with_config(windows=(0, 12, 13))),
    "window in another layer": ("qwen2-late-window", with_config(windows=(12, 0, 12))),
    "no norm of heads": ("qwen3", without_norm_of_heads),
    "head size of hidden_size / heads in the scale": ("qwen3", scores_scaled_by(24**-0.5)),
    "local and global layers swapped": ("gemma2", with_config(windows=(0, 7, 0))),
    "every window too long by one": ("gemma2", with_config(windows=(8, 0, 8))),
    "scores by the head size, Gemma 2": ("gemma2", with_config(attention_scale=32**-0.5)),
    "scores not capped, Gemma 2": ("gemma2", with_config(attention_softcap=0.0)),
    "logits not capped, Gemma 2": ("gemma2", without_final_cap),
    "embeddings not scaled, Gemma 2": ("gemma2", without_embedding_scale),
    "SiLU, Gemma 2": ("gemma2", with_silu),
    "no norm behind attention": ("gemma2", without_vector(ATTENTION, "post_norm")),
    "no norm behind the MLP": ("gemma2", without_vector(MLP, "post_norm")),
    "norms behind attention and MLP swapped": ("gemma2", with_norms_swapped),
    "each head normed by itself": ("olmo2", with_norm_of_each_head),
    "no norm of queries and keys": ("olmo2", without_norm_of_heads),
    "a norm before attention": ("olmo2", with_norm_before(ATTENTION)),
    "a norm before the MLP": ("olmo2", with_norm_before(MLP)),
    "no norm behind attention, OLMo 2": ("olmo2", without_vector(ATTENTION, "post_norm")),
    "norms swapped, OLMo 2": ("olmo2", with_norms_swapped),
    "embeddings not scaled, Granite": ("granite", without_embedding_scale),
    "residuals not scaled": ("granite", with_multipliers(residual_scale=1.0)),
    "eps not scaled with the residuals": ("granite", with_eps_of_the_file),
    "scores by the head size, Granite": ("granite", with_multipliers(attention_scale=24**-0.5)),
    "logits not divided": ("granite", with_multipliers(logit_divisor=1.0)),
    "logits multiplied": ("granite", with_multipliers(logit_divisor=1 / 8)),
    "rotary bases swapped": ("gemma3", with_config(rope_theta=5000.0, local_theta=1e6)),
    "local layers scaled as well": ("gemma3", with_config(local_theta=5000.0 * 8 ** (32 / 30))),
    "global layers not scaled": ("gemma3", with_config(rope_divisor=1.0)),
    "pattern of five": ("gemma3", with_config(windows=(7, 7, 7, 7, 0, 7, 7))),
    "local window too long by one": ("gemma3", with_config(windows=(8, 8, 8, 8, 8, 0, 8))),
    "scores by the head size": ("gemma3", with_config(attention_scale=32**-0.5)),
    "scores not capped": ("gemma3", with_config(attention_softcap=0.0)),
    "logits not capped": ("gemma3", without_final_cap),
    "embeddings not scaled": ("gemma3", without_embedding_scale),
    "SiLU": ("gemma3", with_silu),
    "linear scaling forgotten": ("llama-linear", with_config(rope_scaling=None)),
    "llama 3's scaling forgotten": ("llama3-rope", with_config(rope_scaling=None)),
    "scores of yarn not sharpened": ("qwen3-yarn", with_scaling(stated_attention_factor=1.0)),
    "yarn of another context": ("qwen3-yarn", with_scaling(original_context=200)),
    "ramp of yarn not rounded": ("qwen3-yarn", with_scaling(truncate=False)),
    "yarn as linear scaling": ("qwen3-yarn", with_config(rope_scaling=Linear(8.0))),
    "short sequences by the long factors": ("phi4-mini", with_scaling(original_context=32)),
    "long sequences by the short factors": ("phi4-mini", with_scaling(original_context=41)),
    "scores of longrope not sharpened": ("phi4-mini", with_scaling(stated_attention_factor=1.0)),
    "whole heads rotated": ("phi4-mini", whole_heads_rotated),
    "every layer rotates": ("smollm3", with_config(rope_layers=(True,) * 5)),
    "another layer does not rotate": ("smollm3", with_config(rope_layers=(True,) * 4 + (False,))),
    "rows in order where nothing rotates": ("smollm3", rows_in_order_where_nothing_rotates),
    "window in every layer": ("ministral", with_config(windows=(12, 12, 12))),
    "relu2's slope without the 2": ("bitnet", with_half_the_slope),
    "SiLU in place of relu2": ("bitnet", with_silu),
    "no norm inside attention": ("bitnet", without_sub_norm(ATTENTION)),
    "no norm inside the MLP": ("bitnet", without_sub_norm(MLP)),
    "no gradient of the norm inside attention": ("bitnet", without_gradient_of_sub_norm),
    "k and v swapped": ("phi3", swapped(ATTENTION, "k", "v")),
    "gate and up swapped": ("phi3", swapped(MLP, "gate", "up")),
    "k with the rows of B of q": ("phi3", with_factors_of_q),
    "window too long by one in every layer": ("phi3-window", with_config(windows=(8, 8))),
    "weights of experts not normalised": ("qwen3moe", with_gating(normalised=False)),
    "weights of experts normalised": ("qwen3moe-plain-weights", with_gating(normalised=True)),
    "no gradient through the routing": ("qwen3moe", without_routing_gradient),
    "no gradient through the routing, plain weights": ("qwen3moe-plain-weights", without_routing_gradient),
    "an expert reads the rows of others": ("qwen3moe", with_rows_of_others),
    "the next expert": ("qwen3moe", with_the_next_expert),
    "weights of OLMoE's experts normalised": ("olmoe", with_gating(normalised=True)),
    "Mixtral's weights over all experts": ("mixtral", with_gating(normalised=False)),
    "the scale of the weights forgotten": ("lfm2moe", with_gating(scale=1.0)),
    "softmax for sigmoid": ("lfm2moe", with_gating(sigmoid=False)),
    "sigmoids not normalised": ("lfm2moe", with_gating(normalised=False)),
    "the selection bias in the weights": ("lfm2moe", with_biased_weights),
    "no selection bias": ("lfm2moe", without_selection_bias),
    "no gradient through the sigmoids": ("lfm2moe", without_routing_gradient),
    "no shared expert": ("qwen2moe", without_shared_expert),
    "a shared expert without its gate": ("qwen2moe", with_ungated_shared_expert),
    "no gradient through the shared expert's gate": ("qwen2moe", without_gradient_of_the_gate),
    "no shared expert, Granite": ("granitemoe", without_shared_expert),
    "no shared expert, Qwen 3.5": ("qwen35moe", without_shared_expert),
    "a shared expert without its gate, Qwen 3.5": ("qwen35moe", with_ungated_shared_expert),
    "weights of Qwen 3.5's experts not normalised": ("qwen35moe", with_gating(normalised=False)),
    "heads tiled, Qwen3-Next": ("qwen3next", with_tiled_heads),
    "a and b swapped": ("qwen3next", with_a_for_b),
    "no gradient of b": ("qwen3next", without_gradient_of_b),
    "no shared expert, Qwen3-Next": ("qwen3next", without_shared_expert),
    "RMS norm before attention": ("starcoder2", without("input_layernorm_bias")),
    "RMS norm before the MLP": ("starcoder2", without("post_attention_layernorm_bias")),
    "RMS norm at the end": ("starcoder2", without_last_bias),
    "no biases in the MLP": ("starcoder2", without("up_bias", "down_bias")),
    "no bias of o": ("starcoder2", without("o_bias")),
    "SiLU in place of GELU": ("starcoder2", with_silu),
    "window too long by one, StarCoder2": ("starcoder2-window", with_config(windows=(13, 13, 13))),
    "an expert too few": ("qwen3moe", with_config(experts_used=2)),
}
"""Name -> (model, fault)."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], name: str) -> None:
    case, plant = FAULTS[name]
    twins = all_twins[case]
    model = models.load(twins.path)
    plant(model)
    faulty, sequences = replace(twins, model=model), draw((33, 41), model.config.vocab_size)
    if name == "no fault":
        check(faulty, "mesp", sequences)
    else:
        with pytest.raises(AssertionError):
            check(faulty, "mesp", sequences)


def test_the_length_of_a_chunk_is_not_that_of_its_sequence(
    all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of a long sequence uses the rotation of the whole sequence."""

    def with_own_lengths(*arguments: Any) -> Iterator[Span]:
        for span in spans(*arguments):
            yield replace(span, lengths=np.diff(span.cu_q))

    twins, sequences = all_twins["phi4-mini"], draw((41,), 101)
    check(twins, "mesp", sequences, chunk=16)
    monkeypatch.setattr(sweep, "spans", with_own_lengths)
    with pytest.raises(AssertionError):
        check(twins, "mesp", sequences, chunk=16)
