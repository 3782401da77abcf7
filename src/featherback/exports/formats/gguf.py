"""GGUF LoRA files, as llama.cpp's convert_lora_to_gguf.py writes and its loader reads them.

Each adapted tensor has `<name>.lora_a` (rank, in) and `<name>.lora_b` (out, rank), with the rows of B in the order of
the GGUF model's rows. llama.cpp multiplies by `adapter.lora.alpha` / rank of the tensor. If a projection has another
scale, its B is multiplied by the ratio. An alpha of 0 means a scale of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from featherback.core.files import open_regular
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.engine import kernels
from featherback.engine.formats.gguf import MAGIC, GGUFFile
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.quantize import quantize
from featherback.engine.formats.store import matrix
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor, Value, write_gguf
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import hub_name
from featherback.exports.formats.base import (
    QUANTIZABLE,
    Exported,
    Factor,
    Float32,
    Format,
    MisfitError,
    Request,
    StoredAdapter,
    WholeRequest,
    factors,
    first_part,
    form_of,
    named_projections,
)
from featherback.exports.formats.pairs import Layout, PairAt, check_alpha, pairs_of, ranks_of, rescaled
from featherback.models.adapter import Adapter
from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows
from featherback.models.form import Form
from featherback.models.model import Model
from featherback.nn.adapters.lora import LoRAKind

TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)
"""The types in which factors can be stored."""
ALPHA, INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"


class GGUF(Format):
    title = "a GGUF LoRA file"
    help = "a GGUF LoRA file, for llama.cpp"
    types = TYPES
    whole_types = QUANTIZABLE

    def recognises(self, path: Path) -> bool:
        if not path.is_file():
            return False
        try:
            with open_regular(path) as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError:  # reported when the file is opened
            return True

    @contextmanager
    def open(self, path: Path, model: Model) -> Iterator[StoredAdapter]:
        with reading(GGUFFile(path)) as file:
            alpha = _alpha(file, model)
            layout = layout_of(model)
            where = f"The adapter {path}"
            ranks = ranks_of(where, model, file.tensors, layout)
            kinds = {place: LoRAKind(rank=rank, alpha=alpha or float(rank)) for place, rank in ranks.items()}
            yield _Stored(form_of(where, model, kinds), file, layout, model)

    def save(
        self, adapter: Adapter, path: Path, base_model: str | None = None, kind: TensorType = TensorType.F32
    ) -> None:
        """Write the adapter as one file, atomically, with factors of the type `kind`, one of `TYPES`.

        `base_model`: the base model's name on the Hub; default: `hub_name`, or else the name of its file. Raises
        FeatherbackError if writing fails, if a value is not finite, or if `kind` cannot hold the values.
        """
        pair_at = pairs_of(adapter, self.title)
        model, layout = adapter.model, layout_of(adapter.model)
        alpha = float(np.float32(_effective_alpha(cast(LoRAKind, adapter.form.kind))))
        metadata: dict[str, Value] = {
            "general.type": "adapter",
            "general.architecture": model.config.architecture,
            "adapter.type": "lora",
            ALPHA: alpha,
        }
        base = base_model or hub_name(model)
        name = model.path.name if base is None else base.rpartition("/")[2]
        metadata |= {"general.base_model.count": 1, "general.base_model.0.name": name}
        if base is not None:
            metadata["general.base_model.0.repo_url"] = f"https://huggingface.co/{base}"
        values = _Values(adapter, pair_at, alpha, kind)
        tensors = []
        for name, factor in layout.names.items():
            if pair := pair_at(*factor.place):
                shape = layout.shape(model, factor, pair.rank)
                tensors.append(OutTensor(name, kind, shape, partial(values.next, factor)))
        write_gguf(path, metadata, tensors)

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}.gguf"

    def write(self, request: Request) -> Exported:
        adapter, kind = request.adapter, TensorType.F32 if request.kind is None else request.kind
        request.check_room(kind)
        self.save(adapter, request.out, request.base_model, kind)
        model = adapter.model
        notes = [f"stored as {kind.name}; it works with any GGUF of the same model, whatever the quantisation"]
        if model.source == "gguf":
            return Exported(request.out, quoted("llama-cli", "-m", first_part(model), "--lora", request.out), notes)
        notes.append(
            f"llama.cpp needs a GGUF of {model.path}; make one with its convert_hf_to_gguf.py, then type: "
            f"{quoted('llama-cli', '-m', 'MODEL.gguf', '--lora', request.out)}"
        )
        return Exported(request.out, request.try_out(), notes)

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        _check_gguf(request.model)
        return f"{stem}{request.suffix}.gguf"

    def write_whole(self, request: WholeRequest) -> Exported:
        from featherback.exports.whole import write_model  # only here: training does not need it

        _check_gguf(request.model)
        notes, facts = write_model(request.model, request.out, request.kind, request.base)
        return Exported(request.out, quoted("llama-cli", "-m", request.out), notes, facts)


class _Values:
    """The factors of an adapter as bytes, in the order of the file."""

    def __init__(self, adapter: Adapter, pair_at: PairAt, alpha: float, kind: TensorType) -> None:
        self._model, self._pair_at, self._alpha, self._kind = adapter.model, pair_at, alpha, kind
        self._factors = factors(adapter)

    def next(self, factor: Factor) -> Iterator[memoryview]:
        """Yield the bytes of the next factor, which must be `factor`."""
        found, values = next(self._factors)
        assert found == factor
        (layer, target), part = factor
        stacked = values.ndim == 3  # experts: their rows and columns have one order everywhere
        if part == "B":
            pair = self._pair_at(layer, target)
            assert pair is not None
            if not stacked:
                values = values[gguf_rows(self._model, layer, target)]
            wanted = _effective_alpha(pair)
            if np.float32(wanted) != np.float32(self._alpha):
                values = rescaled(values, factor, wanted / self._alpha)
        elif not stacked:
            values = np.ascontiguousarray(values[:, gguf_columns(self._model, layer, target)])
        with np.errstate(over="ignore"):
            stored = quantize(values.reshape(-1, values.shape[-1]), self._kind)
        if self._kind is TensorType.F16 and not np.isfinite(stored.view(np.float16)).all():
            raise FeatherbackError(
                f"{target} of layer {layer} has a value that F16 cannot hold; choose {argument('type', 'f32')} or bf16."
            )
        yield stored.data


class _Stored(StoredAdapter):
    def __init__(self, form: Form, file: GGUFFile, layout: Layout, model: Model) -> None:
        super().__init__(form, file, layout.names)
        self._model = model

    def factor(self, factor: Factor) -> Float32:
        stored = matrix(self._file, self._names[factor])
        values = np.empty(stored.shape, np.float32)
        kernels.dequantize(kernels.matrix(stored), values)
        layer, target = factor.place
        if len(shape := self._model.blocks[layer].shape(target)) == 3:
            return values.reshape(shape[0], -1, values.shape[1])
        if factor.part == "B":
            return np.ascontiguousarray(values[np.argsort(gguf_rows(self._model, *factor.place))])
        return np.ascontiguousarray(values[:, np.argsort(gguf_columns(self._model, *factor.place))])


def layout_of(model: Model) -> Layout:
    """llama.cpp's names of the factors. They follow the tensors of a GGUF model, also for a Hugging Face folder."""
    return Layout(
        {
            f"{model.family.gguf_names[target].format(layer)}.lora_{part.lower()}": Factor((layer, target), part)
            for (layer, target), _ in named_projections(model)
            for part in "AB"
        }
    )


