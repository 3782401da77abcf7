"""Llama 2 and 3, Mistral, Ministral, SmolLM 2, and others that share this architecture."""

from __future__ import annotations

from featherback.models.architecture import hf_config
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.gguf_metadata import common_config
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.families.base import Family, by_window, rotary, silu_block
from featherback.nn.block import Block

MISTRAL_WINDOW = 4096  # what transformers takes where the config.json of a Mistral or Ministral does not say


class Llama(Family):
    architecture = "llama"
    called = "Llama 2, Llama 3, Mistral, Ministral, SmolLM 2"
    model_types = ("llama", "mistral", "ministral")
    window_period = 0
    gguf_interleaved = True

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        """Biases of q, k and v are rare, but allowed."""
        common = common_config(keys, self.window_period)
        return ModelConfig(
            **common,
            attention_bias=any(self.gguf_names[f"{x}_bias"].format(0) in keys.file.tensors for x in "qkv"),
            rope_interleaved=self.gguf_interleaved,
        )

    def read_hf(self, config: HFConfig) -> ModelConfig:
        """Every layer of a Mistral has its window, unless that is null; a Ministral may name those that have it."""
        window, kind = 0, config.entries.get("model_type")
        if kind == "mistral" and (types := config.entries.get("layer_types")) is not None:
            raise config.unsupported("layer_types", types)
        if kind in ("mistral", "ministral"):
            stated = config.entries.get("sliding_window", MISTRAL_WINDOW)
            window = 0 if stated is None else config.integer("sliding_window", MISTRAL_WINDOW)
        return ModelConfig(
            **hf_config.common_config(config, "llama"),
            attention_bias=config.flag("attention_bias", False),
            windows=config.windows(window, lambda layer: True),
        )

    def blocks(self, config: ModelConfig) -> list[Block]:
        turn = rotary(config)
        return by_window(config, lambda window: silu_block(config, turn, window))


FAMILY = Llama()
