"""Adapters of experts and routers in every format, both ways, and merged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from peft import PeftModel
from safetensors.numpy import load_file, save_file

from featherback import models
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import gguf, mlx, peft
from featherback.exports.merged_gguf import MergedGGUF
from featherback.infer.decoder import Decoder
from featherback.models.adapter import Adapter, LoRA, Pair
from featherback.models.model import Model
from tests.exports.test_peft import TOKENS
from tests.support.expert_adapters import peft_of, random_values
from tests.support.families import cases
from tests.support.oracle import reference_model
from tests.support.tiers import some
from tests.support.tiny_models import write_tiny

EVERYTHING = "all,experts,router"
NAMES = (
    "gpt-oss", "granitemoe", "lfm2moe", "mixtral", "olmoe", "qwen2moe", "qwen3moe", "qwen3moe-untied-fused-all-used",
)  # fmt: skip


def opened(tmp_path: Path, name: str) -> tuple[Path, Model]:
    config, types = cases()[name]
    path = write_tiny(tmp_path / "m.gguf", config, types)
    return path, models.load(path)


def ours(model: Model, adapter: Adapter | None) -> np.ndarray:
    decoder = Decoder(model, adapter, compute="fp32")
    logits = decoder.forward(TOKENS, every=True)
    decoder.close()
    return logits


def theirs_of(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([TOKENS])).logits[0].numpy()


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_peft_opens_what_we_save_and_we_open_what_peft_saves(tmp_path: Path, name: str) -> None:
    path, model = opened(tmp_path, name)
    adapter = random_values(model, EVERYTHING, 3)
    peft.FORMAT.save(adapter, tmp_path / "ours")
    reference = reference_model(path)
    base = theirs_of(reference)
    both = PeftModel.from_pretrained(reference, str(tmp_path / "ours")).eval()
    logits = theirs_of(both)
    np.testing.assert_allclose(ours(model, adapter), logits, atol=1e-3)
    assert np.abs(logits - base).max() > 0.1
    both.save_pretrained(str(tmp_path / "theirs"))
    for saved in ("ours", "theirs"):
        again = formats.load(model, tmp_path / saved)
        assert again.form == adapter.form
        assert all(np.array_equal(values, again.state()[each]) for each, values in adapter.state().items())


def test_an_adapter_that_peft_made(tmp_path: Path) -> None:
    """PEFT's pair of gate_up has no zeros: gate and up then have the same A, of the whole rank."""
    path, model = opened(tmp_path, "qwen3moe")
    reference = reference_model(path)
    state = random_values(model, "q,experts", 4).state()
    own = peft_of(reference, state)
    rng = np.random.default_rng(1)
    with torch.no_grad():
        for each, parameter in own.named_parameters():
            if parameter.requires_grad and "lora_B" in each:
                parameter.copy_(torch.from_numpy((0.2 * rng.standard_normal(parameter.shape)).astype(np.float32)))
    own.save_pretrained(str(tmp_path / "theirs"))
    adapter = formats.load(model, tmp_path / "theirs")
    np.testing.assert_allclose(ours(model, adapter), theirs_of(own), atol=1e-3)
    gate, down = (adapter.form.at(0, target) for target in ("gate_exps", "down_exps"))
    assert gate is not None
    assert down is not None
    assert (gate.width, down.width) == (8, 4)
    for to, save in (("again", peft.FORMAT.save), ("adapter.gguf", gguf.FORMAT.save), ("mlx", mlx.FORMAT.save)):
        save(adapter, tmp_path / to)  # type: ignore[operator]
        again = formats.load(model, tmp_path / to)
        np.testing.assert_allclose(ours(model, again), ours(model, adapter), atol=1e-4)


@pytest.mark.parametrize("targets", some(["gate_exps,k", "router", "down_exps", "experts"], 2))
@pytest.mark.parametrize("layers", ["all", "1"])
def test_some_targets_and_layers(tmp_path: Path, targets: str, layers: str) -> None:
    for name in ("qwen3moe", "lfm2moe"):
        path, model = opened(tmp_path, name)
        adapter = random_values(model, targets, 3, layers="1" if layers == "1" and name == "qwen3moe" else "all")
        peft.FORMAT.save(adapter, tmp_path / name)
        both = PeftModel.from_pretrained(reference_model(path), str(tmp_path / name)).eval()
        np.testing.assert_allclose(ours(model, adapter), theirs_of(both), atol=1e-3)
        again = formats.load(model, tmp_path / name)
        np.testing.assert_allclose(ours(model, again), ours(model, adapter), atol=1e-5)


