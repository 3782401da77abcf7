"""Models with the shapes of real ones and random weights, to measure memory and speed without a download."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.random_blocks import random_blocks
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor, Value, tensor_of_array, write_gguf
from featherback.errors import FeatherbackError, expected
from featherback.models import families
from featherback.models.architecture.config import QWEN2_5, ModelConfig
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.architecture.gguf_metadata import window_keys
from featherback.models.families.bitnet import BitNetConfig
from featherback.models.families.qwen35 import DeltaConfig, every
from featherback.models.layout import layer_shapes, top_shapes

STD = 0.02  # of every weight, as transformers are initialised
CONVOLUTION = "conv1d.weight"  # taps, which are never quantised
POOL = 131_071  # blocks drawn; a prime, so that repeating them repeats no row in step with the row length

# What llama.cpp stores instead where rows do not fill whole blocks of 256.
FALLBACK = {TensorType.Q4_K: TensorType.Q5_0, TensorType.Q5_K: TensorType.Q5_1, TensorType.Q6_K: TensorType.Q8_0}


CONFIGS: dict[str, ModelConfig] = {
    **{f"qwen2.5-{size.lower()}": config for size, config in QWEN2_5.items()},
    "qwen3-30b-a3b": ExpertsConfig(
        architecture="qwen3moe",
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=151_936,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=40_960,
        tie_word_embeddings=False,
        attention_bias=False,
        rope_interleaved=False,
        experts=128,
        experts_used=8,
        expert_size=768,
    ),
    "olmoe-1b-7b": ExpertsConfig(
        architecture="olmoe",
        hidden_size=2048,
        intermediate_size=1024,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=128,
        vocab_size=50_304,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        attention_bias=False,
        rope_interleaved=False,
        experts=64,
        experts_used=8,
        expert_size=1024,
        weights_normalised=False,
    ),
    "smollm2-135m": ModelConfig(
        architecture="llama",
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        vocab_size=49_152,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attention_bias=False,
        rope_interleaved=True,
    ),
    "qwen3.5-0.8b": DeltaConfig(
        architecture="qwen35",
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        vocab_size=248_320,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        rotary_dim=64,
        max_position_embeddings=262_144,
        tie_word_embeddings=True,
        attention_bias=False,
        rope_interleaved=False,
        delta_k_heads=16,
        delta_v_heads=16,
        delta_k_dim=128,
        delta_v_dim=128,
        taps=4,
        delta_layers=every(4, 24),
        converted=True,
    ),
    "gpt2-small-shape": ModelConfig(
        architecture="starcoder2",
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        head_dim=64,
        vocab_size=50_257,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        attention_bias=True,
        rope_interleaved=False,
    ),
    "bitnet-2b": BitNetConfig(
        architecture="bitnet",
        hidden_size=2560,
        intermediate_size=6912,
        num_hidden_layers=30,
        num_attention_heads=20,
        num_key_value_heads=5,
        head_dim=128,
        vocab_size=128_256,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        attention_bias=False,
        rope_interleaved=False,
        activation="relu2",
    ),
}


def write_synthetic(
    path: str | Path,
    name: str = "qwen2.5-0.5b",
    tensor_type: TensorType = TensorType.Q4_0,
    seed: int = 0,
    *,
    embedding_type: TensorType | None = None,
    vocabulary: bool = False,
    **overrides: int | float | bool,
) -> Path:
    """Write a GGUF of the shapes of `name` with random weights and no vocabulary; returns its path.

    Matrices are stored as `tensor_type`, the embedding and the output head as `embedding_type` (default: the
    same), or as llama.cpp's fallback where rows do not fill a block. `vocabulary`: with a token per byte, then fillers,
    so that text can be trained on. `overrides` are fields of ModelConfig,
    as num_hidden_layers=2. FeatherbackError for an unknown name. Equal arguments give equal bytes.
    """
    if name not in CONFIGS:
        raise FeatherbackError(f"There is no synthetic model {name!r}; {expected(name, CONFIGS)}")
    whole = CONFIGS[name]
    layers = int(overrides.get("num_hidden_layers", whole.num_hidden_layers))
    by_layer = {field: value[:layers] for field, value in vars(whole).items() if isinstance(value, tuple)}
    config = replace(whole, **by_layer, **overrides)  # type: ignore[arg-type]
    metadata = gguf_metadata(config, name) | (byte_vocabulary(config.vocab_size) if vocabulary else {})
    write_gguf(path, metadata, list(_tensors(config, tensor_type, embedding_type, seed)))
    evict(Path(path))
    return Path(path)


@contextmanager
def made(name: str, cache: Path, keep: bool, say: Callable[[str], None] | None = None) -> Iterator[Path]:
    """The file of the shapes of `name` in Q4_0: in the folder `cache`, made if it is not there.

    One that was made is deleted at the end, unless it is to be kept. `say` is called before it is written.
    """
    path = cache / f"{name}-q4_0.gguf"
    existed = path.exists()
    if not existed:
        if say is not None:
            say(f"writing {path}")
        cache.mkdir(parents=True, exist_ok=True)
        write_synthetic(path, name)
    try:
        yield path
    finally:
        if not keep and not existed:
            path.unlink()


def evict(path: Path) -> None:
    """Have the page cache forget a file: what was just written lies there in other pieces than what is read."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def gguf_metadata(config: ModelConfig, name: str) -> dict[str, Value]:
    """The metadata of a GGUF file with this configuration."""
    values: dict[str, Value] = {
        "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": config.rotary_dim or config.head_dim,
        **(config.rope_scaling.gguf_keys() if config.rope_scaling else {}),
    }
    family = families.family_of(config)
    values |= window_keys(config.windows, family.window_period) | family.gguf_keys(config)
    prefixed = {f"{config.architecture}.{key}": value for key, value in values.items()}
    return {"general.architecture": config.architecture, "general.name": name, **prefixed}