def gguf_rows(model: Model, layer: int, target: str) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return an index (out,) such that `hf_rows[index]` is in the order of a GGUF file."""
    return model.blocks[layer].row_order(target, hf_to_gguf_rows, interleaved=model.family.gguf_interleaved, tiled=True)


def gguf_columns(model: Model, layer: int, target: str) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return an index (in,) such that `hf_columns[:, index]` is in the order of a GGUF file."""
    return model.blocks[layer].column_order(target, tiled=True)


def _effective_alpha(pair: LoRAKind) -> float:
    """The scale times the rank."""
    return pair.scale * pair.rank if pair.rslora else pair.alpha


def _alpha(file: GGUFFile, model: Model) -> float:
    """Read the file's alpha. Raises FeatherbackError if it is not a LoRA for this architecture."""
    for key, wanted in (
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", model.config.architecture),
    ):
        if (value := file.metadata.get(key)) != wanted:
            if key == "general.architecture":
                raise MisfitError(
                    f"The adapter {file.path}",
                    model,
                    [f"its architecture is {excerpt(value)}, but the model's is {wanted!r}"],
                )
            what = {
                "general.type": f"{file.path} is a GGUF of type {excerpt(value)}, not an adapter",
                "adapter.type": f"{file.path} is an adapter of type {excerpt(value)}, not a LoRA",
            }[key]
            raise FeatherbackError(f"{what}.")
    if INVOCATION in file.arrays:
        raise FeatherbackError(
            f"{file.path} is an activated LoRA (it has {INVOCATION}), which is not supported. Use a plain LoRA."
        )
    alpha = "of many values" if ALPHA in file.arrays else file.metadata.get(ALPHA, 0)
    return 0.0 if alpha == 0 and type(alpha) is not bool else check_alpha(str(file.path), ALPHA, alpha)


def _check_gguf(model: Model) -> None:
    """Raise FeatherbackError if the model is a Hugging Face folder, which Featherback cannot convert to GGUF."""
    if model.source != "gguf":
        raise FeatherbackError(
            f"{model.path} is a Hugging Face folder; make a GGUF of it with llama.cpp's convert_hf_to_gguf.py."
        )


FORMAT = GGUF()
