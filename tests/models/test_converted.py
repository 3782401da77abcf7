"""A model of transformers as a folder, and as the GGUF file that llama.cpp's converter makes of it, are the same model.

The file is written here with the `gguf` package's names and keys, in the converter's way, by nothing of Featherback:
Gemma's norms as 1 + w, rows of some families' q and k in another order.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from featherback.infer.decoder import Decoder
from featherback.models import load
from tests.support.families import FAMILIES
from tests.support.families.bitnet import earlier
from tests.support.families.converter import CONTEXT, ORIGINAL
from tests.support.tiers import some

TOLERANCE = 1e-4  # of the largest logit
PERMUTED = {name for name, family in FAMILIES.items() if family.model.rope_interleaved}
"""Rows of q and k are stored in the order in which a rotated pair is adjacent."""
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
pytestmark = pytest.mark.usefixtures("own_cache")
CASES = {case: architecture for architecture, family in FAMILIES.items() for case in family.hf}


@pytest.mark.parametrize("case", some(CASES, 10))
def test_file_and_folder_are_one_model(tmp_path: Path, case: str) -> None:
    torch.manual_seed(0)
    architecture, family = CASES[case], FAMILIES[CASES[case]]
    entries = {"model_type": family.hf_type or architecture, **SIZES, **family.hf[case]}
    entries = json.loads(json.dumps(entries))  # transformers changes the mappings that it is given
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**entries), attn_implementation="eager").eval()
    with torch.no_grad():  # norms begin as ones, or as zeros that stand for ones
        for name, weights in theirs.named_parameters():
            if "norm" in name:
                weights.add_(0.3 * torch.randn_like(weights))
    theirs.save_pretrained(tmp_path / "hf")
    convert(theirs, tmp_path / "a.gguf", architecture)
    tokens = np.random.default_rng(0).integers(0, 50, max(LENGTHS)).tolist()
    for path in (tmp_path / "hf", tmp_path / "a.gguf"):
        model = load(path)
        for length in LENGTHS:
            found = Decoder(model, compute="fp32").forward(tokens[:length], every=True)
            with torch.no_grad():
                expected = theirs(torch.tensor([tokens[:length]])).logits[0].numpy()
            np.testing.assert_allclose(found, expected, atol=TOLERANCE * np.abs(expected).max(), err_msg=path.name)


def convert(model: PreTrainedModel, path: Path, architecture: str) -> None:
    """What llama.cpp's converter writes of the model itself."""
    c, writer = model.config, gguf.GGUFWriter(path, architecture)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    if getattr(c, "intermediate_size", None) is not None:
        writer.add_feed_forward_length(c.intermediate_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    eps = next((getattr(c, name) for name in ("norm_eps", "rms_norm_eps") if hasattr(c, name)), None)
    if eps is not None:  # a LayerNorm has another key
        writer.add_layer_norm_rms_eps(eps)
    FAMILIES[architecture].converted(writer, c)
    (kind,) = (kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, c.num_hidden_layers)
    heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
    for name, tensor in FAMILIES[architecture].separate(model.state_dict(), c).items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        array, part = tensor.numpy(), name.rsplit(".", 2)[-2]
        if FAMILIES[architecture].written is not None:
            name, array = FAMILIES[architecture].written(name, array, c)
        if architecture in PERMUTED and part in heads:
            array = _permuted(array, heads[part])
        if architecture.startswith("gemma") and part.endswith("norm"):
            array = array + np.float32(1)
        if part == "conv":
            array = array.squeeze(1)
        found = names.get_name(earlier(name), (".weight", ".bias"))
        bare = (".experts." in name or name.endswith(".sinks")) and not found.endswith((".weight", ".bias"))
        writer.add_tensor(f"{found}.weight" if bare else found, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _permuted(array: np.ndarray, heads: int) -> np.ndarray:
    halves = array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
