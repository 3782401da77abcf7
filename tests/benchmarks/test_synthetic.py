from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from benchmarks.synthetic import CONFIGS, write_synthetic
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models import load
from tests.support.oracle import random_adapter, reference, reference_model

SMALL = {"num_hidden_layers": 2, "vocab_size": 1000}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_shapes_are_those_of_the_real_model(tmp_path: Path, name: str) -> None:
    model = load(write_synthetic(tmp_path / "a.gguf", name, num_hidden_layers=1, vocab_size=100))
    for field, value in vars(CONFIGS[name]).items():
        if isinstance(value, tuple):
            assert getattr(model.config, field) == value[:1], field
        elif field not in ("num_hidden_layers", "vocab_size"):
            stored_as = np.float32(value) if isinstance(value, float) else value
            assert getattr(model.config, field) == stored_as, field
    types = {name: matrix.type for name, matrix in model.layer(0).matrices.items()}
    assert types.pop("router", TensorType.F32) == TensorType.F32  # as llama.cpp stores it
    assert set(types.values()) == {TensorType.Q4_0}
    assert np.array_equal(model.head.norm, np.ones(model.config.hidden_size))


def test_the_published_sizes() -> None:
    parameters = {name: _parameters(name) / 1e9 for name in CONFIGS if "3.5" not in name}  # whose text part is no file
    assert parameters == pytest.approx(
        {
            "qwen2.5-0.5b": 0.494,
            "qwen2.5-1.5b": 1.544,
            "qwen2.5-3b": 3.086,
            "qwen2.5-7b": 7.616,
            "qwen2.5-14b": 14.77,
            "qwen2.5-32b": 32.76,
            "qwen2.5-72b": 72.71,
            "qwen3-30b-a3b": 30.53,
            "olmoe-1b-7b": 6.919,
            "smollm2-135m": 0.1345,
            "gpt2-small-shape": 0.1237,
            "bitnet-2b": 2.413,
        },
        rel=1e-3,
    )


def _parameters(name: str) -> int:
    from featherback.models.layout import layer_shapes, top_shapes

    config = CONFIGS[name]
    layers = sum(int(np.prod(shape)) for shape in layer_shapes(config)[0].values()) * config.num_hidden_layers
    return layers + sum(int(np.prod(shape)) for shape in top_shapes(config).values())


def test_weights_are_small_and_layers_differ(tmp_path: Path) -> None:
    path = write_synthetic(tmp_path / "a.gguf", "qwen2.5-0.5b", TensorType.Q4_0, **SMALL)
    matrices = {t.name: dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors if len(t.shape) == 2}
    for name, weights in matrices.items():
        assert weights.std() == pytest.approx(0.02, rel=0.05), name
        assert abs(weights.mean()) < 0.001, name
        assert len(np.unique(weights, axis=0)) == len(weights), name
    assert not np.array_equal(matrices["blk.0.ffn_up.weight"], matrices["blk.1.ffn_up.weight"])


def test_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    first, second, other = (
        write_synthetic(tmp_path / f"{i}.gguf", "smollm2-135m", seed=seed, **SMALL).read_bytes()
        for i, seed in enumerate([3, 3, 4])
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize("kind", [TensorType.Q4_K, TensorType.Q6_K, TensorType.BF16])
def test_other_formats_fall_back_as_llama_cpp_does(tmp_path: Path, kind: TensorType) -> None:
    model = load(write_synthetic(tmp_path / "a.gguf", "qwen2.5-0.5b", kind, embedding_type=TensorType.Q8_0, **SMALL))
    fallback = {TensorType.Q4_K: TensorType.Q5_0, TensorType.Q6_K: TensorType.Q8_0}.get(kind, kind)
    layer = model.layer(0)  # rows of 896 do not fill blocks of 256, rows of 4864 do
    assert (layer.matrices["q_proj"].type, layer.matrices["down_proj"].type) == (fallback, kind)
    assert model.embed_tokens.type is TensorType.Q8_0


def test_activations_and_gradients_are_sane(tmp_path: Path) -> None:
    model = reference_model(write_synthetic(tmp_path / "a.gguf", "smollm2-135m", **SMALL))
    state = random_adapter(model, rank=2, targets=["q_proj", "down_proj"])
    result = reference(model, state, [np.arange(20).tolist()])
    assert 3 < result.loss < 12
    assert 0.1 < result.logits[0].std() < 3
    assert all(np.isfinite(grad).all() and grad.any() for grad in result.grads.values())


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=r"no synthetic model 'gpt-9'; expected one of: qwen2\.5-0\.5b"):
        write_synthetic(tmp_path / "a.gguf", "gpt-9")