def test_ranks_and_scales_that_differ(tmp_path: Path) -> None:
    path, model = opened(tmp_path, "qwen3moe")
    others = {(1, "gate_exps"): Pair(5, 3.0), (0, "down_exps"): Pair(2, 7.0), (1, "router"): Pair(6, 9.0)}
    adapter, rng = LoRA(model, 3, targets=EVERYTHING, exceptions=others), np.random.default_rng(0)
    adapter.load_state(
        {each: (0.2 * rng.standard_normal(shape)).astype(np.float32) for each, shape in adapter.shapes().items()}
    )
    peft.FORMAT.save(adapter, tmp_path / "ours")
    both = PeftModel.from_pretrained(reference_model(path), str(tmp_path / "ours")).eval()
    np.testing.assert_allclose(ours(model, adapter), theirs_of(both), atol=1e-3)
    for to, save in (("ours", peft.FORMAT.save), ("adapter.gguf", gguf.FORMAT.save), ("mlx", mlx.FORMAT.save)):
        save(adapter, tmp_path / to)  # type: ignore[operator]
        np.testing.assert_allclose(ours(model, formats.load(model, tmp_path / to)), ours(model, adapter), atol=1e-4)


@pytest.mark.parametrize("name", some(NAMES, 4))
def test_gguf_and_mlx(tmp_path: Path, name: str) -> None:
    _, model = opened(tmp_path, name)
    adapter = random_values(model, EVERYTHING, 3)
    gguf.FORMAT.save(adapter, tmp_path / "adapter.gguf")
    stored = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "adapter.gguf").tensors}
    layer = len(model.blocks) - 1
    experts, rows, inputs = model.blocks[layer].shape("down_exps")
    a, b = (stored[f"blk.{layer}.ffn_down_exps.weight.lora_{part}"] for part in "ab")
    assert list(a.shape) == [inputs, 3, experts]
    assert list(b.shape) == [3, rows, experts]
    found = [formats.load(model, tmp_path / "adapter.gguf")]
    if "fused" in name:
        with pytest.raises(FeatherbackError, match="keeps gate and up of experts apart"):
            mlx.FORMAT.save(adapter, tmp_path / "mlx")
    else:
        mlx.FORMAT.save(adapter, tmp_path / "mlx")
        found.append(formats.load(model, tmp_path / "mlx"))
        tensors = load_file(tmp_path / "mlx" / mlx.WEIGHTS_FILE)
        place = {"gpt-oss": "mlp.experts", "qwen3moe": "mlp.switch_mlp", "mixtral": "block_sparse_moe.switch_mlp"}
        if name in place:
            name = f"model.layers.{layer}.{place[name]}.down_proj"
            assert tensors[f"{name}.lora_a"].shape == (experts, 3, inputs)
            assert tensors[f"{name}.lora_b"].shape == (experts, rows, 3)
    for again in found:
        assert again.form == adapter.form
        assert all(np.array_equal(values, again.state()[each]) for each, values in adapter.state().items())


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "qwen3moe-untied-fused-all-used"])
def test_merging(tmp_path: Path, name: str) -> None:
    _, model = opened(tmp_path, name)
    adapter = random_values(model, EVERYTHING, 3)
    MergedGGUF(adapter, TensorType.F32).write(tmp_path / "merged.gguf")
    merged = models.load(tmp_path / "merged.gguf")
    np.testing.assert_allclose(ours(merged, None), ours(model, adapter), atol=2e-4)
    assert np.abs(ours(merged, None) - ours(model, None)).max() > 0.1


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    _, model = opened(tmp_path, "qwen3moe")
    folder = tmp_path / "ours"
    peft.FORMAT.save(random_values(model, EVERYTHING, 3), folder)
    tensors, entries = load_file(folder / peft.WEIGHTS_FILE), json.loads((folder / peft.CONFIG_FILE).read_text())
    down = "base_model.model.model.layers.1.mlp.experts.lora_A.weight"

    def error(change: dict[str, object], **replaced: np.ndarray | None) -> str:
        kept = {name: replaced.get("down", values) if name == down else values for name, values in tensors.items()}
        save_file({name: values for name, values in kept.items() if values is not None}, folder / peft.WEIGHTS_FILE)
        (folder / peft.CONFIG_FILE).write_text(json.dumps(entries | change))
        with pytest.raises(FeatherbackError) as caught:
            formats.load(model, folder)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "layers.1.mlp.experts.lora_A.weight is missing" in error({}, down=None)
    assert f"{down} has shape (20, 256), not (21, 256)" in error({}, down=np.zeros((20, 256), np.float32))
    assert "target_parameters 'mlp.experts.w13'" in error({"target_parameters": ["mlp.experts.w13"]})
    assert "it must be a list of names" in error({"target_parameters": "experts"})
    assert "it adapts" in error({"target_parameters": ["mlp.experts.gate_up_proj"]})
    assert "target_parameters, which Featherback does not support for DoRA" in error({"use_dora": True})
