"""Low-rank pairs in formats that hold nothing else: GGUF and MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from featherback.core.naming import argument
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.formats.base import Factor, Float32, MisfitError
from featherback.models.adapter import Adapter
from featherback.models.form import LayerTarget
from featherback.models.model import Model
from featherback.nn.adapters.lora import LoRAKind

LEAST_ALPHA, MOST_ALPHA = 1e-30, 1e30
"""Accepted range of alpha. It is far beyond any use, and float32 can still hold it."""
PairAt = Callable[[int, str], LoRAKind | None]
"""(layer, target) -> rank, alpha and scale of a projection; None if it is not adapted."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of low-rank pairs in a format: name -> factor. `transposed`: A is (in, r) and B is (r, out).

    The pairs of a stack of experts are A (E, r, in) and B (E, out, r), never transposed.
    """

    names: Mapping[str, Factor]
    transposed: bool = False

    def shape(self, model: Model, factor: Factor, rank: int) -> tuple[int, ...]:
        """The shape of the stored tensor."""
        layer, target = factor.place
        *stack, out_features, in_features = model.blocks[layer].shape(target)
        shape = (rank, in_features) if factor.part == "A" else (out_features, rank)
        return (*stack, *shape) if stack else shape[::-1] if self.transposed else shape

    def rank(self, model: Model, factor: Factor, shape: tuple[int, ...]) -> int | None:
        """The rank of a tensor with this shape; None if no rank gives the shape."""
        layer, target = factor.place
        stack = len(model.blocks[layer].shape(target)) - 2
        if len(shape) != stack + 2:
            return None
        rank = shape[stack + ((factor.part == "B") ^ (self.transposed and not stack))]
        return rank if rank > 0 and self.shape(model, factor, rank) == shape else None


def ranks_of(where: str, model: Model, tensors: Mapping[str, TensorInfo], layout: Layout) -> dict[LayerTarget, int]:
    """Find the rank of every projection that has factors, from their shapes.

    `where` begins the messages: "The adapter in x". Raises MisfitError, which lists every tensor that is missing,
    unknown or of another shape.
    """
    by_factor = {factor: name for name, factor in layout.names.items()}
    found: dict[LayerTarget, int] = {}
    problems: list[str] = []
    for name, info in tensors.items():
        factor = layout.names.get(name)
        if factor is None:
            problems.append(f"{name} is not a LoRA tensor of this model")
            continue
        if factor.place not in found:
            a = Factor(factor.place, "A")
            first = tensors.get(by_factor[a])
            rank = None if first is None else layout.rank(model, a, first.shape)
            if first is not None and rank is None:
                lowest = layout.shape(model, a, 1)
                problems.append(f"{by_factor[a]} has shape {first.shape}; the shape for rank 1 is {lowest}")
            found[factor.place] = rank or 0
        rank = found[factor.place]
        if rank and info.shape != (wanted := layout.shape(model, factor, rank)):
            problems.append(f"{name} has shape {info.shape}, not {wanted}")
    parts = dict.fromkeys(factor.part for factor in layout.names.values())
    wanted_names = (by_factor[Factor(place, part)] for place in found for part in parts)
    problems = [f"{name} is missing" for name in wanted_names if name not in tensors] + problems
    if problems:
        raise MisfitError(where, model, problems)
    return found


def pairs_of(adapter: Adapter, title: str) -> PairAt:
    """Return the rank and scale of each projection. Raises FeatherbackError if the adapter is not one of pairs.

    `title`: the format's.
    """
    kind = adapter.form.kind
    if not kind.is_low_rank:
        raise FeatherbackError(
            f"{title[0].upper()}{title[1:]} cannot hold {kind.title}; export the adapter with "
            f"{argument('to', 'merged')}, or with {argument('to', 'peft')}, which keeps {kind.title}."
        )
    return cast(PairAt, adapter.form.at)


def rescaled(values: Float32, factor: Factor, ratio: float) -> Float32:
    """Return `values` times `ratio`. Raises FeatherbackError if a product overflows float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = values * np.float32(ratio)
    if not np.isfinite(product).all():
        layer, target = factor.place
        raise FeatherbackError(
            f"The adapter's scales differ too much for a format with a single scale: {target} of layer {layer} "
            f"overflows; export with {argument('to', 'peft')}, which stores a scale for each module."
        )
    return product


def check_alpha(where: str, name: str, alpha: object) -> float:
    """Return `alpha` as a float. Raises FeatherbackError unless it is a number in the accepted range."""
    if type(alpha) not in (int, float) or not LEAST_ALPHA <= alpha <= MOST_ALPHA:  # type: ignore[operator]
        raise FeatherbackError(
            f"{where} has {name} {excerpt(alpha)}; it must be a number from {LEAST_ALPHA:g} to {MOST_ALPHA:g}."
        )
    return float(alpha)  # type: ignore[arg-type]
