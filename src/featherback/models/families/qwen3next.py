"""Qwen3-Next (80B-A3B): gated delta nets, attention with an output gate, and experts, as in Qwen 3.5.

It differs in its delta nets (`nn.paired_gates`), whose V heads a GGUF file leaves in their order. Adapters do not
change the shared expert: for this model, PEFT takes the names of its projections for those of the other experts.
"""

from __future__ import annotations

from typing import ClassVar

from featherback.errors import FeatherbackError
from featherback.models.architecture import experts
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.names import MLP, Names, without
from featherback.models.families.qwen35moe import DeltaMoeConfig, Qwen35Moe
from featherback.nn.delta_net import DeltaNet
from featherback.nn.paired_gates import BA, PairedGates

JOINED = ".ssm_in.weight"


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
    delta_kind: ClassVar[type[DeltaNet]] = PairedGates
    shared_is_frozen: ClassVar[bool] = True

    def read_gguf(self, keys: GGUFKeys) -> DeltaMoeConfig:
        if any(name.endswith(JOINED) for name in keys.file.tensors):
            raise FeatherbackError(
                f"{keys.file.path} holds q, k, v and z of its delta nets in one tensor, NAME{JOINED}, as old versions "
                f"of llama.cpp wrote them; convert the model with a newer version, or download a newer file."
            )
        return super().read_gguf(keys)


FAMILY = Qwen3Next()
