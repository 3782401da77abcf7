"""Models of transformers with ternary weights, in the files that hold them: folders, GGUF with I2_S or with scales."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import BitNetConfig, BitNetForCausalLM
from transformers.integrations.bitnet import WeightQuant, pack_weights

from featherback.engine.formats.gguf import I2_S
from tests.support.families.bitnet import earlier

SIZES: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
    "tie_word_embeddings": True,
}  # fmt: skip
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def is_projection(name: str) -> bool:
    return name.endswith(tuple(f"{part}.weight" for part in PROJECTIONS))


def dense(seed: int = 0) -> BitNetForCausalLM:
    """A random model whose projections hold weights that are not ternary."""
    torch.manual_seed(seed)
    model = BitNetForCausalLM(BitNetConfig(**SIZES)).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" in name:
                weights.add_(0.3 * torch.randn_like(weights))
            if is_projection(name):
                weights.copy_(0.1 * torch.randn_like(weights))
    return model


def quantised(weights: torch.Tensor) -> torch.Tensor:
    """Masters made ternary by transformers, with the scale of their mean in float64.

    transformers adds in float32. The last bit of that sum depends on the instruction set and the number of threads.
    """
    ternary = WeightQuant.apply(weights)
    inverse = 1 / weights.abs().double().mean().float().clamp(min=1e-5)
    found = (torch.sign(ternary).float() / inverse).to(weights.dtype)
    torch.testing.assert_close(ternary, found, rtol=1e-5 if weights.dtype is torch.float32 else 8e-3, atol=0)
    return found


def stated(folder: Path, **entries: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", **entries}
    (folder / "config.json").write_text(json.dumps(config))


def folder_of(path: Path, kind: str, dtype: torch.dtype = torch.float32) -> tuple[Path, BitNetForCausalLM]:
    """A folder with ternary weights, and the model that transformers computes from it, activations not rounded."""
    model = dense().to(dtype)
    model.save_pretrained(path)
    tensors, model = load_file(path / "model.safetensors"), dense()
    model.load_state_dict(tensors, strict=False)
    with torch.no_grad():
        for name, weights in list(tensors.items()):
            if not is_projection(name):
                continue
            ternary = quantised(weights)
            if kind != "online":
                size = ternary.float().abs().max()
                codes = torch.sign(ternary.float()).round()
                scale = (size if kind == "autobitlinear" else 1 / size).to(dtype)
                tensors[name] = codes.to(dtype) if kind == "unpacked" else pack_weights(codes.clone())
                if kind == "unpacked":
                    scale = size.to(dtype)
                tensors[name.removesuffix(".weight") + ".weight_scale"] = scale.reshape(1)
                factor = 1 / scale.float() if kind == "bitlinear" else scale.float()
                ternary = codes * factor
            model.get_parameter(name).copy_(ternary)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    mode = "online" if kind == "online" else "offline"
    stated(path, linear_class="bitlinear" if kind == "bitlinear" else "autobitlinear", quantization_mode=mode)
    return path, model


def gguf_of(path: Path, model: BitNetForCausalLM, architecture: str, form: str) -> Path:
    """A GGUF file of a model with ternary weights. `form`: "i2_s", or the type of weights beside which scales lie."""
    c, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    if architecture == "bitnet":
        writer.add_string("bitnet.hidden_act", "relu2")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BITNET, c.num_hidden_layers)
    packed = []
    for name, tensor in model.state_dict().items():
        array, stored = tensor.numpy(), names.get_name(earlier(name), (".weight",))
        if not is_projection(name):
            if name != "lm_head.weight":  # llama.cpp's bitnet has none: it is the embedding
                writer.add_tensor(stored, array)
            continue
        scale = np.abs(array).max()
        codes = np.sign(array).astype(np.float32)
        if form == "i2_s":
            packed.append(stored)
            writer.add_tensor(stored, i2_s(codes, scale), raw_dtype=gguf.GGMLQuantizationType.I8)
        else:
            kind = gguf.GGMLQuantizationType[form]
            writer.add_tensor(stored, gguf.quants.quantize(codes, kind), raw_dtype=kind)
            writer.add_tensor(stored.removesuffix(".weight") + ".scale", np.array([scale], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = bytearray(path.read_bytes())
    shapes = {names.get_name(earlier(name), (".weight",)): tensor.shape for name, tensor in model.state_dict().items()}
    for stored in packed:  # the directory says one row of bytes: give the type and the shape of the fork
        at = data.index(struct.pack("<Q", len(stored)) + stored.encode()) + 8 + len(stored)
        rows, cols = shapes[stored]
        data[at : at + 24] = struct.pack("<IQQI", 2, cols, rows, I2_S)
    path.write_bytes(data)
    return path


def i2_s(codes: np.ndarray, scale: float) -> np.ndarray:
    """Signs (rows, cols) as Microsoft's fork of llama.cpp stores them, one element at a time: shape (1, bytes)."""
    flat = codes.reshape(-1)
    out = np.zeros(flat.size // 4 + 32, np.uint8)
    for place, sign in enumerate(flat.astype(int)):
        block, at = divmod(place, 128)
        out[32 * block + at % 32] |= (sign + 1) << (6 - at // 32 * 2)
    out[flat.size // 4 :][:4] = np.array([scale], np.float32).view(np.uint8)
    return out[None]
