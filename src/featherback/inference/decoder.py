"""A decoder for generation: one pass over the layers a call, keys and values cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import kernels
from featherback.adapters.lora import LoRA
from featherback.backprop import mlp
from featherback.backprop.context import Context
from featherback.backprop.linear import Pairs, Projection, projections
from featherback.data.batch import Batch
from featherback.errors import FeatherbackError
from featherback.memory.arena import Arena
from featherback.models.model import Model

CHUNK = 256  # tokens of a prompt that pass the layers together: bounds the activations, not the prompt
MLP_TILE = 512  # columns of the MLP at a time, where many tokens pass together
FEW = 8  # tokens that may take the MLP's whole width at a time

Array = NDArray[Any]
Float32 = NDArray[np.float32]


class Decoder:
    """T tokens in, logits out. The cache grows to `capacity` tokens; its memory is only taken as it fills.

    An adapter's parameters are copied at the start, so later training does not show here.
    """

    def __init__(
        self,
        model: Model,
        adapter: LoRA | None = None,
        capacity: int | None = None,
        compute: str = "bf16",
    ) -> None:
        c = model.config
        self.model, self.compute = model, compute
        self.capacity = min(capacity or c.max_position_embeddings, c.max_position_embeddings)
        self.tokens: list[int] = []  # what the cache holds
        self._weights = [model.layer(i) for i in range(c.num_hidden_layers)]
        self._projections = [
            projections(weights, _pairs(adapter, i), adapter.scale if adapter else 1.0)
            for i, weights in enumerate(self._weights)
        ]
        self._embed, self._head = kernels.matrix(model.embed_tokens), kernels.matrix(model.lm_head)
        self._keys = np.empty((c.num_hidden_layers, self.capacity, c.kv_size), np.float32)
        self._values = np.empty_like(self._keys)
        widest = 8 * c.hidden_size + 4 * c.q_size + 4 * max(MLP_TILE, FEW * c.intermediate_size // CHUNK)
        ranks = 4 * adapter.rank if adapter else 0
        self._arena = Arena(4 * CHUNK * (widest + ranks + c.head_dim) + (1 << 20))  # pages come when written

    def forward(self, tokens: Sequence[int], every: bool = False) -> Float32:
        """Append `tokens` to the cache. Logits of the last one (vocab,), or of all (T, vocab) if `every`.

        FeatherbackError if the cache would overflow.
        """
        if not tokens:
            raise FeatherbackError("There is no token to read.")
        length = len(self.tokens) + len(tokens)
        if length > self.capacity:
            raise FeatherbackError(f"There is room for {self.capacity} tokens, and the text has {length}.")
        parts = [self._pass(tokens[at : at + CHUNK], every) for at in range(0, len(tokens), CHUNK)]
        return np.concatenate(parts) if every else parts[-1][-1]

    def rewind(self, count: int) -> None:
        """Keep only the first `count` tokens of the cache."""
        del self.tokens[count:]

    def _pass(self, tokens: Sequence[int], every: bool) -> Float32:
        c = self.model.config
        batch = self._batch(tokens)
        with self._arena.frame():
            tile = c.intermediate_size if batch.n_tokens <= FEW else MLP_TILE
            ctx = Context.of(batch, c, self._arena, self.compute, tile, vocab_tile=0, keep_h=False)
            x = ctx.floats(ctx.tokens, c.hidden_size)  # the residual stream
            kernels.gather_rows(self._embed, batch.tokens, x)
            for layer, (weights, p) in enumerate(zip(self._weights, self._projections, strict=True)):
                self._attention(ctx, x, weights.input_layernorm, layer, p)
                mlp.forward(ctx, x, weights.post_attention_layernorm, p)
            last = x if every else x[-1:]
            n = ctx.operands(len(last), c.hidden_size)
            kernels.rms_norm(last, self.model.norm, c.rms_norm_eps, n)
            logits = np.empty((len(last), c.vocab_size), np.float32)
            kernels.linear(n, self._head, logits)
        self.tokens.extend(batch.tokens.tolist())
        return logits

    def _batch(self, tokens: Sequence[int]) -> Batch:
        """The tokens as one sequence that goes on where the cache ends."""
        ids = np.asarray(tokens, np.int32)
        past = len(self.tokens)
        positions = np.arange(past, past + ids.size, dtype=np.int32)
        return Batch(ids, ids, positions, np.array([0, ids.size], np.int32))

    def _attention(
        self, ctx: Context, x: Float32, norm: Float32, layer: int, p: dict[str, Projection]
    ) -> None:
        """x (T, D) += lin_o(attention(rms(x) g)), over the cached keys and values and the new ones."""
        c = ctx.config
        past, end = len(self.tokens), len(self.tokens) + ctx.tokens
        keys, values = self._keys[layer], self._values[layer]
        with ctx.arena.frame():
            n = ctx.operands(ctx.tokens, c.hidden_size)
            kernels.rms_norm(x, norm, c.rms_norm_eps, n)
            q, out = ctx.floats(ctx.tokens, c.q_size), ctx.operands(ctx.tokens, c.q_size)
            for name, projected in (("q_proj", q), ("k_proj", keys[past:end]), ("v_proj", values[past:end])):
                p[name].forward(n, p[name].down(ctx, n), projected)
                if name != "v_proj":
                    kernels.rope(projected, ctx.cos, ctx.sin, projected, c.head_dim, c.rope_interleaved)
            seen = np.array([0, end], np.int32)
            heads = (c.num_attention_heads, c.num_key_value_heads)
            kernels.attention(q, keys[:end], values[:end], out, None, *heads, ctx.cu_seqlens, seen)
            p["o_proj"].forward(out, p["o_proj"].down(ctx, out), x, accumulate=True)


def _pairs(adapter: LoRA | None, layer: int) -> Pairs:
    """One layer of the adapter: target -> (A, B^T)."""
    if adapter is None:
        return {}
    flat = np.empty(adapter.layer_size, np.float32)
    adapter.parameters.read(layer, flat)
    return adapter.view(flat)
