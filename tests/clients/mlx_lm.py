"""The real mlx-lm reads what we export, and we read what it writes: `make test-mlx`. Not part of the suite.

Everything is float32 on both sides, on MLX's CPU device: nothing is rounded but sums, in another order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_adapters, load_model, quantize_model, save_config, save_model

import featherback as fb
from featherback import models
from featherback.exports import FORMATS, formats
from featherback.exports.formats.base import Request
from featherback.infer.decoder import Decoder
from featherback.models.adapter import LoRA, Pair
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.experts import ExpertsConfig
from featherback.models.streams import floats_of
from tests.models.test_experts_folder import as_published
from tests.models.test_hf_folder import folder_and_gguf
from tests.support.families import of_peer
from tests.support.families.llama import TINY_MIXTRAL
from tests.support.tiny_models import TINY_LLAMA, llama3, tiny

CASES = of_peer(lambda family: family.mlx) | {
    "llama3-rope": tiny(TINY_LLAMA, rope_scaling=llama3(TINY_LLAMA)),
    "mixtral": TINY_MIXTRAL,
}
ROUTED = {name: config for name, config in CASES.items() if isinstance(config, ExpertsConfig)}
TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60, 3, 17]
UNUSUAL = {(0, "o_proj"): Pair(2, 6.0), (1, "down_proj"): Pair(7, 12.0), (0, "down_proj"): None}
BOUND = 2e-4  # of the largest logit
WIDE = {"hidden_size": 128, "intermediate_size": 384, "head_dim": 32}  # rows of whole groups


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))


def _folder(tmp_path: Path, config: ModelConfig) -> Path:
    """A Hugging Face folder whose configuration has the names that released models have, and mlx-lm reads."""
    folder, _ = folder_and_gguf(tmp_path, config)
    file = folder / "config.json"
    entries = json.loads(file.read_text())
    if entries["model_type"].startswith("qwen3_5"):
        return _with_images(folder, entries)
    if entries["model_type"] == "lfm2":
        entries["block_dim"] = entries["hidden_size"]
    rope = entries.pop("rope_parameters")
    if "full_attention" in rope:  # Gemma 3
        entries["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        entries["sliding_window_pattern"] = entries.pop("_sliding_window_pattern")
        rope = rope["full_attention"]
    entries["rope_theta"] = rope.pop("rope_theta")
    if entries["model_type"] == "qwen3_next":
        entries["partial_rotary_factor"] = rope["partial_rotary_factor"]
        entries["full_attention_interval"] = entries["layer_types"].index("full_attention") + 1
    if entries["model_type"] == "qwen3_moe":
        entries["num_experts"] = entries.pop("num_local_experts")
    if entries["model_type"] == "granitemoeshared":
        entries["model_type"] = "granitemoe"
    if rope["rope_type"] != "default":
        entries["rope_scaling"] = rope
    file.write_text(json.dumps(entries))
    return folder


def _with_images(folder: Path, entries: dict[str, Any]) -> Path:
    """The folder as Qwen 3.5 is released: the text model is a part of one that also reads images."""
    tied = entries["tie_word_embeddings"]
    entries["full_attention_interval"] = entries["layer_types"].index("full_attention") + 1
    kind = entries["model_type"].removesuffix("_text")
    config = {"model_type": kind, "text_config": entries, "tie_word_embeddings": tied}
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    tensors = {name.replace("model.", "model.language_model.", 1): array for name, array in mx.load(str(file)).items()}
    tensors = _joined(tensors)
    mx.eval(tensors)
    mx.save_safetensors(str(file), tensors, {"format": "pt"})
    return folder


def _joined(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """The tensors with stacks of all experts in place of each expert's matrices, as Qwen 3.5 is released."""
    found = {name: array for name, array in tensors.items() if ".experts." not in name}
    for stem in {name.partition(".experts.")[0] for name in tensors if ".experts." in name}:
        count = sum(name.startswith(f"{stem}.experts.") for name in tensors) // 3
        gate, up, down = (
            mx.stack([tensors[f"{stem}.experts.{number}.{part}_proj.weight"] for number in range(count)])
            for part in ("gate", "up", "down")
        )
        found |= {f"{stem}.experts.gate_up_proj": mx.concatenate([gate, up], axis=1), f"{stem}.experts.down_proj": down}
    return found


def _their_model(folder: Path, adapter: Path | None = None) -> nn.Module:
    model, _ = load_model(folder)
    if adapter is not None:
        load_adapters(model, str(adapter))
    return model


def _their_logits(model: nn.Module, tokens: Sequence[int] = TOKENS) -> np.ndarray:
    return np.array(model(mx.array([tokens]))[0])


def _our_logits(model: fb.Model, adapter: LoRA | None) -> np.ndarray:
    return Decoder(model, adapter, compute="fp32").forward(TOKENS, every=True)


def _filled(model: fb.Model, unusual: bool) -> LoRA:
    adapter = LoRA(model, 4, 12, rslora=unusual, exceptions=UNUSUAL if unusual else {})
    rng = np.random.default_rng(3)
    adapter.load_state(
        {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in adapter.shapes().items()}
    )
    return adapter


def _check(theirs: np.ndarray, ours: np.ndarray) -> None:
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=BOUND * np.abs(ours).max())


def _quantised(folder: Path, out: Path, bits: int, size: int) -> Path:
    """A folder that mlx-lm has quantised."""
    model, config = load_model(folder)
    model, config = quantize_model(model, config, size, bits)
    save_model(out, model)
    save_config(config, out / "config.json")
    return out