def byte_vocabulary(size: int) -> dict[str, Value]:
    """Return the metadata of a vocabulary of `size` tokens: one per byte, with GPT-2's names, and fillers."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in plain}
    names |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in names)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [names[byte] for byte in range(256)] + [f"[PAD{i}]" for i in range(256, size)],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [5] * (size - 256), np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 0,
    }


def _tensors(config: ModelConfig, kind: TensorType, embedding: TensorType | None, seed: int) -> Iterator[OutTensor]:
    source, names = _Source(seed), families.family_of(config).gguf_names
    for part, shape in top_shapes(config).items():
        yield source.tensor(names[part], shape, embedding or kind)
    for layer, shapes in enumerate(layer_shapes(config)):
        for part, shape in shapes.items():
            yield source.tensor(names[part].format(layer), shape, TensorType.F32 if part == "router" else kind)


@dataclass
class _Pool:
    data: NDArray[np.uint8]
    block_bytes: int


class _Source:
    """Makes tensors whose bytes are slices of one pool of random blocks per format, each from another start."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[TensorType, _Pool] = {}

    def tensor(self, name: str, shape: tuple[int, ...], kind: TensorType) -> OutTensor:
        """A tensor of small random weights; a norm is all ones, and decays are negative."""
        if len(shape) == 1:
            values = np.ones(shape) if name.endswith("norm.weight") else self._rng.normal(0, STD, shape)
            return tensor_of_array(name, -np.exp(values) if name.endswith("ssm_a") else values)
        if name.endswith(CONVOLUTION):
            return tensor_of_array(name, self._rng.normal(0, shape[-1] ** -0.5, shape))
        if shape[-1] % kind.block_size:
            kind = FALLBACK.get(kind, kind)
        pool, nbytes = self._pool(kind), math.prod(shape[:-1]) * kind.row_bytes(shape[-1])
        start = int(self._rng.integers(POOL)) * pool.block_bytes
        return OutTensor(name, kind, shape, _stream(pool.data, start, nbytes))

    def _pool(self, kind: TensorType) -> _Pool:
        if kind not in self._pools:
            self._pools[kind] = _Pool(random_blocks(self._rng, kind, POOL, STD), kind.block_bytes)
        return self._pools[kind]


def _stream(data: NDArray[np.uint8], start: int, nbytes: int) -> Callable[[], Iterator[memoryview]]:
    """Yields `nbytes` of `data`, repeated without end, from `start` on."""

    def chunks() -> Iterator[memoryview]:
        position, left, view = start, nbytes, data.data
        while left > 0:
            chunk = view[position : position + left]
            yield chunk
            position, left = 0, left - len(chunk)

    return chunks
