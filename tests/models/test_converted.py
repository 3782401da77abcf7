"""A model of transformers as its folder, and as the GGUF file that llama.cpp's converter makes of it, are one model.

The file is written here with the `gguf` package's names and keys, in the converter's way, by nothing of Featherback:
Gemma's norms as 1 + w, rows of some families' q and k in another order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from featherback.families import FAMILIES
from featherback.inference.decoder import Decoder
from featherback.models import load

ORIGINAL, CONTEXT = 24, 96
TOLERANCE = 1e-4  # of the largest logit
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
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,  # the sixth has no window
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "olmo2": {"model_type": "olmo2", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "granite": {
        "model_type": "granite",
        "attention_multiplier": 0.2,
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 3.0,
    },
}
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "granite": gguf.MODEL_ARCH.GRANITE,
}
PERMUTED = ("llama", "smollm3", "granite")
"""Rows of q and k are stored in the order in which a rotated pair is adjacent."""


def test_every_family_has_a_case() -> None:
    converted = {gguf.MODEL_ARCH_NAMES[ARCHITECTURES[case["model_type"]]] for case in CASES.values()}
    assert converted == FAMILIES.keys()


@pytest.mark.parametrize("case", CASES)
def test_file_and_folder_are_one_model(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    entries = json.loads(json.dumps(SIZES | CASES[case]))  # transformers changes the mappings that it is given
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**entries), attn_implementation="eager").eval()
    with torch.no_grad():  # norms begin as ones, or as zeros that stand for ones
        for name, weights in theirs.named_parameters():
            if "norm" in name:
                weights.add_(0.3 * torch.randn_like(weights))
    theirs.save_pretrained(tmp_path / "hf")
    convert(theirs, tmp_path / "a.gguf")
    tokens = np.random.default_rng(0).integers(0, 50, max(LENGTHS)).tolist()
    for path in (tmp_path / "hf", tmp_path / "a.gguf"):
        model = load(path)
        for length in LENGTHS:
            found = Decoder(model, compute="fp32").forward(tokens[:length], every=True)
            with torch.no_grad():
                expected = theirs(torch.tensor([tokens[:length]])).logits[0].numpy()
            np.testing.assert_allclose(found, expected, atol=TOLERANCE * np.abs(expected).max(), err_msg=path.name)


def convert(model: PreTrainedModel, path: Path) -> None:
    """What llama.cpp's converter writes of the model itself."""
    c, kind = model.config, ARCHITECTURES[model.config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    OWN_KEYS.get(c.model_type, _usual)(writer, c)
    names = gguf.get_tensor_name_map(kind, c.num_hidden_layers)
    heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array, part = tensor.numpy(), name.rsplit(".", 2)[-2]
        if c.model_type in PERMUTED and part in heads:
            array = _permuted(array, heads[part])
        if c.model_type.startswith("gemma") and part.endswith("norm"):
            array = array + np.float32(1)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _usual(writer: gguf.GGUFWriter, c: Any) -> None:
    """Of Llama, Qwen and SmolLM."""
    rope, head_dim = c.rope_parameters, getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if c.model_type in ("llama", "smollm3"):
        writer.add_rope_dimension_count(head_dim)
    _scaling(writer, rope, head_dim)


def _phi3(writer: gguf.GGUFWriter, c: Any) -> None:
    rope = c.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    rotated = int(rope.get("partial_rotary_factor", 1.0) * c.hidden_size) // c.num_attention_heads
    writer.add_rope_dimension_count(rotated)
    writer.add_sliding_window(c.sliding_window or 0)
    writer.add_rope_scaling_orig_ctx_len(c.original_max_position_embeddings)
    if "long_factor" in rope:
        _long_rope(writer, c, rope)


def _gemma2(writer: gguf.GGUFWriter, c: Any) -> None:
    """Nothing of the scale, nor of the rotary base."""
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
    writer.add_final_logit_softcapping(c.final_logit_softcapping)
    writer.add_sliding_window(c.sliding_window)


def _gemma3(writer: gguf.GGUFWriter, c: Any) -> None:
    """Nor of local layers or of their base."""
    rope = c.rope_parameters["full_attention"]
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_sliding_window(c.sliding_window)


def _olmo2(writer: gguf.GGUFWriter, c: Any) -> None:
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])


def _granite(writer: gguf.GGUFWriter, c: Any) -> None:
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_vocab_size(c.vocab_size)
    writer.add_rope_dimension_count(c.hidden_size // c.num_attention_heads)
    writer.add_attention_scale(c.attention_multiplier)
    writer.add_embedding_scale(c.embedding_multiplier)
    writer.add_residual_scale(c.residual_multiplier)
    writer.add_logit_scale(c.logits_scaling)


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


OWN_KEYS: dict[str, Callable[[gguf.GGUFWriter, Any], None]] = {
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "olmo2": _olmo2,
    "granite": _granite,
}
