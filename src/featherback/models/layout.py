"""The names and shapes of the tensors that a model must have."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, first_few
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.names import ROUTER, Names


class Named(Protocol):
    """An object with named tensors."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""


Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: ModelConfig) -> list[Shapes]:
    """Part -> shape, for each decoder layer: matrices (out_features, in_features), vectors (n,)."""
    return [block.shapes for block in families.blocks(config)]


def top_shapes(config: ModelConfig) -> Shapes:
    """Part -> shape, for the parts outside the layers."""
    table = (config.vocab_size, config.hidden_size)
    shapes: Shapes = {"embed_tokens": table, "norm": (config.hidden_size,)}
    shapes |= families.family_of(config).top_vectors(config)
    return shapes if config.tie_word_embeddings else {**shapes, "lm_head": table}


def tensor_shapes(config: ModelConfig, names: Names) -> Shapes:
    """Name in the file -> shape, for every tensor of the model, in the order of use."""
    shapes = {names[part]: shape for part, shape in top_shapes(config).items()}
    for layer, parts in enumerate(layer_shapes(config)):
        shapes |= {names[part].format(layer): shape for part, shape in parts.items()}
    return shapes


def names_of_floats(config: ModelConfig, names: Names) -> set[str]:
    """The names in the file of the layers' tensors that are floats in every model: vectors, and routers."""
    blocks = enumerate(families.blocks(config))
    return {
        names[part].format(layer)
        for layer, block in blocks
        for part in (*block.vectors, *({ROUTER} & block.projections.keys()))
    }


def same_shape(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether two shapes are equal, apart from dimensions of 1, which convolutions have in a folder."""
    return [size for size in found if size != 1] == [size for size in shape if size != 1]


def check_layers(store: Named, config: ModelConfig) -> None:
    """Raise FeatherbackError if a configuration claims more layers than there are tensors."""
    if config.num_hidden_layers > len(store.tensors):
        raise FeatherbackError(
            f"{store.path} claims {config.num_hidden_layers} layers but holds only {len(store.tensors)} tensors."
        )


def check(store: Named, config: ModelConfig, names: Names, also_used: Iterable[str] = ()) -> None:
    """Raise FeatherbackError, listing all problems, unless `store` has exactly the tensors of `config`.

    `also_used`: names of tensors that are read elsewhere, or have no effect. A tensor that nothing reads is an error,
    because the model without it would be another model.
    """
    check_layers(store, config)
    expected = tensor_shapes(config, names)
    problems: list[str] = []
    for name, shape in expected.items():
        info = store.tensors.get(name)
        if info is None:
            problems.append(f"tensor {name} {shape} is missing")
        elif not same_shape(info.shape, shape):
            problems.append(f"tensor {name} has shape {info.shape}, but the configuration needs {shape}")
    known = expected.keys() | set(also_used)
    if unknown := [repr(name) for name in store.tensors if name not in known]:
        problems.insert(0, f"not part of a supported {config.architecture} model: {first_few(unknown)}")
    if problems:
        raise FeatherbackError(f"{store.path} does not fit its configuration: {first_few(problems, '; ')}.")
