"""Which tensors a model must have, under which name, and in which shape."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, some
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.names import Names


class Named(Protocol):
    """What holds named tensors."""

    @property
    def path(self) -> Path:
        """The file or folder."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""


Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: ModelConfig) -> list[Shapes]:
    """Shape of each part of every decoder layer: matrices (out_features, in_features), vectors (n,)."""
    return [block.shapes for block in families.blocks(config)]


def top_shapes(config: ModelConfig) -> Shapes:
    """Shape of each part outside the layers."""
    table = (config.vocab_size, config.hidden_size)
    shapes: Shapes = {"embed_tokens": table, "norm": (config.hidden_size,)}
    return shapes if config.tie_word_embeddings else {**shapes, "lm_head": table}


def tensor_shapes(config: ModelConfig, names: Names) -> Shapes:
    """Shape of each tensor by its name in the file, in the order in which they are used."""
    shapes = {names[part]: shape for part, shape in top_shapes(config).items()}
    for layer, parts in enumerate(layer_shapes(config)):
        shapes |= {names[part].format(layer): shape for part, shape in parts.items()}
    return shapes


def alike(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether two shapes are the same but for dimensions of 1: a folder has such in convolutions."""
    return [size for size in found if size != 1] == [size for size in shape if size != 1]


def check(store: Named, config: ModelConfig, names: Names, also_used: Iterable[str] = ()) -> None:
    """Check that `store` has exactly the tensors of `config`, in the right shapes, all problems in one error.

    `also_used` names tensors that are known and read elsewhere, or known to mean nothing. A tensor that no
    one uses is an error: a model computed without one of its parts would be another model.
    """
    if config.num_hidden_layers > len(store.tensors):  # before listing the tensors of a corrupt layer count
        raise FeatherbackError(
            f"{store.path} claims {config.num_hidden_layers} layers but holds {len(store.tensors)} tensors."
        )
    expected = tensor_shapes(config, names)
    problems: list[str] = []
    for name, shape in expected.items():
        info = store.tensors.get(name)
        if info is None:
            problems.append(f"tensor {name} {shape} is missing")
        elif not alike(info.shape, shape):
            problems.append(f"tensor {name} has shape {info.shape} where the configuration needs {shape}")
    known = expected.keys() | set(also_used)
    if unknown := [repr(name) for name in store.tensors if name not in known]:
        problems.insert(0, f"not part of a supported {config.architecture} model: {some(unknown)}")
    if problems:
        raise FeatherbackError(f"{store.path} does not fit its configuration: {some(problems, '; ')}.")
