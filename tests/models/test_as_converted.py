"""GGUF files as llama.cpp's converter writes them: tensors named by the `gguf` package, keys by its writer's methods.

What `convert_hf_to_gguf.py` does beyond names is done here anew: Gemma's norms are stored as 1 + w, and rows of
Granite's q and k in the order in which a rotated pair is adjacent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.support.oracle import reference_model
from tests.support.tiny_models import TINY_GEMMA2, TINY_GEMMA3, TINY_GRANITE, TINY_OLMO2, tiny, write_tiny
from transformers import PreTrainedConfig, PreTrainedModel

from featherback.inference.decoder import Decoder
from featherback.models import ModelConfig, load

TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60, 18]


def add_gemma2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def add_gemma3(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_parameters["full_attention"]["factor"])
    writer.add_sliding_window(config.sliding_window)


def add_olmo2(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def add_granite(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


Add = Callable[[gguf.GGUFWriter, PreTrainedConfig], None]
CASES: dict[str, tuple[ModelConfig, Add]] = {
    # Its file says nothing of the scale, nor of the rotary base.
    "gemma2": (tiny(TINY_GEMMA2, attention_scale=float(np.float32(32**-0.5))), add_gemma2),
    # Nor of caps, of local layers or of their base.
    "gemma3": (
        tiny(
            TINY_GEMMA3,
            attention_scale=float(np.float32(32**-0.5)),
            local_theta=10_000.0,
            attention_softcap=0.0,
            final_softcap=0.0,
        ),
        add_gemma3,
    ),
    "olmo2": (TINY_OLMO2, add_olmo2),
    "granite": (TINY_GRANITE, add_granite),
}


def converted(model: PreTrainedModel, architecture: str, add: Add, path: Path) -> Path:
    """The model as llama.cpp's converter writes it."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    add(writer, config)
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array, part = tensor.numpy(), name.split(".")[-2]
        if architecture.startswith("gemma") and part.endswith("norm"):
            array = array + np.float32(1)
        if architecture == "granite" and part in heads:
            halves = array.reshape(heads[part], 2, -1, array.shape[1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        stored = names.get_name(name, try_suffixes=(".weight",))
        assert stored is not None, name
        writer.add_tensor(stored, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_converted_file_is_the_model_in_the_folder(tmp_path: Path, case: str) -> None:
    config, add = CASES[case]
    theirs = reference_model(write_tiny(tmp_path / "ours.gguf", config))
    theirs.save_pretrained(tmp_path / "folder")
    with torch.no_grad():
        expected = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    for path in (tmp_path / "folder", converted(theirs, case, add, tmp_path / "theirs.gguf")):
        found = Decoder(load(path), compute="fp32").forward(TOKENS, every=True)
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max(), err_msg=path.name)
