"""The blocks of a decoder, forward and backward side by side. `docs/derivations/` has the mathematics, page by page.

The same code trains, evaluates, reads prompts, decodes, and runs on shapes alone to count memory. A function takes
arrays and calls operations of a device; there is no graph.

Shapes: T tokens of a span, D hidden_size, F intermediate_size, Q = heads * head_dim, K = kv_heads * head_dim, r rank,
V vocabulary, S sequences. An *operand* is an array in the type that products read: bf16, or float32.
(+)= means: overwrites, or adds if `accumulate`. The residual's and the adapter's gradients accumulate; the other
gradients of activations overwrite.
"""
