"""Qwen3-Next (80B-A3B): gated delta nets, attention with an output gate, and experts, as in Qwen 3.5.

It differs in its delta nets (`nn.paired_gates`), whose V heads a GGUF file leaves in their order. Adapters do not
change the shared expert: for this model, PEFT takes the names of its projections for those of the other experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from featherback.errors import FeatherbackError
from featherback.models.architecture import experts
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.expert_tensors import Stored, Tensors
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import MLP, Names, Naming, without
from featherback.models.families.qwen35moe import HF_DEFAULTS, DeltaMoeConfig, Qwen35Moe
from featherback.models.source import Piece
from featherback.nn.delta_net import DeltaNet
from featherback.nn.paired_gates import BA, PairedGates

JOINED = ".ssm_in.weight"
HF_JOINED = "model.layers.{}.linear_attn.in_proj_qkvz.weight"
HF_FROZEN: Names = {part: Qwen35Moe.hf_names[part] for part in ("qkv_proj", "z_proj", *MLP)}
"""Names of the projections that adapters do not change. A folder holds the first two in one matrix, HF_JOINED."""


class Qwen3Next(Qwen35Moe):
    architecture = "qwen3next"
    called = "Qwen3-Next"
    model_types = ("qwen3_next",)
    gguf_names: ClassVar[Names] = {**without(("a_proj", "b_proj"), Qwen35Moe.gguf_names), BA: "blk.{}.ssm_ba.weight"}
    hf_names: ClassVar[Names] = {
        **without((*MLP, "qkv_proj", "z_proj", "a_proj", "b_proj"), Qwen35Moe.hf_names),
        BA: "model.layers.{}.linear_attn.in_proj_ba.weight",
    }
    mlx_names: ClassVar[Names] = experts.mlx_names()
    hf_defaults: ClassVar[Mapping[str, Any]] = {
        **HF_DEFAULTS, "intermediate_size": 5632, "num_hidden_layers": 48, "num_experts": 512,
        "num_experts_per_tok": 10, "vocab_size": 151_936,
    }  # fmt: skip
    delta_kind: ClassVar[type[DeltaNet]] = PairedGates
    shared_is_frozen: ClassVar[bool] = True

    def read_gguf(self, keys: GGUFKeys) -> DeltaMoeConfig:
        if any(name.endswith(JOINED) for name in keys.file.tensors):
            raise FeatherbackError(
                f"{keys.file.path} holds q, k, v and z of its delta nets in one tensor, NAME{JOINED}, as old versions "
                f"of llama.cpp wrote them; convert the model with a newer version, or download a newer file."
            )
        return super().read_gguf(keys)

    def naming(self, config: HFConfig | None) -> Naming:
        usual = super().naming(config)
        return usual if config is None else usual._replace(tensors={**usual.tensors, **HF_FROZEN})

    def as_stored(self, config: ModelConfig, naming: Naming, tensors: Tensors) -> Stored:
        """A folder holds q, k, v and z in one matrix: of each K head the rows of q, of k, of its V heads, of z."""
        assert isinstance(config, DeltaMoeConfig)
        stored = super().as_stored(config, naming, tensors)
        made, names = dict(stored.made), stored.naming.tensors
        for layer, is_delta in enumerate(config.delta_layers):
            if is_delta:
                q, k, v, z = _by_part(config, HF_JOINED.format(layer))
                made |= {names["qkv_proj"].format(layer): q + k + v, names["z_proj"].format(layer): z}
        return stored._replace(made=made)


def _by_part(config: DeltaMoeConfig, name: str) -> list[tuple[Piece, ...]]:
    """The rows of q, of k, of v, of z in the matrix `name`."""
    v_rows = config.delta_v_heads // config.delta_k_heads * config.delta_v_dim
    sizes = (config.delta_k_dim, config.delta_k_dim, v_rows, v_rows)
    parts = []
    for part, size in enumerate(sizes):
        starts = [head * sum(sizes) + sum(sizes[:part]) for head in range(config.delta_k_heads)]
        parts.append(tuple(Piece(name, slice(start, start + size)) for start in starts))
    return parts


FAMILY = Qwen3Next()
