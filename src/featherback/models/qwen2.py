"""Qwen 2 and 2.5: like llama, with biases on q, k and v, and rotary halves in their original order."""

from featherback.models import gguf_metadata, hf_config
from featherback.models.config import ModelConfig
from featherback.models.hf_config import HFConfig
from featherback.weights.gguf import GGUFFile

# Tensors outside the layer layout that this family reads.
ALSO_USED = ()


def read_gguf(file: GGUFFile) -> ModelConfig:
    """The configuration of a GGUF file."""
    common = gguf_metadata.common_config(file, "qwen2")
    return ModelConfig(**common, attention_bias=True, rope_interleaved=False)


def read_hf(config: HFConfig) -> ModelConfig:
    """The configuration of a Hugging Face folder. `sliding_window` counts only with `use_sliding_window`."""
    if config.flag("use_sliding_window", False):
        hf_config.refuse_window(config, config.integer("sliding_window", 4096))
    return ModelConfig(**hf_config.common_config(config, "qwen2"), attention_bias=True)
