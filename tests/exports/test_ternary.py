"""Adapters and merged models of converted ternary weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize

from featherback import models
from featherback.engine.formats.gguf import GGUFFile
from featherback.errors import FeatherbackError
from featherback.exports.formats import gguf as gguf_format
from featherback.exports.merged_gguf import MergedGGUF
from featherback.exports.merged_hf import MergedHF
from featherback.infer.decoder import Decoder
from featherback.models.adapter import LoRA
from tests.support import tiers
from tests.support.bitnet_files import folder_of, gguf_of
from tests.support.oracle import reference_model

TOKENS = [1, 5, 9, 2, 77, 31, 8, 60, 4, 4, 55]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))


def adapter_of(path: Path, **options: object) -> LoRA:
    adapter = LoRA(models.load(path), rank=4, alpha=12, **options)
    rng = np.random.default_rng(3)
    shapes = adapter.shapes().items()
    adapter.load_state({name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes})
    return adapter


@pytest.mark.parametrize(("architecture", "form"), tiers.some([("bitnet", "TQ2_0"), ("bitnet-b1.58", "i2_s")], 1))
def test_a_merged_file_needs_no_conversion(tmp_path: Path, architecture: str, form: str) -> None:
    """Matrices that the adapter changes are Q8_0 or finer, the others TQ2_0; no scale is left beside them."""
    _, theirs = folder_of(tmp_path / "hf", "autobitlinear")
    adapter = adapter_of(gguf_of(tmp_path / "base.gguf", theirs, architecture, form), targets="q,down")
    MergedGGUF(adapter).write(tmp_path / "merged.gguf")
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "merged.gguf").tensors}
    assert not [name for name in types if name.endswith(".scale")]
    assert {types[f"blk.{layer}.{name}.weight"] for layer in (0, 1) for name in ("attn_k", "ffn_up")} == {"TQ2_0"}
    assert {types[f"blk.{layer}.{name}.weight"] for layer in (0, 1) for name in ("attn_q", "ffn_down")} == {"Q8_0"}
    for tensor in GGUFReader(tmp_path / "merged.gguf").tensors:
        if tensor.name == "blk.1.attn_k.weight":
            values = dequantize(tensor.data, tensor.tensor_type)
            expected = theirs.get_parameter("model.layers.1.self_attn.k_proj.weight").detach().numpy()
            np.testing.assert_allclose(values, expected, rtol=2**-11)
    merged = models.load(tmp_path / "merged.gguf")
    assert merged.config.architecture == architecture
    assert merged.files == {tmp_path / "merged.gguf"}
    found = Decoder(merged, compute="fp32").forward(TOKENS, every=True)
    expected = Decoder(adapter.model, adapter, compute="fp32").forward(TOKENS, every=True)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    truth = reference_model(tmp_path / "merged.gguf")

    with torch.no_grad():
        logits = truth(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(found, logits, atol=1e-5 * np.abs(logits).max())


def test_an_adapter_names_the_architecture_of_its_file(tmp_path: Path) -> None:
    _, theirs = folder_of(tmp_path / "hf", "autobitlinear")
    adapter = adapter_of(gguf_of(tmp_path / "base.gguf", theirs, "bitnet-b1.58", "i2_s"))
    gguf_format.GGUF().save(adapter, tmp_path / "adapter.gguf")
    assert GGUFFile(tmp_path / "adapter.gguf").metadata["general.architecture"] == "bitnet-b1.58"
    with gguf_format.GGUF().open(tmp_path / "adapter.gguf", adapter.model) as stored:
        assert stored.form.kind.rank == 4


def test_ternary_folders_take_no_merged_weights(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path / "hf", "online")
    with pytest.raises(FeatherbackError, match=r"its weights are ternary, and merged weights are not. Export the"):
        MergedHF(adapter_of(folder))
