"""The check against autograd finds a block that is composed wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.methods import sweep
from featherback.models.model import Model
from featherback.models.rope.linear import Linear
from featherback.models.rope.longrope import LongRope
from featherback.nn.block import rotaries
from featherback.nn.linear import BlockWeights, Projection, Rows
from featherback.nn.span import Span, spans
from tests.methods.conftest import Twins
from tests.methods.test_exact_gradients import check, draw

ATTENTION, MLP = 0, 1  # branches of a block


def with_config(**changes: object) -> Callable[[Model], None]:
    """The blocks of another configuration."""

    def plant(model: Model) -> None:
        model.blocks = model.family.blocks(replace(model.config, **changes))  # type: ignore[arg-type]
        model.rotaries = rotaries(model.blocks)

    return plant


def without_norm_of_heads(model: Model) -> None:
    """Queries and keys go into the rotation as they are."""
    for block in model.blocks:
        block.branches[0].qk_norm = None
        for name in ("q_norm", "k_norm"):
            block.vectors.pop(name, None)


def scores_scaled_by(scale: float) -> Callable[[Model], None]:
    """Scores with another scale."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            block.branches[0].scale = scale

    return plant


def without_final_cap(model: Model) -> None:
    """Logits as they are."""
    model.head = replace(model.head, softcap=0.0)


def without_embedding_scale(model: Model) -> None:
    """Embeddings as they are stored."""
    model.embedding_scale = 1.0


def with_multipliers(**changes: float) -> Callable[[Model], None]:
    """A whole model with other multipliers."""

    def plant(model: Model) -> None:
        config = replace(model.config, **changes)  # type: ignore[arg-type]
        model.blocks, model.embedding_scale = (model.family.blocks(config), model.family.embedding_scale(config))
        model.rotaries = rotaries(model.blocks)
        divided = model.family.logit_divisor(config) / model.family.logit_divisor(model.config)
        model.head = replace(model.head, norm=model.head.norm / divided, eps=model.family.norm_eps(config))

    return plant


def with_eps_of_the_file(model: Model) -> None:
    """Norms that do not know that the residual stream is held divided."""
    for block in model.blocks:
        block.branches[0].eps = block.branches[1].eps = model.config.rms_norm_eps


def with_silu(model: Model) -> None:
    """Another activation."""
    for block in model.blocks:
        block.branches[1].activation = "silu"


def without_vector(half: int, norm: str) -> Callable[[Model], None]:
    """Layers without their norm `norm`."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            setattr(block.branches[half], norm, None)

    return plant


def with_norm_of_each_head(model: Model) -> None:
    """Queries and keys normed by head, with the weights of the first."""
    for block in set(model.blocks):
        turn, turn_back = block.branches[0]._turn, block.branches[0]._turn_back
        size = block.branches[0].head_dim

        def first(w: BlockWeights, size: int = size) -> BlockWeights:
            part = {name: v[:size] if name in ("q_norm", "k_norm") else v for name, v in w.vectors.items()}
            return BlockWeights(w.projections, part)

        block.branches[0]._turn = lambda ctx, part, w, *rest, to=turn: to(ctx, part, first(w), *rest)  # type: ignore[method-assign, misc]
        block.branches[0]._turn_back = lambda ctx, part, w, *rest, to=turn_back: to(ctx, part, first(w), *rest)  # type: ignore[method-assign, misc]


def with_norm_before(half: int) -> Callable[[Model], None]:
    """Attention or MLP reads the normed residual stream, with the weights of the norm behind it."""

    def plant(model: Model) -> None:
        for block in model.blocks:
            part = block.branches[half]
            part.pre_norm = part.post_norm

    return plant


def with_norms_swapped(model: Model) -> None:
    """The norm behind attention has the weights of that behind the MLP."""
    for block in set(model.blocks):  # layers that are alike share one
        attention, mlp = block.branches
        attention.post_norm, mlp.post_norm = mlp.post_norm, attention.post_norm


def swapped(half: int, one: str, other: str) -> Callable[[Model], None]:
    """Each of two parts of a fused projection takes the rows of the other, which are as many."""

    def plant(model: Model) -> None:
        for parts in {id(part): part for part in (block.branches[half].parts for block in model.blocks)}.values():
            parts[one], parts[other] = parts[other], parts[one]

    return plant


def with_factors_of_q(model: Model) -> None:
    """Keys take the rows of W that are theirs, and the rows of B of the first queries."""
    for block in model.blocks:
        block.branches[0].parts["k"] = FactorsOfFirstRows(*block.branches[0].parts["k"])


class FactorsOfFirstRows(Rows):
    """Rows whose adapter is that of the projection's first rows."""

    def of(self, w: BlockWeights) -> Projection:
        first = w.projections[self.stored].outputs(0, self.last - self.first)
        return super().of(w)._replace(adapter=first.adapter)


def with_scaling(**changes: object) -> Callable[[Model], None]:
    """The blocks of a configuration whose rotary scaling differs."""

    def plant(model: Model) -> None:
        assert model.config.rope_scaling is not None
        with_config(rope_scaling=replace(model.config.rope_scaling, **changes))(model)

    return plant


def whole_heads_rotated(model: Model) -> None:
    """All columns, by factors of the same course."""
    scaling = model.config.rope_scaling
    assert isinstance(scaling, LongRope)
    short, long = (np.interp(np.linspace(0, 11, 16), np.arange(12), f) for f in (scaling.short, scaling.long))
    stretched = replace(scaling, short=short.astype(np.float32), long=long.astype(np.float32))
    with_config(rotary_dim=None, rope_scaling=stretched)(model)


def rows_in_order_where_nothing_rotates(model: Model) -> None:
    """Layers without rotation are read as if their rows of q and k lay as in Hugging Face's files."""
    for block in model.blocks:
        if block.branches[0].rotary is None:
            block.branches[0].interleaved_heads = {}


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
    "k and v swapped": ("phi3", swapped(ATTENTION, "k", "v")),
    "gate and up swapped": ("phi3", swapped(MLP, "gate", "up")),
    "k with the rows of B of q": ("phi3", with_factors_of_q),
    "window too long by one in every layer": ("phi3-window", with_config(windows=(8, 8))),
}
"""Name: the model's, and what is done to it."""


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
    """A chunk of a long sequence rotates as the whole sequence does."""

    def with_own_lengths(*arguments: Any) -> Iterator[Span]:
        for span in spans(*arguments):
            yield replace(span, lengths=np.diff(span.cu_q))

    twins, sequences = all_twins["phi4-mini"], draw((41,), 101)
    check(twins, "mesp", sequences, chunk=16)
    monkeypatch.setattr(sweep, "spans", with_own_lengths)
    with pytest.raises(AssertionError):
        check(twins, "mesp", sequences, chunk=16)
