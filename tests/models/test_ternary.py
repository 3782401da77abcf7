"""Ternary weights: I2_S, scales beside GGUF weights, and the folders of transformers, against transformers and gguf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitNetForCausalLM

from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import tensor_of_array
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.models import Model, load
from featherback.models.streams import floats_of
from tests.support.bitnet_files import folder_of, gguf_of, is_projection, stated
from tests.support.families.bitnet import TINY_BITNET
from tests.support.tiers import some
from tests.support.tiny_models import write_tiny

TOKENS = [1, 5, 9, 2, 77, 31, 8, 60, 4, 4, 55]


@pytest.fixture(autouse=True)
def without_compiler() -> Iterator[None]:
    """Run transformers' unpacking as it is written: it asks for a compiler that not every machine has."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("featherback.models.streams.VALUES", 128 * 5)  # a few rows at a time
    return tmp_path / "cache" / "weights"


def check_same(model: Model, theirs: BitNetForCausalLM, exactly: bool = True) -> None:
    for layer in range(2):
        for part, matrix in model.layer(layer).matrices.items():
            assert matrix.type is TensorType.TERNARY
            expected = theirs.get_parameter(model.naming.modules[part].format(layer)).detach().numpy()
            np.testing.assert_array_equal(floats_of(matrix), expected, err_msg=part)
    found = Decoder(model, compute="fp32").forward(TOKENS, every=True)
    with torch.no_grad():
        logits = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(found, logits, atol=1e-5 * np.abs(logits).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("kind", some(["autobitlinear", "bitlinear", "unpacked", "online"], 2))
def test_folders_of_transformers(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    folder, theirs = folder_of(tmp_path / "model", kind, dtype)
    check_same(load(folder), theirs)


@pytest.mark.parametrize("kind", ["autobitlinear", "bitlinear"])
def test_transformers_reads_the_packed_folder_as_these_weights(tmp_path: Path, kind: str) -> None:
    """Its own modules multiply by the scale, or divide by it. They round activations to eight bits: bounds are wide."""
    torch._dynamo.config.disable = True
    folder, theirs = folder_of(tmp_path / "model", kind)
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        rounded, exact = (model(torch.tensor([TOKENS])).logits[0] for model in (own, theirs))
    assert (rounded - exact).norm() < 0.1 * exact.norm()


def test_packed_rows_are_quarters_of_the_matrix(tmp_path: Path) -> None:
    """Row r + j out / 4 is in bits 2j: another order gives another model."""
    folder, theirs = folder_of(tmp_path / "model", "autobitlinear")
    with torch.no_grad():
        for name, weights in theirs.named_parameters():
            if is_projection(name):
                weights.copy_(weights.reshape(4, -1, weights.shape[1]).transpose(0, 1).reshape(weights.shape))
    with pytest.raises(AssertionError):
        check_same(load(folder), theirs)


@pytest.mark.parametrize(
    ("architecture", "form"),
    some([("bitnet-b1.58", "i2_s"), ("bitnet", "TQ2_0"), ("bitnet", "F16"), ("bitnet", "i2_s")], 3),
)
def test_gguf_files(tmp_path: Path, cache: Path, architecture: str, form: str) -> None:
    _, theirs = folder_of(tmp_path / "model", "autobitlinear")
    path = gguf_of(tmp_path / "model.gguf", theirs, architecture, form)
    model = load(path)
    check_same(model, theirs)
    assert (model.path, model.source, model.config.architecture) == (path, "gguf", architecture)
    planned = load(path, without_converting=True)
    assert planned.layer(0).matrices["q_proj"].type is TensorType.TERNARY
    assert len(list(cache.glob("*-ternary.gguf"))) == 1


def test_what_is_rejected(tmp_path: Path) -> None:
    folder, theirs = folder_of(tmp_path / "model", "autobitlinear")
    whole = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj"

    def changed(message: str, **tensors: torch.Tensor | None) -> None:
        found = whole | {name + key: value for key, value in tensors.items()}
        save_file({key: value for key, value in found.items() if value is not None}, folder / "model.safetensors")
        with pytest.raises(FeatherbackError, match=message):
            load(folder)

    changed("has no tensor .*down_proj.weight_scale, the scale", **{".weight_scale": None})
    changed("The scale .*weight_scale .* must be one finite number, not 0", **{".weight_scale": torch.zeros(1)})
    changed("must be one finite number", **{".weight_scale": torch.ones(2)})
    changed("must be one finite number", **{".weight_scale": torch.tensor([float("nan")])})
    changed("holds the code 3", **{".weight": torch.full((64, 512), 255, dtype=torch.uint8)})
    changed("has shape", **{".weight": torch.zeros((63, 512), dtype=torch.uint8)})
    changed("bytes that are not a matrix of ternary weights", **{".weight": torch.zeros((64, 510), dtype=torch.uint8)})
    changed("holds weights other than -1, 0 and 1", **{".weight": torch.full((256, 512), 0.5)})
    save_file(whole, folder / "model.safetensors")
    for entry, value in (
        ("linear_class", "other"), ("quantization_mode", "late"), ("use_rms_norm", True),
        ("modules_to_not_convert", ["q_proj"]),
    ):  # fmt: skip
        stated(folder, **{entry: value})
        with pytest.raises(FeatherbackError, match=f"The {entry} under quantization_config in .* supported: "):
            load(folder)
    stated(folder, linear_class="autobitlinear", quantization_mode="online")
    with pytest.raises(FeatherbackError, match="has the type 'U8', which is not supported there"):
        load(folder)
    with pytest.raises(FeatherbackError, match="is already quantised, as a BitNet; remove --quantize"):
        load(folder, "q4_0")

    path = gguf_of(tmp_path / "i2s.gguf", theirs, "bitnet-b1.58", "i2_s")
    file, data = GGUFFile(path), bytearray(path.read_bytes())
    info = file.tensors["blk.0.attn_q.weight"]
    file.close()
    for at, wrong, message in (
        (info.offset + 5000, b"\xff", "holds the code 3, which no ternary weight has"),
        (info.offset + 256 * 64, b"\0\0\0\0", "The scale of blk.0.attn_q.weight .* must be one finite number"),
    ):
        damaged = bytearray(data)
        damaged[at : at + len(wrong)] = wrong
        path.write_bytes(damaged)
        with pytest.raises(FeatherbackError, match=message):
            load(path)
    path.write_bytes(data[:-30])
    with pytest.raises(FeatherbackError, match="is truncated"):
        load(path)
    extra = (tensor_of_array("blk.0.attn_q.scale", np.ones(1, np.float32)),)
    scaled = write_tiny(tmp_path / "scaled.gguf", TINY_BITNET, TensorType.Q8_0, extra=extra)
    with pytest.raises(FeatherbackError, match="has a scale, but its weights are not ternary"):
        load(scaled)
    other = write_tiny(tmp_path / "act.gguf", TINY_BITNET, metadata={"bitnet.hidden_act": "relu"})
    with pytest.raises(FeatherbackError, match="activation is 'relu'; supported: relu2, silu"):
        load(other)
