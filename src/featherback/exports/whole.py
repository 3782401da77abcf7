"""A copy of a model whose weights can be changed in place: BF16 or F32, in the same form of file as the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from featherback.core.naming import argument
from featherback.core.sizes import shown_mb
from featherback.core.terminal import Converting
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.safetensors import SINGLE
from featherback.engine.formats.store import floats, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import Buffer, OutTensor
from featherback.engine.host.maps import MapWatch
from featherback.errors import FeatherbackError
from featherback.exports.merged_gguf import write_with_metadata
from featherback.exports.merged_hf import write_folder
from featherback.exports.merging import MergeCost, stored_type
from featherback.methods.whole.settings import Whole
from featherback.models.converted import ConvertedWeights
from featherback.models.model import Model
from featherback.models.streams import copied, counted, floats_of, give_back, quantized, row_blocks

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
            f"{argument('dequantize', True)} trains them as {kind.name}, which takes {shown_mb(size)} on disk; "
            f"or name a model of F16, BF16 or F32."
        )


def copy_writable(
    model: Model, path: Path, trained: Collection[str], kind: TensorType, check: Callable[[], None] = lambda: None
) -> None:
    """Write `model` to `path`, the tensors `trained` as `kind`, or vectors as F32, all others as they are.

    A GGUF file becomes one, a Hugging Face folder a folder of one shard. FeatherbackError if that fails. `check` is
    called again and again: what it raises ends the copy, of which nothing stays.
    """
    _write(model, path, _outputs(model, trained, kind), kind, check)


@dataclass
class StoredAs:
    """What a model was copied as. `cost`: of storing it so, beside the model that it was trained from."""

    types: Counter[TensorType]
    """Type -> matrices."""
    cost: MergeCost


def copy_as(model: Model, path: Path, kind: TensorType | None, base: Model | None = None) -> StoredAs:
    """Write `model` to `path` with its matrices as `kind`, where that can hold their rows; else as the next finer type.

    None: byte for byte. `base`: what the model was trained from, whose tensors have the same names; with None the cost
    knows no update. FeatherbackError if that fails.
    """
    if model.source != "gguf" and kind is not None and kind not in PLAIN:
        known = ", ".join(each.name.lower() for each in PLAIN)
        raise FeatherbackError(
            f"A Hugging Face folder holds {known}, not {kind.name.lower()}; choose one as {argument('type')}."
        )
    matrices = _matrices(model)
    done = StoredAs(Counter(), MergeCost())
    outputs = []
    for output in _outputs(model, () if kind is None else matrices, kind or TensorType.F32):
        if output.name in matrices:
            done.types[output.type] += 1
            if output.type is not model.store.tensors[output.name].type:
                output = replace(output, chunks=partial(_measured, model, base, output, done.cost))
        outputs.append(output)
    _write(model, path, outputs, kind)
    return done


def _measured(model: Model, base: Model | None, output: OutTensor, cost: MergeCost) -> Iterator[Buffer]:
    """The bytes of a matrix in another type; what storing it so costs is added to `cost`."""
    wanted = matrix(model.store, output.name)
    known = base is not None and output.name in base.store.tensors
    before = matrix(base.store, output.name) if base is not None and known else wanted
    for (first, last), data in zip(row_blocks(*wanted.shape), output.chunks(), strict=True):
        rows = floats_of(wanted.rows_between(first, last))
        base_rows = floats_of(before.rows_between(first, last))
        stored = np.frombuffer(data, np.uint8)
        cost.add(base_rows, rows - base_rows, floats_of(Matrix(stored, output.type, last - first, wanted.cols)))
        yield data
        give_back(before.data)


def _write(
    model: Model,
    path: Path,
    outputs: Sequence[OutTensor],
    kind: TensorType | None,
    check: Callable[[], None] = lambda: None,
) -> None:
    size = sum(tensor.nbytes for tensor in outputs)
    how = "" if kind is None else f" as {kind.name}"
    doing = f"copying {model.path}{how}, {shown_mb(size)}, into {path.parent}"
    with MapWatch(model.files, model.close) as maps, Converting(doing, size) as shown:

        def wrote(size: int) -> None:
            maps.check()
            check()
            shown.wrote(size)

        told = counted(outputs, wrote)
        if model.source == "gguf":
            write_with_metadata(model.path, path, told, kind)
        else:
            write_folder(model.path, path, {SINGLE: told}, set() if kind is None else {kind})


def _outputs(model: Model, trained: Collection[str], kind: TensorType) -> list[OutTensor]:
    store, matrices = model.store, _matrices(model)
    skipped = {model.stored_name("lm_head")} if model.config.tie_word_embeddings else set()
    return [
        _output(model, info, (kind if name in matrices else TensorType.F32) if name in trained else None, matrices)
        for name, info in store.tensors.items()
        if name not in skipped  # the shared matrix once more, which would not be trained with it
    ]


def _matrices(model: Model) -> set[str]:
    """The tensors that products read."""
    layers = ((part, layer) for layer, block in enumerate(model.blocks) for part in block.projections)
    tables = ("embed_tokens",) if model.config.tie_word_embeddings else ("embed_tokens", "lm_head")
    return {*map(model.stored_name, tables), *(model.stored_name(*each) for each in layers)}


def _output(model: Model, info: TensorInfo, kind: TensorType | None, matrices: Collection[str]) -> OutTensor:
    store, name = model.store, info.name
    if kind is None or info.type is kind:
        return OutTensor(name, info.type, info.shape, lambda: copied(store.data(name)))
    if name in matrices:
        kind = stored_type(matrix(store, name), kind)
        return OutTensor(name, kind, info.shape, partial(quantized, matrix(store, name), kind, name))
    return OutTensor(name, kind, info.shape, lambda: (np.ascontiguousarray(floats(store, name)).data.cast("B"),))
