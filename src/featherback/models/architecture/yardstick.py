"""The shapes of the Qwen2.5 models, which the tables of memory use as examples of model sizes."""

from __future__ import annotations

from featherback.models.architecture.config import ModelConfig


def _qwen(
    hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int, tied: bool = False
) -> ModelConfig:
    return ModelConfig(
        architecture="qwen2",
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden_size // heads,
        vocab_size=151_936 if tied else 152_064,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=32_768,
        tie_word_embeddings=tied,
        attention_bias=True,
        rope_interleaved=False,
    )


QWEN2_5: dict[str, ModelConfig] = {
    "0.5B": _qwen(896, 4864, 24, 14, 2, tied=True),
    "1.5B": _qwen(1536, 8960, 28, 12, 2, tied=True),
    "3B": _qwen(2048, 11_008, 36, 16, 2, tied=True),
    "7B": _qwen(3584, 18_944, 28, 28, 4),
    "14B": _qwen(5120, 13_824, 48, 40, 8),
    "32B": _qwen(5120, 27_648, 64, 40, 8),
    "72B": _qwen(8192, 29_568, 80, 64, 8),
}
"""Size -> configuration, the smallest first."""
