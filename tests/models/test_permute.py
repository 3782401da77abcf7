import numpy as np
import pytest

from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows


def llama_cpp_permute(weights: np.ndarray, n_head: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py, as published."""
    return (
        weights.reshape(n_head, 2, weights.shape[0] // n_head // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 64), (9, 10), (4, 24)])
def test_as_llama_cpp_converts_and_back(heads: int, head_dim: int) -> None:
    rows = heads * head_dim
    weights = np.random.default_rng(0).standard_normal((rows, 5))
    assert np.array_equal(weights[hf_to_gguf_rows(heads, rows)], llama_cpp_permute(weights, heads))
    assert np.array_equal(weights[hf_to_gguf_rows(heads, rows)][np.argsort(hf_to_gguf_rows(heads, rows))], weights)


def test_row_2i_plus_j_is_row_i_plus_j_halves() -> None:
    assert hf_to_gguf_rows(2, 12).tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


@pytest.mark.parametrize(("heads", "rows"), [(2, 7), (2, 6)])
def test_uneven_heads(heads: int, rows: int) -> None:
    with pytest.raises(ValueError, match="even size"):
        hf_to_gguf_rows(heads, rows)
