"""Qwen 2 and 2.5: like Llama, with biases on q, k and v. GGUF keeps Hugging Face's row order of q and k."""

from __future__ import annotations

from featherback.models.architecture import hf_config
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.families.base import Family


class Qwen2(Family):
    architecture = "qwen2"
    called = "Qwen 2, Qwen 2.5"
    model_types = ("qwen2",)

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        common = self.common(keys)
        return ModelConfig(**common, attention_bias=True)

    def read_hf(self, config: HFConfig) -> ModelConfig:
        common = self.common_hf(config)
        return ModelConfig(**common, attention_bias=True, windows=hf_config.late_windows(config))


FAMILY = Qwen2()
