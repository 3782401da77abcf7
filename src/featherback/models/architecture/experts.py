"""The part of the configuration that mixtures of experts have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import STACKS, Names
from featherback.nn.router import Gating

MOST_EXPERTS = 4096
"""More experts in a layer mean a corrupt file."""
COUNT, USED, SIZE = "expert_count", "expert_used_count", "expert_feed_forward_length"
GATING, SCALE, NORMALISED = "expert_gating_func", "expert_weights_scale", "expert_weights_norm"
SHARED_SIZE = "expert_shared_feed_forward_length"
SOFTMAX, SIGMOID, SOFTMAX_OF_SELECTED = 1, 2, 3
"""Values of GATING, as in llama.cpp."""
FOLLOWED = (COUNT, USED, SIZE, GATING, SCALE, NORMALISED, SHARED_SIZE)

GGUF_NAMES: Names = {
    "router": "blk.{}.ffn_gate_inp.weight",
    "router_selection": "blk.{}.exp_probs_b.bias",
    "gate_exps": "blk.{}.ffn_gate_exps.weight",
    "up_exps": "blk.{}.ffn_up_exps.weight",
    "gate_up_exps": "blk.{}.ffn_gate_up_exps.weight",
    "down_exps": "blk.{}.ffn_down_exps.weight",
}
"""Names of the tensors of experts in GGUF files."""


def hf_names(module: str = "mlp", router: str = "gate") -> Names:
    """Return the names of experts and router in Hugging Face's model, where `module` of a layer holds them.

    It joins gate and up of all experts in one parameter `gate_up_proj`. The names of gate and up apart are ours.
    """
    place = f"model.layers.{{}}.{module}"
    stacks = {name: f"{place}.experts.{name.removesuffix('_exps')}_proj" for name in STACKS}
    return {**stacks, "router": f"{place}.{router}.weight"}


def mlx_names(module: str = "mlp", router: str = "gate", stacks: str = "switch_mlp") -> Names:
    """Return the names of the modules in mlx-lm, which keeps gate and up apart."""
    place = f"model.layers.{{}}.{module}"
    return {
        **{f"{part}_exps": f"{place}.{stacks}.{part}_proj" for part in ("gate", "up", "down")},
        "router": f"{place}.{router}",
    }


SHARED_GGUF_NAMES: Names = {
    "gate_proj": "blk.{}.ffn_gate_shexp.weight",
    "up_proj": "blk.{}.ffn_up_shexp.weight",
    "down_proj": "blk.{}.ffn_down_shexp.weight",
    "shared_gate": "blk.{}.ffn_gate_inp_shexp.weight",
}
"""Names of the tensors of a shared expert in GGUF files."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ExpertsConfig(ModelConfig):
    """A decoder with mixtures of experts. `intermediate_size` is the width of its dense gated units, if it has any."""

    experts: int
    experts_used: int  # per token
    expert_size: int  # width of an expert
    sigmoid_gating: bool = False  # else softmax
    weights_normalised: bool = True
    weights_scale: float = 1.0
    shared_size: int = 0  # width of the shared expert; 0: none
    gate_up_fused: bool = False  # one stack holds gate and up
    shared_fused: bool = False  # one matrix holds gate and up of the shared expert

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.experts <= MOST_EXPERTS:
            raise FeatherbackError(
                f"The model has {self.experts} experts in a layer; 1 to {MOST_EXPERTS} are supported."
            )
        if not 1 <= self.experts_used <= self.experts:
            raise FeatherbackError(
                f"The model routes each token to {self.experts_used} experts; it must be 1 to {self.experts}, the "
                f"number of its experts."
            )
        if self.expert_size < 1 or self.shared_size < 0:
            raise FeatherbackError(
                f"The model's experts have the widths {self.expert_size} and {self.shared_size} (shared expert); the "
                f"first must be positive, the second 0 or more."
            )
        self.require_positive("weights_scale")

    @property
    def widest_unit(self) -> int:
        return max(self.intermediate_size * self.has_dense_units, self.expert_size, self.shared_size)

    @property
    def has_dense_units(self) -> bool:
        """Whether some layers have a dense gated unit instead of experts."""
        return False

    def gating(self, eps: float = 0.0) -> Gating:
        """Return how scores become weights. `eps`: added to the sum by which sigmoids are divided."""
        return Gating(
            experts=self.experts,
            used=self.experts_used,
            sigmoid=self.sigmoid_gating,
            normalised=self.weights_normalised,
            scale=self.weights_scale,
            eps=eps,
        )


def read_experts(keys: GGUFKeys, size: int, *, normalised: bool, gating: int = SOFTMAX) -> dict[str, Any]:
    """Read the arguments of ExpertsConfig from a GGUF file.

    `size`: the width of an expert if the file does not state it. `normalised`, `gating`: the same for the weights'
    normalisation and for the gating function. Raises FeatherbackError if a key has an unsupported value.
    """
    kind = keys.integer(GATING, 0) or gating
    if kind not in (SOFTMAX, SIGMOID, SOFTMAX_OF_SELECTED):
        raise keys.wrong(GATING, kind, "1 (softmax), 2 (sigmoid), 3 (softmax of the selected experts)")
    stated = keys.flag(NORMALISED, normalised)
    if kind == SOFTMAX_OF_SELECTED and not stated:
        raise keys.wrong(NORMALISED, stated, f"True, because {GATING} is {SOFTMAX_OF_SELECTED}")
    return {
        "experts": keys.integer(COUNT),
        "experts_used": keys.integer(USED),
        "expert_size": keys.integer(SIZE, 0) or size,
        "sigmoid_gating": kind == SIGMOID,
        "weights_normalised": stated,
        "weights_scale": keys.number(SCALE, 0) or 1.0,
        "shared_size": keys.integer(SHARED_SIZE, 0),
        "gate_up_fused": any(name.endswith(".ffn_gate_up_exps.weight") for name in keys.file.tensors),
    }


def expert_keys(config: ExpertsConfig) -> dict[str, Value]:
    """Return the metadata from which `read_experts` reads this configuration."""
    return {
        COUNT: config.experts,
        USED: config.experts_used,
        SIZE: config.expert_size,
        GATING: SIGMOID if config.sigmoid_gating else SOFTMAX,
        SCALE: float(config.weights_scale),
        NORMALISED: config.weights_normalised,
        **({SHARED_SIZE: config.shared_size} if config.shared_size else {}),
    }


def read_hf_experts(config: HFConfig, *, normalised: bool, size: str = "moe_intermediate_size") -> dict[str, Any]:
    """Read the arguments of ExpertsConfig from a config.json.

    `normalised`: whether weights are, if there is no entry. `size`: the entry of the width of an expert. Raises
    FeatherbackError if some layers have no experts, or if an entry is unsupported.
    """
    for name, neutral in (("decoder_sparse_step", 1), ("mlp_only_layers", []), ("router_jitter_noise", 0)):
        if config.entries.get(name) not in (None, neutral):
            raise config.unsupported(name, config.entries[name], (str(neutral),))
    return {
        "experts": config.integer("num_experts" if "num_experts" in config.entries else "num_local_experts"),
        "experts_used": config.integer("num_experts_per_tok"),
        "expert_size": config.integer(size),
        "weights_normalised": config.flag("norm_topk_prob", normalised),
    }
