"""Copy a model: with trainable weights (BF16 or F32), or in another type. The copy has the model's kind of file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from featherback.core.naming import argument, argument_is
from featherback.core.sizes import shown_mb
from featherback.core.terminal import Converting
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.safetensors import SINGLE
from featherback.engine.formats.store import floats, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import Buffer, OutTensor
from featherback.engine.host.maps import MapWatch
from featherback.errors import FeatherbackError
from featherback.exports.base_model import check_not_base
from featherback.exports.merged_gguf import write_with_metadata
from featherback.exports.merged_hf import write_folder
from featherback.exports.merging import MergeCost, stored_type
from featherback.exports.report import cost_facts, cost_notes, type_counts
from featherback.methods.whole.settings import WholeModelSettings
from featherback.models.converted import ConvertedWeights
from featherback.models.model import Model
from featherback.models.streams import copied, counted, floats_of, quantized, row_blocks, unmap_pages

PLAIN = (TensorType.F32, TensorType.F16, TensorType.BF16)
"""The types that can be trained without conversion."""
_TRAINING = "the training"


def stored_names(model: Model, whole: WholeModelSettings) -> set[str]:
    """The names of the trained weights in the model's files."""
    return {model.stored_name(place.part, place.layer) for place in whole.trained(model.config, model.blocks)}


def check_writable(model: Model, trained: Collection[str], kind: TensorType, dequantize: bool) -> None:
    """Raise FeatherbackError if the tensors `trained` of a model cannot be trained."""
    if isinstance(model.store, ConvertedWeights):
        raise FeatherbackError(
            f"The weights of {model.path} cannot be trained, because they are converted when the model is opened "
            f"({argument('quantize')}, or an MLX folder). Remove {argument('quantize')}, or name the original model "
            f"with float weights."
        )
    found = {info.type for name, info in model.store.tensors.items() if name in trained}
    if (packed := sorted(each.name for each in found.difference(PLAIN))) and not dequantize:
        size = sum(tensor.nbytes for tensor in _outputs(model, trained, kind))
        raise FeatherbackError(
            f"{model.path} holds {', '.join(packed)} weights, which cannot be trained as they are: "
            f"{argument('dequantize', True)} trains them as {kind.name}, which takes {shown_mb(size)} on disk; "
            f"or name a model with F16, BF16 or F32 weights."
        )


def copy_writable(
    model: Model, path: Path, trained: Collection[str], kind: TensorType, check: Callable[[], None] = lambda: None
) -> None:
    """Write `model` to `path`: trained matrices as `kind`, trained vectors as F32, and all other tensors unchanged.

    A GGUF file becomes a GGUF file, and a Hugging Face folder becomes a folder with one shard. `check` is called
    repeatedly; if it raises, the copy is deleted. Raises FeatherbackError if writing fails.
    """
    _write(model, path, _outputs(model, trained, kind), kind, check)


@dataclass
class StoredAs:
    """The types of a copy. `cost`: the rounding, compared with the model that training began with."""

    types: Counter[TensorType]
    """Type -> number of matrices."""
    cost: MergeCost


def copy_as(model: Model, path: Path, kind: TensorType | None, base: Model | None = None) -> StoredAs:
    """Write `model` to `path`, with its matrices as `kind`, or as the next finer type if `kind` cannot hold their rows.

    `kind` None: copy byte for byte. `base`: the model that training began with, whose tensors have the same names; with
    None, the cost has no update. Raises FeatherbackError if writing fails.
    """
    if model.source != "gguf" and kind is not None and kind not in PLAIN:
        known = ", ".join(each.name.lower() for each in PLAIN)
        raise FeatherbackError(
            f"{argument_is('type', kind.name.lower())}; a Hugging Face folder can hold one of: {known}."
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


def write_model(
    model: Model, path: Path, kind: TensorType | None, base: Model | None
) -> tuple[list[str], dict[str, Any]]:
    """Write a trained model as `copy_as` does. Returns notes and figures, with the rounding if the type changes."""
    check_not_base(path, model)
    done = copy_as(model, path, kind, base)
    types, cost = type_counts(done.types), done.cost
    notes = [", ".join(f"{count} matrices as {name}" for name, count in types.items())]
    if not cost.merged:
        return [*notes, "the trained weights were copied byte for byte"], {"types": types}
    if base is not None:
        return [*notes, *cost_notes(cost, _TRAINING)], {"types": types, **cost_facts(cost)}
    notes.append(
        f"rounding error: {cost.relative_error:.2%} of the weights (relative Frobenius norm); to measure how much of "
        f"{_TRAINING} survives, name the model that it began with: {argument('model', 'BASE')}"
    )
    return notes, {"types": types, "relative_error": cost.relative_error}


def _measured(model: Model, base: Model | None, output: OutTensor, cost: MergeCost) -> Iterator[Buffer]:
    """Yield the bytes of a matrix in another type, and add its rounding to `cost`."""
    wanted = matrix(model.store, output.name)
    known = base is not None and output.name in base.store.tensors
    before = matrix(base.store, output.name) if base is not None and known else wanted
    for (first, last), data in zip(row_blocks(*wanted.shape), output.chunks(), strict=True):
        rows = floats_of(wanted.rows_between(first, last))
        base_rows = floats_of(before.rows_between(first, last))
        stored = np.frombuffer(data, np.uint8)
        cost.add(base_rows, rows - base_rows, floats_of(Matrix(stored, output.type, last - first, wanted.cols)))
        yield data
        unmap_pages(before.data)


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
    with MapWatch(model.maps, model.close) as maps, Converting(doing, size) as shown:

        def wrote(size: int) -> None:
            maps.check()
            check()
            shown.wrote(size)

        tracked = counted(outputs, wrote)
        if model.source == "gguf":
            write_with_metadata(model.path, path, tracked, kind)
        else:
            write_folder(model.path, path, {SINGLE: tracked}, set() if kind is None else {kind})


def _outputs(model: Model, trained: Collection[str], kind: TensorType) -> list[OutTensor]:
    store, matrices = model.store, _matrices(model)
    skipped = {model.stored_name("lm_head")} if model.config.tie_word_embeddings else set()
    return [
        _output(model, info, (kind if name in matrices else TensorType.F32) if name in trained else None, matrices)
        for name, info in store.tensors.items()
        if name not in skipped  # a second copy of the tied matrix, which training would not change
    ]


def _matrices(model: Model) -> set[str]:
    """The names of the matrices, in contrast to norms, biases and convolutions."""
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
