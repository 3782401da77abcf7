"""Llama 2 and 3, Mistral without a sliding window, SmolLM 2, and others that share this architecture."""

from __future__ import annotations

from featherback.architecture import hf_config
from featherback.architecture.config import ModelConfig
from featherback.architecture.gguf_metadata import ROPE_FREQS, GGUFKeys, common_config, rope_factors
from featherback.architecture.hf_config import HFConfig
from featherback.families.base import Family, attention_sizes, mlp_sizes, rotary
from featherback.layers.attention import Attention
from featherback.layers.block import Block
from featherback.layers.glu import GatedUnit

MISTRAL_WINDOW = 4096  # what transformers takes where a Mistral's config.json does not say


class LlamaBlock(Block):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(
            Attention(**attention_sizes(config), rotary=rotary(config), bias=config.attention_bias),
            GatedUnit(**mlp_sizes(config), activation="silu"),
        )


class Llama(Family):
    architecture = "llama"
    model_types = ("llama", "mistral")
    also_used = (ROPE_FREQS,)

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        """Biases of q, k and v are rare, but allowed."""
        common = common_config(keys)
        return ModelConfig(
            **common,
            attention_bias=any(self.gguf_names[f"{x}_bias"].format(0) in keys.file.tensors for x in "qkv"),
            rope_interleaved=True,
            rope_factors=rope_factors(keys, common["head_dim"]),
        )

    def read_hf(self, config: HFConfig) -> ModelConfig:
        if config.entries.get("model_type") == "mistral":
            window = config.entries.get("sliding_window", MISTRAL_WINDOW)
            config.refuse_window(0 if window is None else config.integer("sliding_window", window))
        return ModelConfig(
            **hf_config.common_config(config, "llama"), attention_bias=config.flag("attention_bias", False)
        )

    def blocks(self, config: ModelConfig) -> list[Block]:
        return [LlamaBlock(config)] * config.num_hidden_layers


FAMILY = Llama()
