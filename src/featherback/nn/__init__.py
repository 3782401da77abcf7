"""The layers of a decoder, forward and backward side by side. `docs/derivations/` has the mathematics, page by page.

The same code trains, evaluates, reads prompts, decodes, and runs on shapes alone to count memory. Arrays in,
operations of a device called, no graph. Shapes: T tokens of a span, D hidden_size, F intermediate_size,
Q = heads * head_dim, K = kv_heads * head_dim, r rank, V vocabulary.
Activation gradients overwrite; the residual's and the adapter's gradients accumulate.
"""
