"""A loaded model: its configuration, its layers, and handles of its weights, which stay on disk."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.engine.formats.store import TensorStore, floats, matrix
from featherback.errors import FeatherbackError
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.names import Naming
from featherback.models.layout import check, layer_shapes, top_shapes
from featherback.nn.block import rotaries
from featherback.nn.loss import Head

Vector = NDArray[np.float32]


class Model:
    """A model on disk. Holding one costs almost no memory: the weights are views of a memory map.

    Rows of q and k (weights and biases) are in the order of the file; `config.rope_interleaved` says which.
    """

    def __init__(
        self,
        store: TensorStore,
        config: ModelConfig,
        source: str,
        naming: Naming,
        also_used: tuple[str, ...] = (),
        quantize: str = "none",
    ) -> None:
        """Take the weights of `config` out of `store`; FeatherbackError if they do not fit."""
        self.config = config
        self.family = family = families.family_of(config)
        self.source = source  # "gguf" or "hf"
        self.quantize = quantize  # what the folder's matrices were converted to, as --quantize has it
        self.naming = naming
        self._names = naming.tensors
        self._norm_offset = family.hf_norm_offset if source == "hf" else 0.0
        check(store, config, self._names, also_used)
        self._store, self._closed = store, False
        self.blocks = family.blocks(config)
        self.rotaries = rotaries(self.blocks)
        self.embed_tokens = matrix(store, self._names["embed_tokens"])  # (vocab, D)
        self.embedding_scale = family.embedding_scale(config)
        lm_head = (  # (vocab, D)
            self.embed_tokens if config.tie_word_embeddings else matrix(store, self._names["lm_head"])
        )
        # The norm is copied: reading it in place may map 2 MB of the file around it.
        norm = np.empty(config.hidden_size, np.float32)
        softcap, divisor = family.logit_softcap(config), family.logit_divisor(config)
        self.head = Head(norm, lm_head, family.norm_eps(config), softcap, divisor)
        self.read_norm()
        # So that a norm of a strange type fails now, not in training.
        for layer in range(config.num_hidden_layers):
            self.layer(layer)

    @property
    def path(self) -> Path:
        """The GGUF file or the Hugging Face folder."""
        return self._store.path

    @property
    def store(self) -> TensorStore:
        """The file, or the files, that its tensors lie in."""
        return self._store

    @property
    def files(self) -> set[Path]:
        """The files that are mapped."""
        return {self._store.file_of(name) for name in self._store.tensors}

    def layer(self, index: int) -> LayerWeights:
        """Handles of the weights of layer `index`, counted from 0."""
        self.check_open()
        if not 0 <= index < self.config.num_hidden_layers:
            raise IndexError(f"layer {index} of {self.config.num_hidden_layers}")
        block = self.blocks[index]
        names = {part: self._names[part].format(index) for part in block.shapes}
        return LayerWeights(
            {part: matrix(self._store, names[part]) for part in block.projections},
            {part: self._vector(part, names[part]).reshape(shape) for part, shape in block.vectors.items()},
        )

    @property
    def tables(self) -> list[Matrix]:
        """The embedding and the head; one matrix where they are the same."""
        head = self.head.weight
        return [self.embed_tokens] if head is self.embed_tokens else [self.embed_tokens, head]

    def read_norm(self) -> None:
        """Take the final norm from its file, again if that has changed; logits = (rms(x) g / c) W^T."""
        with np.errstate(all="ignore"):  # a file may hold NaN: that is found where they are named (models.finite)
            np.divide(self._vector("norm", self._names["norm"]), np.float32(self.head.divisor), out=self.head.norm)

    def stored_name(self, part: str, layer: int | None = None) -> str:
        """What the file calls a part of the model, such as "q_proj" of a layer."""
        return self._names[part].format(layer)

    def __repr__(self) -> str:
        if self._closed:
            return f"Model({self.path.name!r}, closed)"
        c, kinds = self.config, ", ".join(formats(self))
        size = f"{parameters(self) / 1e6:.0f}M" if parameters(self) >= 1e6 else f"{parameters(self):,}"
        return f"Model({self.path.name!r}, {c.architecture}, {c.num_hidden_layers} layers, {size} parameters, {kinds})"

    def check_open(self) -> None:
        """FeatherbackError if it was closed."""
        if self._closed:
            raise FeatherbackError(f"The model {self.path} is closed; load it again.")

    def close(self) -> None:
        """Close the files; weights already taken stay valid. Whatever needs others fails with a FeatherbackError."""
        self._closed = True
        self._store.close()

    def _vector(self, part: str, name: str) -> Vector:
        values = floats(self._store, name)
        if self._norm_offset and part.endswith("norm"):
            return values + np.float32(self._norm_offset)
        return values


def parameters(model: Model) -> int:
    """Number of weights, norms and biases among them; a tied head is counted once."""
    parts = [top_shapes(model.config), *layer_shapes(model.config)]
    return sum(prod(shape) for part in parts for shape in part.values())


def formats(model: Model) -> list[str]:
    """The number formats of its matrices, the commonest (by bytes) first."""
    count: Counter[str] = Counter()
    for each in matrices(model):
        count[each.type.name] += each.nbytes
    return [name for name, _ in count.most_common()]


def matrices(model: Model) -> list[Matrix]:
    """Its matrices, a tied head counted once."""
    layers = (model.layer(i).matrices.values() for i in range(model.config.num_hidden_layers))
    return model.tables + [each for layer in layers for each in layer]
