"""A loaded model: its configuration and handles of its weights, which stay on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.models.config import ModelConfig
from featherback.models.layout import Names, check, layer_shapes
from featherback.models.names import TARGETS
from featherback.weights.matrix import Matrix
from featherback.weights.store import TensorStore, floats, matrix

Vector = NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class LayerWeights:
    """The weights of one decoder layer. D = hidden_size, F = intermediate_size, Q and K = rows of q and k."""

    input_layernorm: Vector  # (D,)
    post_attention_layernorm: Vector  # (D,)
    q_proj: Matrix  # (Q, D)
    k_proj: Matrix  # (K, D)
    v_proj: Matrix  # (K, D)
    o_proj: Matrix  # (D, Q)
    gate_proj: Matrix  # (F, D)
    up_proj: Matrix  # (F, D)
    down_proj: Matrix  # (D, F)
    q_bias: Vector | None = None  # (Q,)
    k_bias: Vector | None = None  # (K,)
    v_bias: Vector | None = None  # (K,)

    def matrices(self) -> dict[str, Matrix]:
        """The seven projections by name, in the order of `names.TARGETS`."""
        return {target: getattr(self, target) for target in TARGETS}


class Model:
    """A model on disk. Holding one costs almost no memory: the weights are views of a memory map.

    Rows of q and k (weights and biases) are in the order of the file; `config.rope_interleaved` says which.
    """

    def __init__(
        self,
        store: TensorStore,
        config: ModelConfig,
        names: Names,
        source: str,
        also_used: tuple[str, ...] = (),
    ) -> None:
        """Take the weights of `config` out of `store`; FeatherbackError if they do not fit."""
        check(store, config, names, also_used)
        self.config = config
        self.source = source  # "gguf" or "hf"
        self._store = store
        self._names = names
        self.embed_tokens: Matrix = matrix(store, names["embed_tokens"])  # (vocab, D)
        # (D,), copied: to touch it in its place may map 2 MB of the file around it.
        self.norm: Vector = np.array(floats(store, names["norm"]))
        self.lm_head: Matrix = (  # (vocab, D)
            self.embed_tokens if config.tie_word_embeddings else matrix(store, names["lm_head"])
        )
        # So that a norm of a strange type fails now, not in training.
        for layer in range(config.num_hidden_layers):
            self.layer(layer)

    @property
    def path(self) -> Path:
        """The GGUF file or the Hugging Face folder."""
        return self._store.path

    def layer(self, index: int) -> LayerWeights:
        """Handles of the weights of layer `index`, counted from 0."""
        if not 0 <= index < self.config.num_hidden_layers:
            raise IndexError(f"layer {index} of {self.config.num_hidden_layers}")
        parts: dict[str, Any] = {}
        for part, shape in layer_shapes(self.config).items():
            take = matrix if len(shape) == 2 else floats
            parts[part] = take(self._store, self._names[part].format(index))
        return LayerWeights(**parts)

    def close(self) -> None:
        """Let go of the files; weights already taken stay valid."""
        self._store.close()
