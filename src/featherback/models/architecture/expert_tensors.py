"""Where folders keep the experts of a layer, by the names of their tensors.

    experts.gate_up_proj (E, 2 F, D), experts.down_proj     transformers 5: gate's rows first
    input_linear.weight, output_linear.weight               the same, Granite
    experts.N.gate_proj.weight (F, D), ...                  published folders: a matrix of each expert
    experts.N.w1.weight, w3, w2                             the same, Mixtral and LFM2
    switch_mlp.gate_proj.weight (E, F, D), ...              MLX
    experts.gate_proj.weight                                the same, gpt-oss

Stacks of all experts are used in place. Matrices of each expert are put together when the folder is first opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.names import Naming
from featherback.models.source import Made, Piece

MODULES = ("mlp", "block_sparse_moe", "feed_forward")
"""The modules of a layer that hold experts and router."""
WHOLE: Mapping[str, tuple[str, ...]] = {
    "gate_up_exps": ("experts.gate_up_proj", "input_linear.weight"),
    "gate_exps": ("switch_mlp.gate_proj.weight", "experts.gate_proj.weight"),
    "up_exps": ("switch_mlp.up_proj.weight", "experts.up_proj.weight"),
    "down_exps": (
        *("experts.down_proj", "output_linear.weight", "switch_mlp.down_proj.weight", "experts.down_proj.weight"),
    ),
    "router": ("gate.weight", "router.weight", "router.layer.weight"),
}
"""Part of the model -> the names that it has in one piece, after the module's."""
APART: Mapping[str, tuple[str, ...]] = {
    "gate_exps": ("experts.{}.gate_proj.weight", "experts.{}.w1.weight"),
    "up_exps": ("experts.{}.up_proj.weight", "experts.{}.w3.weight"),
    "down_exps": ("experts.{}.down_proj.weight", "experts.{}.w2.weight"),
}
"""Stack -> the names of its matrices, expert by expert."""

Tensors = Mapping[str, TensorInfo]


class Stored(NamedTuple):
    """How a folder stores a model: the configuration and the names that fit, and the tensors that have to be made."""

    config: Any
    naming: Naming
    made: Made


def stored_experts(config: ExpertsConfig, naming: Naming, tensors: Tensors) -> Stored:
    """Find the experts of every layer among the tensors of a folder.

    Raises FeatherbackError if the configuration claims more experts than there can be.
    """
    last = config.num_hidden_layers - 1
    layer = naming.tensors["router"].partition("{}")[0] + "{}."
    found = {
        part: name for part, endings in WHOLE.items() for name in _names(layer, endings) if name.format(last) in tensors
    }
    naming = naming._replace(tensors={**naming.tensors, **found})
    config = replace(config, gate_up_fused="gate_up_exps" in found)
    apart = {
        part: name
        for part, endings in APART.items()
        for name in _names(layer, endings)
        if part not in found and name.format(last, 0) in tensors
    }
    if not apart:
        return Stored(config, naming, {})
    if config.experts * len(apart) > len(tensors):
        raise FeatherbackError(
            f"The configuration claims {config.experts} experts in a layer, but the folder holds only {len(tensors)} "
            f"tensors."
        )
    made = {
        naming.tensors[part].format(number): tuple(Piece(name.format(number, e)) for e in range(config.experts))
        for number in range(config.num_hidden_layers)
        for part, name in apart.items()
        if name.format(number, 0) in tensors
    }
    return Stored(config, naming, made)


def _names(layer: str, endings: Iterable[str]) -> Iterable[str]:
    return (f"{layer}{module}.{ending}" for module in MODULES for ending in endings)
