"""Tiny random models in GGUF: the real architectures, shrunk, as the table of cases has them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.random_blocks import random_blocks
from benchmarks.synthetic import gguf_metadata
from featherback.engine.formats.gguf import DEFAULT_ALIGNMENT
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor, Value, tensor_of_array, tensor_of_bytes, write_gguf
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.layout import layer_shapes, top_shapes
from featherback.models.rope.base import Scaling
from tests.support.families.base import LLAMA3_ROPE, YARN, Types, llama3, llama3_factors
from tests.support.families.gemma2 import TINY_GEMMA2
from tests.support.families.gemma3 import TINY_GEMMA3
from tests.support.families.granite import TINY_GRANITE
from tests.support.families.llama import TINY_LLAMA, TINY_WIDE
from tests.support.families.olmo2 import TINY_OLMO2
from tests.support.families.phi3 import TINY_PHI3, TINY_PHI4
from tests.support.families.qwen2 import TINY_QWEN2
from tests.support.families.qwen3 import TINY_QWEN3
from tests.support.families.smollm3 import TINY_SMOLLM3

__all__ = [
    "LLAMA3_ROPE", "TINY_GEMMA2", "TINY_GEMMA3", "TINY_GRANITE", "TINY_LLAMA", "TINY_OLMO2", "TINY_PHI3", "TINY_PHI4",
    "TINY_QWEN2", "TINY_QWEN3", "TINY_SMOLLM3", "TINY_WIDE", "YARN", "Types", "as_stored", "llama3", "llama3_factors",
    "tiny", "write_tiny", "write_tiny_parts",
]  # fmt: skip


WIDE = {"sinks": 1.5, "gate_exps_bias": 3.0, "up_exps_bias": 3.0}
"""Vector -> its spread, if it is large: sinks that differ, and a gate and up that reach the clips of gpt-oss."""


def tiny(base: ModelConfig = TINY_LLAMA, **overrides: Any) -> ModelConfig:
    """`base` with some fields replaced."""
    return replace(base, **overrides)


def as_stored(value: Any) -> Any:
    """A configuration's entry as a file keeps it, to be compared: float32, and what a scaling consists of."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, Scaling):
        return {name: as_stored(field) for name, field in vars(value).items()} | {"kind": type(value)}
    return value.tolist() if isinstance(value, np.ndarray) else value


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
        if part.endswith("_bias"):  # small, as in published models
            return tensor_of_array(name, 0.1 * rng.standard_normal(shape))
        return tensor_of_array(name, 1 + 0.2 * rng.standard_normal(shape))
    if part == "decay":  # of which the negative logarithm varies
        return tensor_of_array(name, -np.exp(rng.uniform(-1, 1, shape)))
    if part == "gain":
        return tensor_of_array(name, 1 + 0.2 * rng.standard_normal(shape))
    if part in ("conv", "dt", "shared_gate", "router_selection", "sinks") or part.endswith("_bias"):
        return tensor_of_array(name, WIDE.get(part, 0.5) * rng.standard_normal(shape))
    kind = types if isinstance(types, TensorType) else types.get(part, types.get("", TensorType.F32))
    spread = 3 if part == "router" else 1  # experts with different weights
    data = random_blocks(rng, kind, math.prod(shape) // kind.block_size, spread * shape[-1] ** -0.5)
    return tensor_of_bytes(name, kind, shape, data.data)
