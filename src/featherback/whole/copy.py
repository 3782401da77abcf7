"""A copy of a model whose weights can be changed in place: BF16 or F32, in the same form of file as the model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import numpy as np

from featherback.adapters.merged_gguf import write_with_metadata
from featherback.adapters.merged_hf import write_folder
from featherback.adapters.merging import stored_type
from featherback.errors import FeatherbackError
from featherback.host.maps import MapWatch
from featherback.models.converted import ConvertedWeights
from featherback.models.model import Model
from featherback.models.streams import copied, counted, quantized
from featherback.naming import argument
from featherback.terminal import Converting
from featherback.weights.safetensors import SINGLE
from featherback.weights.store import floats, matrix
from featherback.weights.types import TensorInfo, TensorType
from featherback.weights.writer import OutTensor
from featherback.whole.settings import Whole

PLAIN = (TensorType.F32, TensorType.F16, TensorType.BF16)
"""What can be trained as it is."""


def stored_names(model: Model, whole: Whole) -> set[str]:
    """What the files call the weights that are trained."""
    return {model.stored_name(place.part, place.layer) for place in whole.trained(model.config, model.blocks)}


def check_writable(model: Model, trained: Collection[str], kind: TensorType, dequantize: bool) -> None:
    """FeatherbackError if the tensors `trained` of a model cannot be trained."""
    if isinstance(model.store, ConvertedWeights):
        raise FeatherbackError(
            f"The weights of {model.path} are converted when it is opened, for {argument('quantize')} or from MLX's "
            f"form, and cannot be trained themselves: leave {argument('quantize')} out, or name the model of floats "
            f"that it was made of."
        )
    found = {info.type for name, info in model.store.tensors.items() if name in trained}
    if (packed := sorted(each.name for each in found.difference(PLAIN))) and not dequantize:
        size = sum(tensor.nbytes for tensor in _outputs(model, trained, kind))
        raise FeatherbackError(
            f"{model.path} holds {', '.join(packed)} weights, which cannot be trained as they are: "
            f"{argument('dequantize', True)} trains them as {kind.name}, which takes {size / 1e6:.0f} MB on disk; "
            f"or name a model of F16, BF16 or F32."
        )


def copy_writable(
    model: Model,
    path: Path,
    trained: Collection[str],
    kind: TensorType,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write `model` to `path`, the tensors `trained` as `kind`, or vectors as F32, all others as they are.

    A GGUF file becomes one, a Hugging Face folder a folder of one shard. FeatherbackError if that fails. `check` is
    called again and again: what it raises ends the copy, of which nothing stays.
    """
    outputs = _outputs(model, trained, kind)
    size = sum(tensor.nbytes for tensor in outputs)
    doing = f"copying {model.path} as {kind.name}, {size / 1e6:.0f} MB, into {path.parent}"
    with MapWatch(model.files, model.close) as maps, Converting(doing, size) as shown:

        def wrote(size: int) -> None:
            maps.check()
            check()
            shown.wrote(size)

        told = counted(outputs, wrote)
        if model.source == "gguf":
            write_with_metadata(model.path, path, told, kind)
        else:
            write_folder(model.path, path, {SINGLE: told}, {kind})


def copy_as(model: Model, path: Path, kind: TensorType) -> None:
    """Write `model` to `path` with its matrices as `kind`, where that can hold their rows; else as the next finer type.

    FeatherbackError if that fails.
    """
    if model.source != "gguf" and kind not in PLAIN:
        known = ", ".join(each.name.lower() for each in PLAIN)
        raise FeatherbackError(
            f"A Hugging Face folder holds {known}, not {kind.name.lower()}; choose one as {argument('type')}."
        )
    matrices = {name for name, info in model.store.tensors.items() if len(info.shape) == 2}
    copy_writable(model, path, matrices, kind)


def _outputs(model: Model, trained: Collection[str], kind: TensorType) -> list[OutTensor]:
    store = model.store
    skipped = {model.stored_name("lm_head")} if model.config.tie_word_embeddings else set()
    return [
        _output(model, info, kind if name in trained else None)
        for name, info in store.tensors.items()
        if name not in skipped  # the shared matrix once more, which would not be trained with it
    ]


def _output(model: Model, info: TensorInfo, kind: TensorType | None) -> OutTensor:
    store, name = model.store, info.name
    if kind is None or info.type is (kind := kind if len(info.shape) == 2 else TensorType.F32):
        return OutTensor(name, info.type, info.shape, lambda: copied(store.data(name)))
    if len(info.shape) == 2:
        kind = stored_type(matrix(store, name), kind)
        return OutTensor(name, kind, info.shape, partial(quantized, matrix(store, name), kind, name))
    return OutTensor(
        name, kind, info.shape, lambda: (np.ascontiguousarray(floats(store, name)).data.cast("B"),)
    )
