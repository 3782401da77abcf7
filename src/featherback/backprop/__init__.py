"""The hand-derived forward and backward of a decoder. `docs/derivations/` has the mathematics, one page an operation.

NumPy arrays in, kernels called, no graph. Shapes: T tokens, D hidden_size, F intermediate_size, Q = heads * head_dim,
K = kv_heads * head_dim, r rank, V vocabulary. Activation gradients overwrite; the residual's and the adapter's
gradients accumulate.
"""
