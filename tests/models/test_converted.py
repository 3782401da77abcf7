"""A model of transformers as its folder, and as the GGUF file that llama.cpp's converter makes of it, are one model.

The file is written here with the `gguf` package's names and keys, in the converter's way, by nothing of Featherback.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from featherback.inference.decoder import Decoder
from featherback.models import load

ORIGINAL, CONTEXT = 24, 96
LENGTHS = (5, ORIGINAL, ORIGINAL + 1, 60)

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "pad_token_id": None,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LONG = {
    "rope_type": "longrope",
    "partial_rotary_factor": 0.75,
    "short_factor": np.linspace(1, 1.5, 6).tolist(),
    "long_factor": np.linspace(1, 20, 6).tolist(),
}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "attention_bias": False, "rope_parameters": {"rope_type": "default"}},
    "linear": {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "model_type": "llama",
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    },
    "qwen2, yarn": {"model_type": "qwen2", "rope_parameters": YARN | {"rope_theta": 1e6}},
    "qwen3, yarn of other turns": {
        "model_type": "qwen3",
        "head_dim": 32,
        "rope_parameters": YARN | {"beta_fast": 4.0, "beta_slow": 0.5},
    },
    "smollm3": {"model_type": "smollm3", "rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
    "smollm3, yarn": {"model_type": "smollm3", "tie_word_embeddings": False, "rope_parameters": dict(YARN)},
    "phi4-mini": {
        "model_type": "phi3",
        "tie_word_embeddings": True,
        "original_max_position_embeddings": ORIGINAL,
        "rope_parameters": LONG,
    },
    "phi3 of short context": {
        "model_type": "phi3",
        "original_max_position_embeddings": CONTEXT,
        "rope_parameters": {"rope_type": "default"},
    },
}
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


@pytest.mark.parametrize("case", CASES)
def test_file_and_folder_are_one_model(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    entries = json.loads(
        json.dumps(SIZES | CASES[case])
    )  # transformers changes the mappings that it is given
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**entries), attn_implementation="eager"
    ).eval()
    theirs.save_pretrained(tmp_path / "hf")
    convert(theirs, tmp_path / "a.gguf")
    tokens = np.random.default_rng(0).integers(0, 50, max(LENGTHS)).tolist()
    for path in (tmp_path / "hf", tmp_path / "a.gguf"):
        model = load(path)
        for length in LENGTHS:
            found = Decoder(model, compute="fp32").forward(tokens[:length], every=True)
            with torch.no_grad():
                expected = theirs(torch.tensor([tokens[:length]])).logits[0].numpy()
            np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max(), err_msg=path.name)


def convert(model: PreTrainedModel, path: Path) -> None:
    """What llama.cpp's converter writes of the model itself."""
    c, kind = model.config, ARCHITECTURES[model.config.model_type]
    rope, width, heads = c.rope_parameters, c.hidden_size, c.num_attention_heads
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    head_dim = getattr(c, "head_dim", None) or width // heads
    if c.model_type == "phi3":
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * width) // heads)
        writer.add_sliding_window(c.sliding_window or 0)
        writer.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
        if "long_factor" in rope:
            _long_rope(writer, c, rope)
    else:
        writer.add_vocab_size(c.vocab_size)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        if c.model_type in ("llama", "smollm3"):
            writer.add_rope_dimension_count(head_dim)
        _scaling(writer, rope, head_dim)
    names = gguf.get_tensor_name_map(kind, c.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array = tensor.numpy()
        part = name.rsplit(".", 2)[-2]
        if c.model_type in ("llama", "smollm3") and part in ("q_proj", "k_proj"):
            array = _permuted(array, heads if part == "q_proj" else c.num_key_value_heads)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _scaling(writer: gguf.GGUFWriter, rope: dict[str, Any], head_dim: int) -> None:
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("beta_fast") is not None:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        context, factors = rope["original_max_position_embeddings"], []
        for index in range(0, head_dim, 2):
            wavelength = 2 * math.pi * rope["rope_theta"] ** (index / head_dim)
            if wavelength < context / high:
                factors.append(1.0)
            elif wavelength > context / low:
                factors.append(rope["factor"])
            else:
                smooth = (context / wavelength - low) / (high - low)
                factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def _long_rope(writer: gguf.GGUFWriter, c: Any, rope: dict[str, Any]) -> None:
    """The type of the scaling is not said: the tensors tell."""
    stretched = c.max_position_embeddings / c.original_max_position_embeddings
    factor = math.sqrt(1 + math.log(stretched) / math.log(c.original_max_position_embeddings))
    writer.add_rope_scaling_attn_factors(factor)
    for length in ("long", "short"):
        writer.add_tensor(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], np.float32))


def _permuted(array: np.ndarray, heads: int) -> np.ndarray:
    halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
