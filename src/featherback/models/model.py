"""A loaded model: configuration, layers, and handles of the weights, which stay on disk."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.mapping import MappedFile, check_maps
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.engine.formats.store import TensorStore, floats, matrix
from featherback.errors import FeatherbackError
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.names import Naming
from featherback.models.layout import check, layer_shapes, top_shapes
from featherback.nn.block import rotaries

Vector = NDArray[np.float32]


class Model:
    """A model on disk. It takes almost no memory, because the weights are views of a memory map.

    The rows of q and k (weights and biases) are in the order of the file, which `config.rope_interleaved` says.
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
        """Find the weights of `config` in `store`. Raises FeatherbackError if names or shapes do not fit."""
        self.config = config
        self.family = family = families.family_of(config)
        self.source = source  # "gguf" or "hf"
        self.quantize = quantize  # the value of --quantize that the folder was opened with
        self.naming = naming
        self._names = naming.tensors
        self._norm_offset = naming.norm_offset
        check(store, config, self._names, also_used)
        self._store, self._closed = store, False
        self.blocks = family.blocks(config)
        self.rotaries = rotaries(self.blocks)
        self.embed_tokens = matrix(store, self._names["embed_tokens"])  # (vocab, D)
        self.embedding_scale = family.embedding_scale(config)
        lm_head = (  # (vocab, D)
            self.embed_tokens if config.tie_word_embeddings else matrix(store, self._names["lm_head"])
        )
        # The norm and the other vectors are copied, because reading it in place may map 2 MB of the file around it.
        norm = np.empty(config.hidden_size, np.float32)
        self.top_vectors = {part: np.empty(shape, np.float32) for part, shape in family.top_vectors(config).items()}
        self.head = family.head(config, norm, lm_head, self.top_vectors)
        self.read_norm()
        # A norm of an unsupported type then fails here, not in training.
        for layer in range(config.num_hidden_layers):
            self.layer(layer)
        check_maps(self.maps)

    @property
    def path(self) -> Path:
        """The GGUF file or the Hugging Face folder."""
        return self._store.path

    @property
    def store(self) -> TensorStore:
        """The file or files that hold the tensors."""
        return self._store

    @property
    def files(self) -> set[Path]:
        """The mapped files."""
        return {self._store.file_of(name) for name in self._store.tensors}

    @property
    def maps(self) -> list[MappedFile]:
        """The mapped files, for `MapWatch`."""
        return self._store.maps()

    def layer(self, index: int) -> LayerWeights:
        """Return handles of the weights of a layer. `index` counts from 0."""
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
        """The matrices of the embedding and the head; one matrix if they are tied."""
        head = self.head.weight
        return [self.embed_tokens] if head is self.embed_tokens else [self.embed_tokens, head]

    def read_norm(self) -> None:
        """Read the vectors outside the layers from the file: the final norm's weights g, and others.

        logits = (rms(x) g / c) W^T.
        """
        with np.errstate(all="ignore"):  # a file may hold NaN, which `models.finite` reports with the tensor's name
            np.divide(self._vector("norm", self._names["norm"]), np.float32(self.head.divisor), out=self.head.norm)
        for part, values in self.top_vectors.items():
            values[:] = self._vector(part, self._names[part])

    def stored_name(self, part: str, layer: int | None = None) -> str:
        """The name in the file of a part of the model, such as "q_proj" of a layer."""
        return self._names[part].format(layer)

    def __repr__(self) -> str:
        if self._closed:
            return f"Model({self.path.name!r}, closed)"
        c, kinds = self.config, ", ".join(formats(self))
        size = f"{parameters(self) / 1e6:.0f}M" if parameters(self) >= 1e6 else f"{parameters(self):,}"
        return f"Model({self.path.name!r}, {c.architecture}, {c.num_hidden_layers} layers, {size} parameters, {kinds})"

    def check_open(self) -> None:
        """Raise FeatherbackError if the model was closed."""
        if self._closed:
            raise FeatherbackError(f"The model {self.path} is closed; load it again.")

    def close(self) -> None:
        """Close the files. Weights that were read before stay valid; reading others raises FeatherbackError."""
        self._closed = True
        self._store.close()

    def _vector(self, part: str, name: str) -> Vector:
        values = floats(self._store, name)
        if self._norm_offset and part.endswith("norm"):
            return values + np.float32(self._norm_offset)
        return values


def parameters(model: Model) -> int:
    """The number of weights, including norms and biases. A tied head counts once."""
    parts = [top_shapes(model.config), *layer_shapes(model.config)]
    return sum(prod(shape) for part in parts for shape in part.values())


def formats(model: Model) -> list[str]:
    """The tensor types of the matrices, the one with the most bytes first."""
    count: Counter[str] = Counter()
    for each in matrices(model):
        count[each.type.name] += each.nbytes
    return [name for name, _ in count.most_common()]


def matrices(model: Model) -> list[Matrix]:
    """All matrices of the model. A tied head is listed once."""
    layers = (model.layer(i).matrices.values() for i in range(model.config.num_hidden_layers))
    return model.tables + [each for layer in layers for each in layer]
