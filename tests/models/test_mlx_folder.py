"""MLX folders: every weight equals scale * code + bias to the bit, and unsupported folders are rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import featherback as fb
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models import Model, ModelConfig, load
from featherback.models.adapter import LoRA
from featherback.models.streams import floats_of
from tests.models.test_hf_folder import folder_and_gguf
from tests.support.mlx_folder import mlx_folder, mlx_values
from tests.support.tiers import some
from tests.support.tiny_models import TINY_GEMMA2, TINY_PHI3, TINY_QWEN2, tiny

QWEN = tiny(TINY_QWEN2, hidden_size=128, intermediate_size=384, head_dim=32)
TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60]

Tensors = dict[str, NDArray[Any]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("featherback.models.streams.VALUES", 96 * 5)  # a few rows at a time
    return tmp_path / "cache" / "weights"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return folder_and_gguf(tmp_path, QWEN)[0]


def stored_types(model: Model) -> dict[str, TensorType]:
    return {name: info.type for name, info in model.store.tensors.items()}


def assert_holds(model: Model, values: dict[str, NDArray[np.float32]]) -> None:
    """Every matrix of the model has these values, to the bit."""
    seen = 0
    for layer in range(model.config.num_hidden_layers):
        for part, matrix in model.layer(layer).matrices.items():
            expected = values[model.naming.tensors[part].format(layer)]
            assert np.array_equal(floats_of(matrix).view(np.uint32), expected.view(np.uint32)), part
            seen += 1
    assert seen >= 2 * model.config.num_hidden_layers
    top = {"embed_tokens": model.embed_tokens, "lm_head": model.head.weight}
    for part, matrix in top.items():
        if (name := model.naming.tensors[part]) in values:
            assert np.array_equal(floats_of(matrix).view(np.uint32), values[name].view(np.uint32)), part


@pytest.mark.parametrize("number", ["bf16", "f32"])
def test_what_would_be_converted_is_foreseen(tmp_path: Path, source: Path, cache: Path, number: str) -> None:
    """Opening without conversion gives types, shapes and the unconverted tensors, and makes no file in the cache."""
    mlx_folder(source, tmp_path / "mlx", 4, 64, number)
    foreseen = load(tmp_path / "mlx", without_converting=True)
    assert not cache.exists()
    model = load(tmp_path / "mlx")
    assert cache.exists()
    assert stored_types(foreseen) == stored_types(model)
    for part, matrix in model.layer(1).matrices.items():
        assert foreseen.layer(1).matrices[part].shape == matrix.shape
    for part, vector in model.layer(1).vectors.items():
        assert np.array_equal(foreseen.layer(1).vectors[part], vector)


@pytest.mark.parametrize("number", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_every_weight_is_scale_times_code_plus_bias(
    tmp_path: Path, source: Path, bits: int, size: int, number: str
) -> None:
    mlx_folder(source, tmp_path / "mlx", bits, size, number)
    values = mlx_values(tmp_path / "mlx")
    model = load(tmp_path / "mlx")
    if number == "f32":  # one rounding or two, as the instruction set has it
        for part, matrix in model.layer(0).matrices.items():
            expected = values[model.naming.tensors[part].format(0)]
            np.testing.assert_allclose(floats_of(matrix), expected, rtol=0, atol=float(abs(expected).max()) * 2**-23)
    else:
        assert_holds(model, values)
    kind = TensorType.Q4_1 if bits == 4 and number != "f32" else TensorType.AFFINE8
    matrices = {name for name in values if values[name].ndim == 2}
    assert {kind for name, kind in stored_types(model).items() if name in matrices} == {kind}
    for name in ("q_bias", "input_layernorm"):
        expected = values[model.naming.tensors[name].format(1)]
        assert np.array_equal(model.layer(1).vectors[name], expected)


@pytest.mark.parametrize("config", [TINY_PHI3, TINY_GEMMA2], ids=["phi3", "gemma2"])
def test_other_families(tmp_path: Path, config: ModelConfig) -> None:
    hf, _ = folder_and_gguf(tmp_path, config)
    mlx_folder(hf, tmp_path / "mlx", 4, 32)
    values = mlx_values(tmp_path / "mlx")
    assert_holds(load(tmp_path / "mlx"), values)


def test_modules_of_their_own(tmp_path: Path, source: Path) -> None:
    """One kind of module has other bits, another has other group sizes, and some are not quantised."""

    def modules(name: str) -> dict[str, int] | bool:
        if name.endswith("down_proj"):
            return {"group_size": 128, "bits": 8}
        if name.endswith("embed_tokens"):
            return {"group_size": 32, "bits": 4}
        return not name.endswith("v_proj")

    mlx_folder(source, tmp_path / "mlx", modules=modules)
    values = mlx_values(tmp_path / "mlx")
    model = load(tmp_path / "mlx")
    assert_holds(model, values)
    types = {part: matrix.type for part, matrix in model.layer(1).matrices.items()}
    assert types["down_proj"] is TensorType.AFFINE8
    assert types["v_proj"] is TensorType.BF16
    assert types["q_proj"] is TensorType.Q4_1


def test_a_scale_that_no_code_uses_does_not_matter(tmp_path: Path, source: Path) -> None:
    """Rows of zeros (embeddings of unused tokens) have a scale of 1e-7, which float16 cannot represent."""
    name = "model.embed_tokens"

    def change(tensors: Tensors) -> None:
        tensors[f"{name}.weight"][7] = 0
        tensors[f"{name}.scales"][7] = [1e-7, -1e-7]
        tensors[f"{name}.biases"][7] = [0, -0.0]

    mlx_folder(source, tmp_path / "mlx", change=change)
    values = mlx_values(tmp_path / "mlx")
    model = load(tmp_path / "mlx")
    assert model.embed_tokens.type is TensorType.Q4_1
    assert_holds(model, values)


@pytest.mark.parametrize(
    ("part", "number"), some([("scales", 3e-7), ("biases", -7e4), ("scales", 1e5), ("biases", 1e-9)], 2)
)
def test_numbers_that_float16_lacks_are_kept(tmp_path: Path, source: Path, part: str, number: float) -> None:
    def change(tensors: Tensors) -> None:
        tensors[f"model.layers.1.mlp.up_proj.{part}"][383, 1] = number

    mlx_folder(source, tmp_path / "mlx", change=change)
    values = mlx_values(tmp_path / "mlx")
    model = load(tmp_path / "mlx")
    types = {part: matrix.type for part, matrix in model.layer(1).matrices.items()}
    assert types.pop("up_proj") is TensorType.AFFINE8
    assert set(types.values()) == {TensorType.Q4_1}
    assert_holds(model, values)


def test_it_trains_as_the_same_floats_do(tmp_path: Path, source: Path) -> None:
    """A folder with the dequantised values is the same model, and gives the same gradients."""
    from safetensors.numpy import load_file, save_file

    mlx_folder(source, tmp_path / "mlx", number="f16")
    values = mlx_values(tmp_path / "mlx")
    dense = load_file(source / "model.safetensors")
    assert dense.keys() == values.keys()
    save_file(values, source / "model.safetensors", {"format": "pt"})
    gradients = []
    for folder in (tmp_path / "mlx", source):
        model = load(folder)
        gradients.append(fb.gradients(model, LoRA(model, rank=2, alpha=4, seed=1), TOKENS)[1])
    for name, ours in gradients[0].items():
        np.testing.assert_allclose(ours, gradients[1][name], rtol=0, atol=1e-5 * float(abs(ours).max()) + 1e-12)


def test_an_adapter_names_the_folder_and_not_the_cache(tmp_path: Path, source: Path) -> None:
    mlx_folder(source, tmp_path / "mlx")
    run = fb.train(tmp_path / "mlx", [TOKENS] * 4, tmp_path / "run", steps=2, seq_len=16, rank=2, progress=False)
    configuration = json.loads((run.path / "adapter_config.json").read_text())
    assert configuration["base_model_name_or_path"] == str(tmp_path / "mlx")
    assert run.model.path == tmp_path / "mlx"


def test_the_private_type_is_read_from_the_cache_alone(tmp_path: Path, source: Path, cache: Path) -> None:
    mlx_folder(source, tmp_path / "mlx", bits=8)
    load(tmp_path / "mlx")
    (file,) = cache.glob("*.gguf")
    with pytest.raises(FeatherbackError, match=r"of type 'featherback weights', not a model"):
        load(file)
    data = bytearray(file.read_bytes())
    at = data.index(b"featherback weights")
    data[at : at + 11] = b"Featherback"
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(FeatherbackError, match=r"has the type with ggml id \d+, which is not supported") as caught:
        GGUFFile(tmp_path / "other.gguf")
    assert "AFFINE8" not in str(caught.value)


def _drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[f"model.layers.0.mlp.up_proj.{name}"]

    return change


def _cut(name: str, *where: Any) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        full = f"model.layers.0.mlp.up_proj.{name}"
        tensors[full] = tensors[full][where]

    return change


def _infinite(tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.up_proj.biases"][5, 1] = np.inf


def _floats(tensors: Tensors) -> None:
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].astype(np.float32)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_drop("scales"), r"up_proj\.weight of .* is packed, but its model\.layers\.0\.mlp\.up_proj\.scales is"),
        (_drop("biases"), r"up_proj\.weight of .* has scales but no .*up_proj\.biases"),
        (_drop("weight"), r"up_proj\.weight \(384, 128\) is missing"),
        (_cut("weight", 0), r"up_proj\.weight of .* has shape \(16,\); a packed matrix has two dimensions"),
        (_cut("weight", slice(9)), r"up_proj\.scales of .* has shape \(384, 2\); 9 rows .* need \(9, 2\)"),
        (_cut("biases", slice(None), slice(1)), r"up_proj\.biases of .* has shape \(384, 1\); .* need \(384, 2\)"),
        (_cut("weight", slice(None), slice(9)), r"rows of 72 weights of 4 bits; that is not a multiple of .* 64\."),
        (_infinite, r"up_proj\.biases of .* holds a value that is not finite"),
        (_floats, r"up_proj\.weight of .* must have the type U32, and its scales and biases must be floats"),
    ],
)
def test_damaged_folders(
    tmp_path: Path, source: Path, cache: Path, change: Callable[[Tensors], None], told: str
) -> None:
    mlx_folder(source, tmp_path / "mlx", change=change)
    with pytest.raises(FeatherbackError, match=told):
        load(tmp_path / "mlx")
    assert not list(cache.glob("*.gguf"))
    assert not list(cache.glob("*.tmp"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"bits": 3}, r"The bits under quantization in .*config\.json is 3; supported: 4, 8\."),
        ({"bits": 2}, r"bits .* is 2; supported: 4, 8"),
        ({"bits": 6}, r"bits .* is 6; supported: 4, 8"),
        ({"bits": None}, r"bits .* is None; supported"),
        ({"bits": [4]}, r"bits .* is \[4\]; supported"),
        ({"group_size": 48}, r"group_size .* is 48; supported: 32, 64, 128"),
        ({"mode": "nvfp4"}, r"mode .* is 'nvfp4'; supported: affine, mxfp4"),
        ({"mode": "mxfp4"}, r"group_size .* is 64; supported: 32"),
        ({"model.layers.1.mlp.up_proj": {"bits": 6}}, r"bits of model\.layers\.1\.mlp\.up_proj .* is 6; supported"),
        ({"model.layers.1.mlp.up_proj": False}, r"says that model\.layers\.1\.mlp\.up_proj is not quantised, but"),
    ],
)
def test_other_quantisations_are_refused_by_name(tmp_path: Path, source: Path, said: dict[str, Any], told: str) -> None:
    mlx_folder(source, tmp_path / "mlx")
    path = tmp_path / "mlx" / "config.json"
    config = json.loads(path.read_text())
    for entry in ("quantization", "quantization_config"):
        config[entry] |= said
    path.write_text(json.dumps(config))
    with pytest.raises(FeatherbackError, match=told):
        load(tmp_path / "mlx")


def test_quantization_that_is_no_object(tmp_path: Path, source: Path) -> None:
    path = source / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization": 4}))
    with pytest.raises(FeatherbackError, match=r"entry quantization of .* is not a JSON object"):
        load(source)


def test_an_mlx_folder_is_not_quantised_again(tmp_path: Path, source: Path) -> None:
    mlx_folder(source, tmp_path / "mlx")
    with pytest.raises(FeatherbackError, match="is already quantised, by MLX; remove --quantize"):
        load(tmp_path / "mlx", "q4_0")
