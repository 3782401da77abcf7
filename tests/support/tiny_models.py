"""Tiny random models in GGUF: the real architectures, shrunk, with every awkward feature one can ask for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_blocks import random_blocks
from benchmarks.synthetic import gguf_metadata
from featherback import families
from featherback.architecture.config import ModelConfig
from featherback.architecture.rope.base import Scaling
from featherback.architecture.rope.llama3 import Llama3
from featherback.architecture.rope.longrope import LongRope
from featherback.architecture.rope.yarn import Yarn
from featherback.families.gemma2 import GemmaConfig
from featherback.families.gemma3 import Gemma3Config
from featherback.families.granite import GraniteConfig
from featherback.families.smollm3 import SmolLM3Config
from featherback.models.layout import layer_shapes, top_shapes
from featherback.weights.gguf import DEFAULT_ALIGNMENT
from featherback.weights.types import TensorType
from featherback.weights.writer import OutTensor, Value, tensor_of_array, tensor_of_bytes, write_gguf

# Shapes chosen to be awkward: no power of two but where a block of 32 needs it, grouped heads, two layers.
TINY_LLAMA = ModelConfig(
    architecture="llama",
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    vocab_size=101,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    attention_bias=False,
    rope_interleaved=True,
)
TINY_QWEN2 = replace(
    TINY_LLAMA, architecture="qwen2", rms_norm_eps=1e-6, rope_theta=1e6, attention_bias=True, rope_interleaved=False
)
TINY_QWEN3 = replace(TINY_QWEN2, architecture="qwen3", attention_bias=False, head_dim=32)
TINY_PHI3 = replace(TINY_QWEN2, architecture="phi3", attention_bias=False, head_dim=32, tie_word_embeddings=False)
TINY_OLMO2 = replace(
    TINY_QWEN2, architecture="olmo2", attention_bias=False, rms_norm_eps=1e-5, tie_word_embeddings=False
)
# eps is large enough that the norms of small embeddings feel it.
TINY_GRANITE = GraniteConfig(
    architecture="granite",
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    vocab_size=101,
    rms_norm_eps=1e-2,
    rope_theta=10_000.0,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    attention_bias=False,
    rope_interleaved=True,
    embedding_scale=12.0,
    residual_scale=float(np.float32(0.22)),
    attention_scale=0.125,
    logit_divisor=8.0,
)
# Phi-4-mini: three quarters of a head are rotated, and the frequencies differ in sequences of more than 39 tokens.
TINY_PHI4 = replace(
    TINY_PHI3,
    hidden_size=128,  # transformers wants heads of hidden_size / heads here
    tie_word_embeddings=True,
    rotary_dim=24,
    rope_scaling=LongRope(
        short=np.linspace(1, 1.5, 12).astype(np.float32),
        long=np.geomspace(1, 30, 12).astype(np.float32),
        original_context=39,
        stated_attention_factor=float(np.float32(1.19)),
    ),
)
# Frequencies 0 to 2 stay, those from 8 on are divided, and those between are blended.
YARN = Yarn(factor=8.0, original_context=100, beta_fast=5.0, beta_slow=0.5)
# Its fourth layer does not rotate, its fifth does.
TINY_SMOLLM3 = SmolLM3Config(
    **{**vars(TINY_LLAMA), "architecture": "smollm3", "rms_norm_eps": 1e-6, "num_hidden_layers": 5}, rope_layers=()
)
# Everything that Gemma 3 may set. Its seventh layer begins the pattern anew.
TINY_GEMMA3 = Gemma3Config(
    architecture="gemma3",
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=7,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=101,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    attention_bias=False,
    rope_interleaved=False,
    windows=(7, 7, 7, 7, 7, 0, 7),
    local_theta=5000.0,
    rope_divisor=8.0,
    attention_scale=float(np.float32(20**-0.5)),  # query_pre_attn_scalar is not head_dim
    attention_softcap=3.0,
    final_softcap=2.0,
)
TINY_GEMMA2 = GemmaConfig(
    architecture="gemma2",
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=101,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    attention_bias=False,
    rope_interleaved=False,
    windows=(7, 0, 7),
    attention_scale=float(np.float32(20**-0.5)),
    attention_softcap=3.0,
    final_softcap=2.0,
)
# Rows that fill the 256-weight blocks of the K formats; head_dim is not hidden_size / heads.
TINY_WIDE = replace(TINY_LLAMA, hidden_size=256, intermediate_size=512, num_attention_heads=8, head_dim=64)

# The parameters Llama 3.2 is published with, on a short original context so that a tiny model feels them.
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def as_stored(value: Any) -> Any:
    """A configuration's entry as a file keeps it, to be compared: float32, and what a scaling consists of."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, Scaling):
        return {name: as_stored(field) for name, field in vars(value).items()} | {"kind": type(value)}
    return value.tolist() if isinstance(value, np.ndarray) else value


