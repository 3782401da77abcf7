"""The blocks of a decoder, with forward and backward pass side by side. docs/derivations has a page for each operation.

The same code trains, evaluates, reads prompts, decodes, and runs on shapes alone to count memory. Functions take arrays
and call operations of a device; there is no graph.

Shapes: T tokens of a span, D hidden_size, F intermediate_size, Q = heads * head_dim, K = kv_heads * head_dim, r rank, V
vocabulary, S sequences. An *operand* is an array in the type that matrix products read: bf16 or float32.

(+)= means: overwrites, or adds with `accumulate`. The gradients of the residual stream and of the adapter accumulate.
Other gradients of activations overwrite.
"""
