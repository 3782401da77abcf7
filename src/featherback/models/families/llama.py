"""Llama 2 and 3, Mistral, Ministral, Mixtral, SmolLM 2, and others that share this architecture."""

from __future__ import annotations

from typing import ClassVar

from featherback.models.architecture import experts
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names
from featherback.models.families.base import Family, expert_block, silu_block
from featherback.nn.block import Block
from featherback.nn.rope import Rotary

MISTRAL_WINDOW = 4096  # transformers' default if the config.json of a Mistral or Ministral has no window


class Llama(Family):
    architecture = "llama"
    called = "Llama 2, Llama 3, Mistral, Ministral, Mixtral, SmolLM 2"
    model_types = ("llama", "mistral", "ministral", "mixtral")
    gguf_names: ClassVar[Names] = {**GGUF_NAMES, **experts.GGUF_NAMES}
    hf_names: ClassVar[Names] = {**HF_NAMES, **experts.hf_names()}
    mlx_names: ClassVar[Names] = experts.mlx_names("block_sparse_moe")
    window_period = 0
    gguf_interleaved = True

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        """Read the configuration. Biases of q, k and v are rare, but supported. A Mixtral has experts."""
        routed = keys.integer(experts.COUNT, 0) != 0
        fields = {
            **self.common(keys, experts.FOLLOWED if routed else ()),
            "attention_bias": any(self.gguf_names[f"{x}_bias"].format(0) in keys.file.tensors for x in "qkv"),
            "rope_interleaved": self.gguf_interleaved,
        }
        if not routed:
            return ModelConfig(**fields)
        return ExpertsConfig(**fields, **experts.read_experts(keys, fields["intermediate_size"], normalised=True))

    def read_hf(self, config: HFConfig) -> ModelConfig:
        """Read the configuration.

        Every layer of a Mistral has the window, unless it is null; of a Mixtral, if there is one. A Ministral may list
        the layers with the window.
        """
        window, kind = 0, config.entries.get("model_type")
        if kind == "mistral" and (types := config.entries.get("layer_types")) is not None:
            raise config.unsupported("layer_types", types)
        if kind in ("mistral", "ministral"):
            stated = config.entries.get("sliding_window", MISTRAL_WINDOW)
            window = 0 if stated is None else config.integer("sliding_window", MISTRAL_WINDOW)
        elif kind == "mixtral" and config.entries.get("sliding_window") is not None:
            window = config.integer("sliding_window")
        fields = {
            **self.common_hf(config),
            "attention_bias": config.flag("attention_bias", False),
            "windows": config.windows(window, lambda layer: True),
        }
        if kind != "mixtral":
            return ModelConfig(**fields)
        own = experts.read_hf_experts(config, normalised=True, size="intermediate_size")
        return ExpertsConfig(**fields, **own)

    def block(self, config: ModelConfig, turn: Rotary, window: int) -> Block:
        if isinstance(config, ExpertsConfig):
            return expert_block(config, turn, window)
        return silu_block(config, turn, window)


FAMILY = Llama()