@pytest.mark.parametrize("unusual", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name != "gpt-oss"])  # mlx-lm reads no float experts of it
def test_our_adapters(tmp_path: Path, name: str, unusual: bool) -> None:
    """The base and the adapter; with one rank and alpha, and with several."""
    folder = _folder(tmp_path, CASES[name])
    model = models.load(folder)
    adapter = _filled(model, unusual)
    FORMATS["mlx"].write(Request(adapter, tmp_path / "adapter"))
    base, ours = _our_logits(model, None), _our_logits(model, adapter)
    _check(_their_logits(_their_model(folder)), base)
    _check(_their_logits(_their_model(folder, tmp_path / "adapter")), ours)
    assert np.abs(ours - base).max() > 8 * BOUND * np.abs(base).max(), "the adapter changed nothing"


def test_planted_faults_are_caught(tmp_path: Path) -> None:
    """A scale that is 1 % off, and factors of two projections that have changed places."""
    folder = _folder(tmp_path, TINY_LLAMA)
    model = models.load(folder)
    adapter = _filled(model, False)
    FORMATS["mlx"].write(Request(adapter, tmp_path / "adapter"))
    ours = _our_logits(model, adapter)
    file, weights = (tmp_path / "adapter" / name for name in ("adapter_config.json", "adapters.safetensors"))
    good, factors = file.read_text(), dict(mx.load(str(weights)))
    entries = json.loads(good)
    entries["lora_parameters"]["scale"] *= 1.01
    file.write_text(json.dumps(entries))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        _check(_their_logits(_their_model(folder, tmp_path / "adapter")), ours)
    file.write_text(good)
    _check(_their_logits(_their_model(folder, tmp_path / "adapter")), ours)
    k, v = (f"model.layers.0.self_attn.{name}_proj.lora_b" for name in "kv")
    factors[k], factors[v] = factors[v], factors[k]
    mx.save_safetensors(str(weights), factors)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        _check(_their_logits(_their_model(folder, tmp_path / "adapter")), ours)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "phi3"])
@pytest.mark.parametrize(("bits", "size"), [(4, 64), (4, 32), (8, 64), (8, 128)])
def test_their_quantised_bases(tmp_path: Path, name: str, bits: int, size: int) -> None:
    """A folder that mlx-lm quantised: its weights, and an adapter of ours on it in both."""
    folder = _folder(tmp_path, tiny(CASES[name], **WIDE))
    packed = _quantised(folder, tmp_path / "packed", bits, size)
    theirs, model = _their_model(packed), models.load(packed)
    parts = dict(tree_flatten(theirs.parameters()))
    for part, matrix in model.layer(1).matrices.items():
        module = model.naming.tensors[part].format(1).removesuffix(".weight")
        codes, scales, biases = (parts[f"{module}.{end}"] for end in ("weight", "scales", "biases"))
        values = np.array(mx.dequantize(codes, scales, biases, size, bits))
        np.testing.assert_allclose(floats_of(matrix), values, rtol=0, atol=float(np.abs(values).max()) * 2**-23)
    _check(_their_logits(theirs), _our_logits(model, None))
    adapter = _filled(model, False)
    FORMATS["mlx"].write(Request(adapter, tmp_path / "adapter"))
    _check(_their_logits(_their_model(packed, tmp_path / "adapter")), _our_logits(model, adapter))


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("quantization", [None, (4, 64, "affine"), (8, 32, "affine"), (4, 32, "mxfp4")], ids=str)
def test_their_bases_with_experts(tmp_path: Path, name: str, quantization: tuple[int, int, str] | None) -> None:
    """A folder that mlx-lm saved, with stacks of experts as floats, or quantised."""
    folder = _folder(tmp_path, replace(ROUTED[name], hidden_size=128, head_dim=32))
    if name == "gpt-oss":  # which is published so
        folder, _ = as_published(folder, tmp_path / "published")
    model, config = load_model(folder)
    if quantization is not None:
        bits, size, mode = quantization
        model, config = quantize_model(model, config, size, bits, mode=mode)
    save_model(tmp_path / "theirs", model)
    save_config(config, tmp_path / "theirs" / "config.json")
    found = models.load(tmp_path / "theirs")
    assert name != "gpt-oss" or found.layer(2).matrices["down_exps"].type.name == "MXFP4"
    _check(_their_logits(_their_model(tmp_path / "theirs")), _our_logits(found, None))


def test_their_adapters(tmp_path: Path) -> None:
    """What mlx-lm's trainer saves, of the last layer alone."""
    folder = _folder(tmp_path, TINY_LLAMA)
    theirs = _their_model(folder)
    parameters = {"rank": 3, "scale": 20.0, "dropout": 0.0}
    theirs.freeze()
    linear_to_lora_layers(theirs, 1, parameters)
    mx.random.seed(1)
    filled = {
        name: mx.random.normal(value.shape) * 0.05
        for name, value in tree_flatten(theirs.trainable_parameters())
        if "lora_" in name
    }
    theirs.load_weights(list(filled.items()), strict=False)
    saved = tmp_path / "adapter"
    saved.mkdir()
    mx.save_safetensors(str(saved / "adapters.safetensors"), filled)
    entries = {"fine_tune_type": "lora", "num_layers": 1, "lora_parameters": parameters}
    (saved / "adapter_config.json").write_text(json.dumps(entries))
    model = models.load(folder)
    adapter = formats.load(model, saved)
    assert len(filled) == len(adapter.state())
    base, ours = _our_logits(model, None), _our_logits(model, adapter)
    _check(_their_logits(theirs), ours)
    assert np.abs(ours - base).max() > 8 * BOUND * np.abs(base).max(), "the adapter changed nothing"
