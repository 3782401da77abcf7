"""Roles of trained tensors for optimisers, and the names of the tensors outside the blocks."""

MATRIX, TABLE = "matrix", "table"
"""A row of a TABLE belongs to a token. A vector needs no role: its shape has one dimension."""

EMBEDDING, HEAD, NORM = "embed_tokens", "lm_head", "norm"
"""The tensors outside the blocks."""
