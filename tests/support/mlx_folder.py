"""MLX's group-wise affine quantisation in NumPy, from its documentation, and folders as mlx-lm's converter leaves them.

It uses nothing of Featherback's but to write the model that the folder is made of.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

Floats = NDArray[np.float32]


def quantize(w: Floats, bits: int, size: int, number: str) -> tuple[NDArray[np.uint32], Floats, Floats]:
    """Words (out, in * bits / 32), scales and biases (out, in / size) rounded to `number`: w = scale * code + bias."""
    groups = w.reshape(w.shape[0], -1, size)
    low, high = groups.min(axis=2), groups.max(axis=2)
    scale = np.maximum((high - low) / np.float32(2**bits - 1), np.float32(1e-7))
    # Whichever end is larger is met exactly, and a scale may be negative.
    flip = np.abs(low) <= np.abs(high)
    scale, bias = np.where(flip, -scale, scale), np.where(flip, high, low)
    scale, bias = rounded(scale, number), rounded(bias, number)
    codes = np.rint((groups - bias[..., None]) / scale[..., None]).clip(0, 2**bits - 1).astype(np.uint32)
    return pack(codes.reshape(w.shape), bits), scale, bias


def pack(codes: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """Codes (out, in) in words of 32 bits, the first in the lowest."""
    places = np.arange(0, 32, bits, dtype=np.uint32)
    return (codes.reshape(codes.shape[0], -1, 32 // bits) << places).sum(axis=2, dtype=np.uint32)


def dequantize(words: NDArray[np.uint32], scale: Floats, bias: Floats, bits: int, size: int) -> Floats:
    """scale * code + bias in float32."""
    codes = words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32(2**bits - 1)
    codes = codes.reshape(words.shape[0], -1).astype(np.float32)
    return scale.repeat(size, axis=1) * codes + bias.repeat(size, axis=1)


def rounded(values: Floats, number: str) -> Floats:
    """Values as bf16, f16 or f32 has them, in float32."""
    if number == "f16":
        return values.astype(np.float16).astype(np.float32)
    if number == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return values.astype(np.float32)


def mlx_folder(
    source: Path,
    out: Path,
    bits: int = 4,
    size: int = 64,
    number: str = "bf16",
    modules: Callable[[str], dict[str, int] | bool] = lambda module: True,
    change: Callable[[dict[str, NDArray[Any]]], None] = lambda tensors: None,
) -> None:
    """Quantise the Hugging Face folder `source`, of one float32 file, into the new folder `out`.

    `modules`: False for those that stay, or {"bits": ..., "group_size": ...} for those with others. `change` may change
    the tensors (name -> array) before they are written; floats are then stored as `number`.
    """
    shutil.copytree(source, out)
    config = json.loads((out / "config.json").read_text())
    said: dict[str, Any] = {"group_size": size, "bits": bits}
    tensors: dict[str, NDArray[Any]] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        w = tensor.numpy()
        module = name.removesuffix(".weight")
        own = modules(module) if w.ndim == 2 else False
        if w.ndim == 2 and own is not True:
            said[module] = own
        if own is False:
            tensors[name] = rounded(w, number)
            continue
        entry = said | (own if isinstance(own, dict) else {})
        words, scale, bias = quantize(w, entry["bits"], entry["group_size"], number)
        tensors |= {name: words, f"{module}.scales": scale, f"{module}.biases": bias}
    change(tensors)
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[number]
    stored = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()}
    save_file(
        {name: t if t.dtype == torch.uint32 else t.to(dtype) for name, t in stored.items()},
        out / "model.safetensors",
        {"format": "mlx"},
    )
    config |= {"quantization": said, "quantization_config": said}
    (out / "config.json").write_text(json.dumps(config))


def mlx_values(folder: Path) -> dict[str, Floats]:
    """The values that the tensors of a folder stand for, by their names."""
    said = json.loads((folder / "config.json").read_text())["quantization"]
    tensors = load_file(folder / "model.safetensors")
    values = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if f"{module}.scales" not in tensors:
            values[name] = tensor.float().numpy()
        elif part == "weight":
            scale, bias = (tensors[f"{module}.{end}"].float().numpy() for end in ("scales", "biases"))
            own = said.get(module)
            entry = said | (own if isinstance(own, dict) else {})
            values[name] = dequantize(tensor.numpy(), scale, bias, entry["bits"], entry["group_size"])
        elif part == "bias":
            values[name] = tensor.float().numpy()
    return values
