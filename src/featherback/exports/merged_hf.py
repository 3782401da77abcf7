"""Write a Hugging Face folder with an adapter merged into it, with the same files, shards and types."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from math import prod
from pathlib import Path

from featherback.core.files import atomic_file, check_free_space, copy_file, make_folder
from featherback.core.naming import argument, argument_is
from featherback.core.private import check_link
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import INDEX, SINGLE, TYPES, SafetensorsFile, SafetensorsFolder
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.errors import FeatherbackError
from featherback.exports.merging import Merge
from featherback.exports.safetensors_writer import write_tensors
from featherback.exports.stops import write_stops
from featherback.models.adapter import Adapter
from featherback.models.converted import ConvertedWeights
from featherback.models.floats import JOINED
from featherback.models.form import LayerTarget
from featherback.models.mxfp4 import MXFP4Folder
from featherback.models.source import Made, Piece
from featherback.models.streams import copied

_DTYPES = {TensorType.F32: "float32", TensorType.F16: "float16", TensorType.BF16: "bfloat16"}
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
BESIDE = re.compile(
    rf"(generation_|preprocessor_|processor_|image_processor_|video_preprocessor_)?config\.json|{re.escape(INDEX)}"
    r"|(tokenizer|special_tokens_map|added_tokens|vocab|chat_template).*\.json|tokenizer\.model.*|vocab\.txt|merges\.txt"
    r"|.*\.jinja|(LICENSE|NOTICE|README|USE_POLICY)([._-].*)?",
    re.IGNORECASE,
)
"""Names of the files of a Hugging Face folder that are copied with the weights. Other files may be private."""


class MergedHF:
    """A folder to be written. `kind`: the type of merged matrices; None: types that keep enough of the update."""

    def __init__(self, adapter: Adapter, kind: TensorType | None = None) -> None:
        if kind is not None and kind not in TYPES.values():
            known = ", ".join(each.lower() for each in TYPES)
            raise FeatherbackError(
                f"{argument_is('type', kind.name.lower())}; a Hugging Face folder can hold one of: {known}."
            )
        if TensorType.TERNARY in {info.type for info in adapter.model.store.tensors.values()}:
            raise FeatherbackError(
                f"Cannot merge into {adapter.model.path}: its weights are ternary, and merged weights are not. Export "
                f"the adapter with {argument('to', 'peft')}, or with {argument('to', 'gguf')}."
            )
        store, path = adapter.model.store, adapter.model.path
        converted = store if isinstance(store, ConvertedWeights) else None
        if converted is not None and converted.label == MXFP4Folder.label:
            raise FeatherbackError(
                f"Cannot merge into {path}: its experts are in MXFP4. Export the adapter with "
                f"{argument('to', 'peft')}; PEFT merges it into the weights that transformers dequantises."
            )
        if converted is not None and converted.label != JOINED:
            raise FeatherbackError(
                f"Cannot merge into {path}: its weights were converted when it was opened. Name the "
                f"original folder, with float weights, as {argument('model')}; or export with {argument('to', 'mlx')} "
                f"and merge with mlx_lm.fuse."
            )
        self._merged = {
            adapter.model.naming.tensors[target].format(layer): (layer, target)
            for layer in range(adapter.parameters.layers)
            for target in adapter.layout.kinds(layer)
        }
        self._parts = _parts(self._merged, {} if converted is None else converted.made)
        whole = all(piece.rows == slice(None) for _, piece in self._parts.values())
        if not whole or any(name.endswith(adapter.model.family.turned) for name in self._merged):
            raise FeatherbackError(
                f"Cannot merge experts into {path}, which stores their matrices in another order. Export the adapter "
                f"with {argument('to', 'peft')}; PEFT merges it."
            )
        self.adapter, self._kind = adapter, kind
        self._kinds: dict[LayerTarget, TensorType] = {}
        self.merge = Merge(adapter, tuple(TYPES.values()))
        self.types: Counter[TensorType] = Counter()
        self.nbytes = 0
        """Size of all tensors in the new folder, in bytes."""
        self.notes: list[str] = []
        """Notes about the folder's other files."""

    def write(self, folder: Path) -> None:
        """Write the folder's files, each atomically.

        Raises FeatherbackError if the disk has no room for them, or if the folder holds other weights.
        """
        model = self.adapter.model
        with closing(SafetensorsFolder(model.path)) as base:
            parts = sorted({base.file_of(name) for name in base.tensors})
            make_folder(folder)
            _check_no_other_weights(folder, {path.name for path in parts})
            shards = {path.name: self._shard(base, path) for path in parts}
            kinds = {tensor.type for shard in shards.values() for tensor in shard}
            self.nbytes = sum(tensor.nbytes for shard in shards.values() for tensor in shard)
            named = self._kind is not None or self.merge.finer
            self.notes = write_folder(model.path, folder, shards, kinds if named else set())

    def _shard(self, base: SafetensorsFolder, path: Path) -> list[OutTensor]:
        """The tensors of a file, in its order."""
        with reading(SafetensorsFile(path)) as file:
            infos = list(file.tensors.values())
        return [self._output(base, info) for info in infos]

    def _output(self, base: SafetensorsFolder, info: TensorInfo) -> OutTensor:
        place, wanted = self._merged.get(info.name), None
        if found := self._parts.get(info.name):
            (place, number), rows = found[0], prod(info.shape[:-1])
            wanted = range(number * rows, (number + 1) * rows)
        if place is None:
            return OutTensor(info.name, info.type, info.shape, lambda: copied(base.data(info.name)))
        kind = self._kind_of(place)
        self.types[kind] += 1
        return OutTensor(info.name, kind, info.shape, partial(self.merge.chunks, place, kind, wanted))

    def _kind_of(self, place: LayerTarget) -> TensorType:
        """The type of a merged projection, which is measured once for all experts."""
        if place not in self._kinds:
            self._kinds[place] = self.merge.type_of(place, self._kind)
        return self._kinds[place]


