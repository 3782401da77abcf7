"""Runs a training step on a toy model, so that a process has loaded the code of a step when its memory is measured.

The amount depends on how the system caches the code's files: touching a page maps 64 KB of a file that is cached in
single pages, and up to 2 MB of a file that was just installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback import methods, optim
from featherback.data.batch import Batch
from featherback.engine.formats.mapping import MappedFile
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.host.machine import Baseline
from featherback.engine.host.paged import PagedArray
from featherback.methods.base import ForwardOnly
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Naming
from featherback.models.layout import layer_shapes, top_shapes
from featherback.models.model import Model

TOY = ModelConfig(
    architecture="qwen2",
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    vocab_size=64,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    attention_bias=True,
    rope_interleaved=False,
)
TOKENS = 16


def rehearsed_baseline(trains: bool = True) -> Baseline:
    """Train one step on the toy model, or only measure its loss, and return the memory of this process."""
    model = Model(_Zeros(TOY), TOY, "gguf", Naming(GGUF_NAMES, HF_NAMES))
    if not trains:
        measuring = methods.create_of(ForwardOnly, model, None, Plan.default(TOY, tokens=TOKENS))
        measuring.loss(Batch.from_sequences([np.arange(TOKENS, dtype=np.int32)]))
        measuring.close()
        return Baseline.of_this_process()
    adapter = LoRA(model, rank=2)
    optimizer = optim.create("adamw", adapter.parameters, adapter.layout.slots)
    gradients = PagedArray(adapter.parameters.layers, adapter.parameters.size)
    method = methods.create("mesp", model, adapter, Plan.default(TOY, tokens=TOKENS))
    batch = Batch.from_sequences([np.arange(TOKENS, dtype=np.int32)])
    method.gradients(batch, 1 / batch.n_targets, gradients)
    optimizer.step(gradients, 0.0, optim.clip_scale(optim.global_norm(gradients), 1.0))
    method.loss(batch)
    method.close()
    return Baseline.of_this_process()


class _Zeros:
    """A tensor store without a file: all values are zero, matrices are Q4_0, vectors F32."""

    path = Path("toy")

    def __init__(self, config: ModelConfig) -> None:
        shapes = {GGUF_NAMES[part]: shape for part, shape in top_shapes(config).items()}
        shapes |= {GGUF_NAMES[part].format(0): shape for part, shape in layer_shapes(config)[0].items()}
        self.tensors: Mapping[str, TensorInfo] = {name: _info(name, shape) for name, shape in shapes.items()}

    def data(self, name: str) -> NDArray[np.uint8]:
        file = np.zeros(self.tensors[name].nbytes, np.uint8)
        return file[:]

    def file_of(self, name: str) -> Path:
        return self.path

    def maps(self) -> list[MappedFile]:
        return []

    def close(self) -> None:
        """Do nothing: there is no file to close."""


def _info(name: str, shape: tuple[int, ...]) -> TensorInfo:
    kind = TensorType.F32 if len(shape) == 1 else TensorType.Q4_0
    nbytes = kind.row_bytes(shape[-1]) * (shape[0] if len(shape) == 2 else 1)
    return TensorInfo(name, kind, shape, 0, nbytes)
