"""Adapters as PEFT directories, adapter_config.json and adapter_model.safetensors, a layer at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import LoRA, adapter_shapes
from featherback.adapters.safetensors_writer import write_safetensors
from featherback.errors import FeatherbackError, shown
from featherback.files import read_json, write_json
from featherback.models.model import Model
from featherback.weights.gguf import GGUFFile
from featherback.weights.safetensors import SafetensorsFile
from featherback.weights.types import TensorType

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
MOST_ALPHA = 1e30  # far beyond any use, and float32 still holds it
_SOURCES = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")

# Entries of adapter_config.json that change what the adapter computes, with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "megatron_config": (None,),
    # PiSSA, OLoRA, CorDA and LoftQ also change the base model, so their adapters do not fit it.
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}


def save(adapter: LoRA, directory: str | Path, base_model: str | None = None) -> None:
    """Write the adapter into `directory`, which is made if need be; each file appears whole or not at all.

    `base_model`: what the configuration calls the base (default: `base_model_name`). FeatherbackError if it cannot be
    written, or holds NaN or infinity: what was there before is untouched.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FeatherbackError(f"Cannot write to {directory}: {error.strerror}.") from error
    write_safetensors(directory / WEIGHTS_FILE, _shapes(adapter), _tensors(adapter), {"format": "pt"})
    write_json(directory / CONFIG_FILE, _configuration(adapter, base_model or base_model_name(adapter.model)))


def load(model: Model, directory: str | Path, path: str | Path | None = None) -> LoRA:
    """Read an adapter of `model`; `path`: file for its parameters (None: in RAM).

    FeatherbackError naming everything that does not fit.
    """
    directory = Path(directory)
    if not (directory / CONFIG_FILE).is_file():
        raise FeatherbackError(f"{directory} is not an adapter directory (it has no {CONFIG_FILE}).")
    configuration = read_json(directory / CONFIG_FILE)
    if not isinstance(configuration, dict):
        raise FeatherbackError(f"{directory / CONFIG_FILE} describes no adapter: it is not a JSON object.")
    rank, alpha = _rank_and_alpha(configuration, directory)
    file = SafetensorsFile(directory / WEIGHTS_FILE)
    try:
        targets = _targets(file, model, directory)
        _check_tensors(file, model, adapter_shapes(model, rank, targets), directory)  # before it takes memory
        adapter = LoRA(model, rank, alpha, targets, path=path)
        for layer in range(adapter.parameters.layers):
            names = adapter.layer_state(layer)
            state = {name: _float32(file, PREFIX + name) for name in names}
            for name, values in state.items():
                if not np.isfinite(values).all():
                    raise FeatherbackError(
                        f"The adapter in {directory} is broken: {name} holds NaN or infinity."
                    )
            adapter.load_layer_state(layer, state)
    finally:
        file.close()
    return adapter


def base_model_name(model: Model) -> str:
    """What an adapter's configuration calls `model`: its name on the Hub, if the GGUF tells, or its path.

    (`general.base_model` is not asked: it names what the model itself was tuned from.)
    """
    if model.source == "gguf":
        file = GGUFFile(model.path)
        found = [file.metadata.get(key) for key in _SOURCES]
        file.close()
        for source in found:
            if isinstance(source, str) and source:
                return source.removeprefix("https://huggingface.co/")
    return str(model.path.absolute())


def _shapes(adapter: LoRA) -> dict[str, tuple[int, ...]]:
    """The file's tensors in order."""
    return {PREFIX + name: shape for name, shape in adapter.shapes().items()}


def _tensors(adapter: LoRA) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for layer in range(adapter.parameters.layers):
        for name, values in adapter.layer_state(layer).items():
            if not math.isfinite(kernels.sum_squares(values.reshape(-1))):
                raise FeatherbackError(f"The adapter is not saved: {name} holds NaN or infinity.")
            yield PREFIX + name, values


def remove(directory: Path) -> None:
    """Delete the adapter in `directory`, if one is there."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        (directory / name).unlink(missing_ok=True)


def _configuration(adapter: LoRA, base_model: str) -> dict[str, Any]:
    alpha = float(adapter.alpha)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "target_modules": list(adapter.targets),
        **_excluded(adapter.model.naming.others),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _excluded(others: tuple[str, ...]) -> dict[str, str]:
    """The entry that keeps PEFT from adapting modules of the same names in the model's other parts."""
    parts = "|".join(re.escape(name) for name in others)
    return {"exclude_modules": rf"(.*\.)?({parts}).*"} if parts else {}


def _rank_and_alpha(configuration: Mapping[str, Any], directory: Path) -> tuple[int, float]:
    """Rank, and alpha such that the scale is alpha / rank; FeatherbackError if this is no plain LoRA."""
    file = directory / CONFIG_FILE
    strange = [
        f"{key} = {shown(configuration[key])}"
        for key, neutral in _NEUTRAL.items()
        if key in configuration and configuration[key] not in neutral
    ]
    if strange:
        raise FeatherbackError(
            f"{file} describes an adapter that is not a plain LoRA ({', '.join(strange)})."
        )
    rank, alpha = configuration.get("r"), configuration.get("lora_alpha", 8)
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not 0 < alpha < MOST_ALPHA:
        raise FeatherbackError(
            f"{file} has rank {shown(rank)} and alpha {shown(alpha)}; both must be positive numbers."
        )
    if configuration.get("use_rslora"):  # scale = alpha / sqrt(rank)
        alpha = alpha * math.sqrt(rank)
    return rank, float(alpha)


def _targets(file: SafetensorsFile, model: Model, directory: Path) -> set[str]:
    """The projections that the file has tensors for; FeatherbackError if the model lacks one, or if there is none."""
    known = model.blocks[0].projections
    stems = [name.split(".lora_")[0] for name in file.tensors if ".layers." in name and ".lora_" in name]
    found = dict.fromkeys(stem.rsplit(".", 1)[-1] for stem in stems)
    if not found:
        raise FeatherbackError(f"{directory / WEIGHTS_FILE} adapts none of {', '.join(known)}.")
    if not found.keys() <= known.keys():
        raise FeatherbackError(
            f"The adapter in {directory} does not fit {model.path}: it adapts {', '.join(found)}, and the model has "
            f"{', '.join(known)}; load it with the model that it was trained on."
        )
    return set(found)


def _check_tensors(
    file: SafetensorsFile, model: Model, shapes: Mapping[str, tuple[int, ...]], directory: Path
) -> None:
    """FeatherbackError listing every tensor that is missing, unknown or of another shape."""
    expected = {PREFIX + name: shape for name, shape in shapes.items()}
    problems = [f"{name} is missing" for name in expected if name not in file.tensors]
    for name, info in file.tensors.items():
        if name not in expected:
            problems.append(f"{name} is not a LoRA tensor of this model")
        elif info.shape != expected[name]:
            problems.append(f"{name} is {info.shape}, not {expected[name]}")
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise FeatherbackError(f"The adapter in {directory} does not fit {model.path}: {shown}.")


def _float32(file: SafetensorsFile, name: str) -> NDArray[np.float32]:
    """A tensor of the file as float32."""
    info, data = file.tensors[name], file.data(name)
    if info.type is TensorType.F32:
        values = data.view(np.float32)
    elif info.type is TensorType.F16:
        values = data.view(np.float16).astype(np.float32)
    else:
        assert info.type is TensorType.BF16
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values.reshape(info.shape)