def _parts(merged: Mapping[str, LayerTarget], made: Made) -> dict[str, tuple[tuple[LayerTarget, int], Piece]]:
    """Stored tensor -> the projection that it is a part of, its number among the parts, and its rows."""
    return {
        piece.name: ((place, number), piece)
        for name, place in merged.items()
        for number, piece in enumerate(made.get(name, ()))
    }


def write_folder(
    base: Path, folder: Path, shards: Mapping[str, Sequence[OutTensor]], kinds: set[TensorType]
) -> list[str]:
    """Write the weights in `shards` (file name -> tensors), and copy the other files of the model `base` (BESIDE).

    Return notes about these. `kinds`: the types of the weights, if config.json must name another one. Raises
    FeatherbackError if the disk has no room, or if one of the copied files is a link out of the folder.
    """
    beside = [path for path in sorted(base.iterdir()) if path.is_file() and BESIDE.fullmatch(path.name)]
    for path in beside:
        check_link(path)
    if set(shards) == {SINGLE}:
        beside = [path for path in beside if path.name != INDEX]  # the index lists the old shards
    make_folder(folder)
    nbytes = sum(tensor.nbytes for shard in shards.values() for tensor in shard)
    check_free_space(folder / next(iter(shards)), nbytes + sum(path.stat().st_size for path in beside))
    for name, tensors in shards.items():
        write_tensors(folder / name, tensors, {"format": "pt"})
    for path in beside:
        copy_file(path, folder / path.name)
    if kinds:
        _name_type(folder / "config.json", kinds)
    return write_stops(folder)


def _name_type(path: Path, kinds: set[TensorType]) -> None:
    """Set the type in a config.json to one that holds every weight: transformers converts the weights to it."""
    kind = next(iter(kinds)) if len(kinds) == 1 else TensorType.F32
    values = json.loads(path.read_bytes())
    for each in (values, values.get("text_config")):
        for key in ("torch_dtype", "dtype"):
            if isinstance(each, dict) and key in each:
                each[key] = _DTYPES[kind]
    with atomic_file(path) as file:
        file.write((json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())


def _check_no_other_weights(folder: Path, names: set[str]) -> None:
    """Raise FeatherbackError if the folder holds weights that will not be replaced: a program might load them."""
    others = sorted(path.name for path in folder.iterdir() if path.suffix in WEIGHTS and path.name not in names)
    if others:
        raise FeatherbackError(
            f"{folder} holds other weights ({', '.join(others[:3])}), which a program could load instead of the merged "
            f"ones; choose another {argument('out')}."
        )