Types = TensorType | Mapping[str, TensorType]


def tiny(base: ModelConfig = TINY_LLAMA, **overrides: Any) -> ModelConfig:
    """`base` with some fields replaced."""
    return replace(base, **overrides)


def llama3(config: ModelConfig) -> Llama3:
    """The scaling LLAMA3_ROPE, from transformers' own inverse frequencies."""
    return Llama3(llama3_factors(config))


def llama3_factors(config: ModelConfig) -> np.ndarray:
    """Frequency factors (head_dim/2,) of LLAMA3_ROPE, from transformers' own inverse frequencies."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    def inverse_frequencies(rope: dict[str, Any]) -> np.ndarray:
        hf = LlamaConfig(head_dim=config.head_dim, rope_parameters={**rope, "rope_theta": config.rope_theta})
        return LlamaRotaryEmbedding(hf).inv_freq.numpy()

    return inverse_frequencies({"rope_type": "default"}) / inverse_frequencies(LLAMA3_ROPE)


def write_tiny(
    path: Path,
    config: ModelConfig = TINY_LLAMA,
    types: Types = TensorType.F32,
    seed: int = 0,
    metadata: Mapping[str, Value] | None = None,
    extra: tuple[OutTensor, ...] = (),
    alignment: int = DEFAULT_ALIGNMENT,
) -> Path:
    """Write a random model of this configuration as GGUF and return `path`.

    `types` is the format of the matrices: one for all, or by part ("q_proj", "embed_tokens" ...; "" is the
    default of the others, F32 without one). `metadata` replaces or adds keys, `extra` adds tensors. An `alignment` of
    its own must be in the metadata as well.
    """
    tensors = _tensors(config, types, seed)
    write_gguf(path, {**gguf_metadata(config, "tiny"), **(metadata or {})}, [*tensors, *extra], alignment)
    return path


def write_tiny_parts(
    folder: Path,
    counts: Sequence[int],
    config: ModelConfig = TINY_LLAMA,
    types: Types = TensorType.F32,
    metadata: Mapping[str, Value] | None = None,
) -> list[Path]:
    """The model of `write_tiny` in parts, as llama-gguf-split names and marks them: `counts` tensors in each but the
    last, which has the rest. `metadata` is added to the first.
    """
    tensors = _tensors(config, types, seed=0)
    total = np.int32(len(tensors))
    of = len(counts) + 1
    paths = [folder / f"tiny-{part + 1:05}-of-{of:05}.gguf" for part in range(of)]
    for part, (path, count) in enumerate(zip(paths, [*counts, len(tensors)], strict=True)):
        marks: dict[str, Value] = {
            "split.no": np.uint16(part),
            "split.count": np.uint16(of),
            "split.tensors.count": total,
        }
        own = {**gguf_metadata(config, "tiny"), **(metadata or {})} if part == 0 else {}
        write_gguf(path, own | marks, tensors[:count])
        tensors = tensors[count:]
    return paths


def _tensors(config: ModelConfig, types: Types, seed: int) -> list[OutTensor]:
    rng = np.random.default_rng(seed)
    names = families.family_of(config).gguf_names
    tensors = [_tensor(rng, names[p], p, shape, types) for p, shape in top_shapes(config).items()]
    for layer, shapes in enumerate(layer_shapes(config)):
        for part, shape in shapes.items():
            tensors.append(_tensor(rng, names[part].format(layer), part, shape, types))
    if config.rope_scaling is not None:
        arrays = config.rope_scaling.gguf_arrays()
        tensors += [tensor_of_array(name, array) for name, array in arrays.items()]
    return tensors


def _tensor(rng: np.random.Generator, name: str, part: str, shape: tuple[int, ...], types: Types) -> OutTensor:
    if "norm" in part:
        return tensor_of_array(name, 1 + 0.2 * rng.standard_normal(shape))
    if part.endswith("_bias"):
        return tensor_of_array(name, 0.5 * rng.standard_normal(shape))
    kind = types if isinstance(types, TensorType) else types.get(part, types.get("", TensorType.F32))
    rows, cols = shape
    data = random_blocks(rng, kind, rows * cols // kind.block_size, cols**-0.5)
    return tensor_of_bytes(name, kind, shape, data.data)
