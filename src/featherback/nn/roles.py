"""What trained tensors are to optimisers, and the names of those outside the layers."""

MATRIX, TABLE = "matrix", "table"
"""A table's rows stand for tokens. A vector is known by its shape."""

EMBEDDING, HEAD, NORM = "embed_tokens", "lm_head", "norm"
"""What lies outside the layers."""
