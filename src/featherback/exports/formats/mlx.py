"""Adapters of mlx-lm (https://github.com/ml-explore/mlx-lm): adapter_config.json and adapters.safetensors.

y = x W^T + scale (x lora_a) lora_b with lora_a (in, rank) and lora_b (rank, out). The whole adapter has one rank and
one scale: factors of a smaller rank are padded with zeros, and factors with another scale are multiplied by the ratio.
Experts have lora_a (E, rank, in) and lora_b (E, out, rank), with gate and up apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from featherback.core.files import atomic_folder, make_folder, read_json, write_json
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.base import (
    Exported,
    Factor,
    Float32,
    Format,
    Request,
    StoredAdapter,
    check_modules,
    factors,
    form_of,
    named_projections,
)
from featherback.exports.formats.pairs import Layout, PairAt, check_alpha, pairs_of, ranks_of, rescaled
from featherback.exports.safetensors_writer import write_safetensors
from featherback.exports.stops import stop_note
from featherback.models.adapter import Adapter
from featherback.models.architecture.names import hf_module
from featherback.models.model import Model
from featherback.nn.adapters.lora import LoRAKind

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapters.safetensors"
KINDS = ("lora", None)


class MLX(Format):
    title = f"an MLX directory ({CONFIG_FILE}, {WEIGHTS_FILE})"
    files = (WEIGHTS_FILE, CONFIG_FILE)
    help = "an adapter directory for mlx-lm"

    @contextmanager
    def open(self, path: Path, model: Model) -> Iterator[StoredAdapter]:
        scale = _scale(path / CONFIG_FILE)
        with reading(SafetensorsFile(path / WEIGHTS_FILE)) as file:
            where = f"The adapter in {path}"
            layout = layout_of(model)
            modules = (name.split(".lora_")[0].rsplit(".", 1)[-1] for name in layout.names)
            check_modules(where, model, file.tensors, ".lora_", modules)
            ranks = ranks_of(where, model, file.tensors, layout)
            kinds = {place: LoRAKind(rank=rank, alpha=scale * rank) for place, rank in ranks.items()}
            yield _Stored(form_of(where, model, kinds), file, layout.names)

    def save(self, adapter: Adapter, path: Path, base_model: str | None = None) -> None:
        pair_at, usual = pairs_of(adapter, self.title), cast(LoRAKind, adapter.form.kind)
        if "gate_up_exps" in adapter.targets:
            raise FeatherbackError(
                f"{self.title[0].upper()}{self.title[1:]} keeps gate and up of experts apart, and the adapter of "
                f"{adapter.model.path.name} has one pair for both; export it with {argument('to', 'peft')} or gguf."
            )
        make_folder(path)
        layout, rank = layout_of(adapter.model), adapter.layout.most_rank
        shapes = {
            name: layout.shape(adapter.model, factor, rank)
            for name, factor in layout.names.items()
            if pair_at(*factor.place)
        }
        write_safetensors(path / WEIGHTS_FILE, shapes, _tensors(adapter, pair_at, usual.scale))
        base = base_model or base_model_name(adapter.model)
        write_json(path / CONFIG_FILE, _configuration(adapter, usual.scale, base))

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-mlx"

    def write(self, request: Request) -> Exported:
        model, out = request.adapter.model, request.out
        base = request.base_model or base_model_name(model)
        request.check_room()
        with atomic_folder(out) as folder:
            self.save(request.adapter, folder, base)
        if base == str(model.path.absolute()) and model.source == "gguf":
            note = (
                f"mlx-lm cannot open {model.path.name}; give it the Hugging Face model that the file was made from: "
                f"{_command('OWNER/NAME', out)}"
            )
            return Exported(out, request.try_out(), [note])
        return Exported(out, _command(base, out), stop_note(model.path))


class _Stored(StoredAdapter):
    def factor(self, factor: Factor) -> Float32:
        values = super().factor(factor)
        return values if values.ndim == 3 else values.T


def layout_of(model: Model) -> Layout:
    """mlx-lm's names of the factors."""
    names = {
        f"{_module(model, *place)}.lora_{part.lower()}": Factor(place, part)
        for place, _ in named_projections(model)
        for part in "AB"
        if place[1] != "gate_up_exps"
    }
    return Layout(names, transposed=True)


def _module(model: Model, layer: int, target: str) -> str:
    """The name of a projection in mlx-lm's model: mostly Hugging Face's."""
    return hf_module({**model.naming.modules, **model.family.mlx_names}, layer, target)


def _scale(file: Path) -> float:
    """Read the scale from a configuration. Raises FeatherbackError if it does not describe a plain LoRA."""
    entries = read_json(file)
    if not isinstance(entries, dict):
        raise FeatherbackError(f"{file} does not describe an adapter: it is not a JSON object.")
    if (kind := entries.get("fine_tune_type")) not in KINDS:
        raise FeatherbackError(
            f"{file} describes an unsupported adapter: fine_tune_type is {excerpt(kind)}, not 'lora'."
        )
    parameters = entries.get("lora_parameters")
    if not isinstance(parameters, dict):
        raise FeatherbackError(f"{file} does not describe an adapter: it has no lora_parameters.")
    return check_alpha(str(file), "scale", parameters.get("scale"))


def _tensors(adapter: Adapter, pair_at: PairAt, usual: float) -> Iterator[tuple[str, Float32]]:
    rank = adapter.layout.most_rank
    for factor, values in factors(adapter):
        (layer, target), part = factor
        axis = values.ndim - (2 if part == "A" else 1)
        if missing := rank - min(values.shape[axis], rank):
            values = np.pad(values, [(0, missing if each == axis else 0) for each in range(values.ndim)])
        stored = values if values.ndim == 3 else values.T
        pair = pair_at(layer, target)
        if part == "B" and pair is not None and pair.scale != usual:
            stored = rescaled(stored, factor, pair.scale / usual)
        yield f"{_module(adapter.model, layer, target)}.lora_{part.lower()}", np.ascontiguousarray(stored)


def _configuration(adapter: Adapter, scale: float, base_model: str) -> dict[str, Any]:
    """The adapter_config.json.

    mlx-lm makes pairs in the last `num_layers` layers for the modules in `keys`; pairs missing in the file are zero.
    """
    layers = [layer for layer in range(adapter.parameters.layers) if adapter.layout.kinds(layer)]
    return {
        "fine_tune_type": "lora",
        "model": base_model,
        "num_layers": adapter.parameters.layers - min(layers),
        "lora_parameters": {
            "rank": adapter.layout.most_rank,
            "scale": scale,
            "dropout": 0.0,
            "keys": [_module(adapter.model, 0, target).split(".layers.0.")[1] for target in adapter.targets],
        },
    }


def _command(base: str, out: Path) -> str:
    return quoted("mlx_lm.generate", "--model", base, "--adapter-path", out, "--prompt", "Hello")


FORMAT = MLX()
