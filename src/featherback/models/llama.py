"""Llama 2 and 3, Mistral without a sliding window, SmolLM 2, and others that share this architecture."""

from featherback.models import gguf_metadata, hf_config
from featherback.models.config import ModelConfig
from featherback.models.gguf_metadata import ROPE_FREQS
from featherback.models.hf_config import HFConfig
from featherback.models.layout import GGUF_NAMES
from featherback.weights.gguf import GGUFFile

# Tensors outside the layer layout that this family reads.
ALSO_USED = (ROPE_FREQS,)

MISTRAL_WINDOW = 4096  # what transformers takes where a Mistral's config.json does not say


def read_gguf(file: GGUFFile) -> ModelConfig:
    """The configuration of a GGUF file. Biases of q, k and v are rare, but allowed."""
    common = gguf_metadata.common_config(file, "llama")
    return ModelConfig(
        **common,
        attention_bias=any(GGUF_NAMES[f"{x}_bias"].format(0) in file.tensors for x in "qkv"),
        rope_interleaved=True,
        rope_factors=gguf_metadata.rope_factors(file, "llama", common["head_dim"]),
    )


def read_hf(config: HFConfig) -> ModelConfig:
    """The configuration of a Hugging Face folder of model_type llama or mistral."""
    if config.entries.get("model_type") == "mistral":
        window = config.entries.get("sliding_window", MISTRAL_WINDOW)
        hf_config.refuse_window(config, 0 if window is None else config.integer("sliding_window", window))
    return ModelConfig(
        **hf_config.common_config(config, "llama"), attention_bias=config.flag("attention_bias", False)
    )
