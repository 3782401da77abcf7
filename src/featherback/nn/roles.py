"""Roles of trained tensors, which optimisers use, and the names of the tensors outside the blocks."""

MATRIX, TABLE = "matrix", "table"
"""A row of a TABLE belongs to a token. A vector needs no role because its shape has one dimension."""

EMBEDDING, HEAD, NORM, NORM_BIAS = "embed_tokens", "lm_head", "norm", "norm_bias"
"""Names of the tensors outside the blocks."""
