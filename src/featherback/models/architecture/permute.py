"""The row order of q and k in GGUF files of the llama family.

Both orders describe the same heads. Hugging Face rotates column i of a head together with column i + head_dim/2
(half-split). GGUF's llama rotates neighbouring columns (interleaved), so its converter reorders the rows of q and k:
within a head, GGUF row 2i + j is Hugging Face row i + j * head_dim/2.
"""

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]


def hf_to_gguf_rows(n_heads: int, rows: int) -> Index:
    """Return an index (rows,) such that `hf_array[index]` is in GGUF order, for arrays of shape (rows, ...)."""
    head_dim, rest = divmod(rows, n_heads)
    if rest or head_dim % 2:
        raise ValueError(f"{rows} rows do not make {n_heads} heads of even size")
    return np.arange(rows).reshape(n_heads, 2, head_dim // 2).swapaxes(1, 2).reshape(rows)


def gguf_to_hf_rows(n_heads: int, rows: int) -> Index:
    """Return an index (rows,) such that `gguf_array[index]` is in Hugging Face order: the inverse permutation."""
    return np.argsort(hf_to_gguf_rows(n_heads, rows))
