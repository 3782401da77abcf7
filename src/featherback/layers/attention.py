"""The attention half of a block.

Forward:   n = rms(x) g;   q, k, v = lin(n);   q, k = rope(norm(q)), rope(norm(k));   o = attention(q, k, v)
           x += lin_o(o), or rms(lin_o(o)) g' in families with a norm behind it

Keys and values of earlier tokens lie in a store that the caller holds: all tokens of a batch in training, the cache in
decoding. See docs/derivations/attention.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from featherback.backend.protocol import Array
from featherback.layers.context import Context
from featherback.layers.kept import NOTHING, Intermediate, Kept
from featherback.layers.linear import BlockWeights
from featherback.layers.rope import Rotary
from featherback.layers.span import Span

LETTERS = ("q", "k", "v")


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of all tokens of a batch, rows in the order of the tokens."""

    k: Array  # (T', K), rotated
    v: Array  # (T', K)
    k_raw: Array | None = None  # (T', K), before the norm, where there is one and a backward pass to come

    def seen(self, span: Span) -> tuple[Array, Array]:
        """k and v as far as the span's queries may see."""
        return self.k[span.first_key : span.stop], self.v[span.first_key : span.stop]


@dataclass
class AttentionState:
    """What the backward pass of a span needs of its forward pass."""

    q: Array  # (T, Q), rotated
    q_raw: Array | None  # (T, Q), before the norm, if there is one
    o: Array  # (T, Q), an operand
    lse: Array  # (heads, T), the log of each score row's sum of exponentials
    probabilities: Array | None = None  # (heads * T, keys), only as plain autodiff holds them
    out: Array | None = (
        None  # (T, D): lin_o(o), the input of the norm behind it, or room for it, if there is one
    )
    out_found: bool = False  # whether `out` holds it
    h: dict[str, Array | None] = field(default_factory=dict)  # LoRA's products of n, if they were kept


class Attention:
    """Causal grouped-query attention, as a family sets it up.

    `bias`: q, k and v have one. `qk_norm`: each head of q and k is normalised, with weights q_norm, k_norm (head_dim,).
    `window`: most keys that a query sees, itself included (0: all before it). `scale` of the scores (None:
    head_dim^-1/2). `softcap`: scores s become cap tanh(s / cap) (0: they stay).
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        rotary: Rotary | None,
        pre_norm: str = "input_layernorm",
        post_norm: str | None = None,
        bias: bool = False,
        qk_norm: bool = False,
        window: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim, self.eps = heads, kv_heads, head_dim, eps
        self.rotary, self.window, self.softcap = rotary, window, softcap
        self.pre_norm, self.post_norm, self.qk_norm = pre_norm, post_norm, qk_norm
        self.scale = float(np.float32(1) / np.sqrt(np.float32(head_dim))) if scale is None else scale
        q_size, kv_size = heads * head_dim, kv_heads * head_dim
        self.q_size, self.kv_size = q_size, kv_size
        self.projections = {
            "q_proj": (q_size, hidden_size),
            "k_proj": (kv_size, hidden_size),
            "v_proj": (kv_size, hidden_size),
            "o_proj": (hidden_size, q_size),
        }
        self.vectors = {pre_norm: (hidden_size,)}
        if post_norm:
            self.vectors[post_norm] = (hidden_size,)
        if qk_norm:
            self.vectors |= {"q_norm": (head_dim,), "k_norm": (head_dim,)}
        if bias:
            self.vectors |= {"q_bias": (q_size,), "k_bias": (kv_size,), "v_bias": (kv_size,)}
        self.intermediates = {
            "q": Intermediate(q_size, state=True),
            "k": Intermediate(kv_size, state=True),
            "v": Intermediate(kv_size, state=True),
            "o": Intermediate(q_size),
        }
        if post_norm:
            self.intermediates["attn_out"] = Intermediate(hidden_size)
        self.intermediates["lse"] = Intermediate(heads, state=True, by_head=True)
        # o without the q, k and v of the same pass would be divided by another sum than theirs.
        self.bundles = [("q", "k", "v", "o", "lse"), *([("attn_out",)] if post_norm else [])]
        self.rotated_heads = (
            {"q_proj": heads, "k_proj": kv_heads} if rotary is not None and rotary.interleaved else {}
        )

    def store(self, ctx: Context, tokens: int, kept: Kept = NOTHING, *, backward: bool = False) -> KeyValues:
        """Arrays for the keys and values of all `tokens`; those that are kept already hold them."""
        k, v = kept.arrays.get("k"), kept.arrays.get("v")
        k_raw = None
        if self.qk_norm and (backward or k is not None):  # what is kept is the product, before its norm
            k_raw = ctx.floats("k before its norm", tokens, self.kv_size) if k is None else k
            k = None
        k = ctx.floats("k", tokens, self.kv_size) if k is None else k
        v = ctx.floats("v", tokens, self.kv_size) if v is None else v
        return KeyValues(k, v, k_raw)

    def forward(
        self, ctx: Context, x: Array, w: BlockWeights, kv: KeyValues, kept: Kept = NOTHING
    ) -> AttentionState:
        """The state of the normed x (T, D), float32 or operand, after the span's k and v have joined `kv`."""
        place = kept.rows("q", ctx.span)
        q_raw = place if self.qk_norm else None
        q = ctx.floats("q", ctx.tokens, self.q_size) if place is None or self.qk_norm else place
        self.project(ctx, x, w, LETTERS, kv, q, q_raw)
        o, lse = kept.rows("o", ctx.span), kept.rows("lse", ctx.span)
        if o is None:
            o, lse = self._room_for_o(ctx)
        return AttentionState(q, q_raw, o, lse, self._attend(ctx, q, kv, o, lse))

    def recall(
        self, ctx: Context, x: Array, w: BlockWeights, kv: KeyValues, kept: Kept, *, keys: bool = True
    ) -> AttentionState:
        """The state once more: what is kept, and the rest computed again. `keys`: k and v too, as `recall_keys`."""
        place, o, lse = (kept.rows(name, ctx.span) for name in ("q", "o", "lse"))
        q = ctx.floats("q", ctx.tokens, self.q_size) if place is None or self.qk_norm else place
        q_raw = place
        if self.qk_norm and place is None:
            q_raw = ctx.floats("q before its norm", ctx.tokens, self.q_size)
        found = o is not None
        if o is None:
            o, lse = self._room_for_o(ctx)
        wanted = [c for c in LETTERS if c not in kept and (keys or c == "q")]
        h = self._room_for_h(ctx, w, wanted) if ctx.keep_h else {}
        if wanted:
            self.project(ctx, x, w, wanted, kv, q, q_raw if self.qk_norm else None, h)
        if self.qk_norm and place is not None:
            self._turn(ctx, place, w.vectors["q_norm"], q)
        if keys:
            self._turn_kept_keys(ctx, w, kv, kept)
        probabilities = None if found else self._attend(ctx, q, kv, o, lse)
        q_raw = q_raw if self.qk_norm else None
        out = kept.rows("attn_out", ctx.span)
        out_found = out is not None
        if (
            self.post_norm is not None and out is None
        ):  # here, since it must outlive the frame that it is filled in
            out = ctx.floats("output of o_proj", *x.shape)
        return AttentionState(q, q_raw, o, lse, probabilities, out, out_found, h)

    def recall_keys(self, ctx: Context, x: Array, w: BlockWeights, kv: KeyValues, kept: Kept) -> None:
        """The span's rows of `kv` once more: those that are kept, and the rest computed again."""
        wanted = [c for c in ("k", "v") if c not in kept]
        if wanted:
            self.project(ctx, x, w, wanted, kv)
        self._turn_kept_keys(ctx, w, kv, kept)

    def gradient_store(self, ctx: Context, tokens: int) -> tuple[Array, Array]:
        """dk and dv (T', K) of all tokens, zero."""
        gathered = ctx.floats("dk", tokens, self.kv_size), ctx.floats("dv", tokens, self.kv_size)
        for gradient in gathered:
            ctx.ops.fill(gradient, 0)
        return gathered

    def project(
        self,
        ctx: Context,
        x: Array,
        w: BlockWeights,
        letters: Collection[str],
        kv: KeyValues,
        q: Array | None = None,
        q_raw: Array | None = None,
        h: dict[str, Array | None] | None = None,
    ) -> None:
        """The named of q, k and v from x (T, D): q into its arrays, k and v into the span's rows of `kv`.

        `h`: room for LoRA's products that are to stay, by letter.
        """
        rows = slice(ctx.span.start, ctx.span.stop)
        k_raw = None if kv.k_raw is None else kv.k_raw[rows]
        places = {"q": (q, q_raw), "k": (kv.k[rows], k_raw), "v": (kv.v[rows], None)}
        with ctx.frame():
            n = ctx.operands("n1", *x.shape)
            ctx.ops.rms_norm(x, w.vectors[self.pre_norm], self.eps, n)
            for letter in letters:
                projection = w.projections[f"{letter}_proj"]
                out, raw = places[letter]
                raw = out if raw is None else raw
                with ctx.frame():
                    product = projection.lora_in(ctx, n, None if h is None else h.get(letter))
                    projection.forward(ctx, n, product, raw)
                ctx.release(projection.weight)
                if letter != "v":
                    self._turn(ctx, raw, w.vectors.get(f"{letter}_norm"), out)

    def add_output(
        self, ctx: Context, state: AttentionState, residual: Array, w: BlockWeights, kept: Kept = NOTHING
    ) -> None:
        """residual (T, D) += lin_o(o), or its norm; what is kept of it is written, or read if it was found."""
        o_proj = w.projections["o_proj"]
        if self.post_norm is None:
            with ctx.frame():
                o_proj.forward(ctx, state.o, o_proj.lora_in(ctx, state.o), residual, accumulate=True)
            ctx.release(o_proj.weight)
            return
        if not state.out_found:
            if state.out is None:
                state.out = ctx.floats("output of o_proj", *residual.shape)
            state.out_found = True
            with ctx.frame():
                o_proj.forward(ctx, state.o, o_proj.lora_in(ctx, state.o), state.out)
            ctx.release(o_proj.weight)
            if (place := kept.rows("attn_out", ctx.span)) is not None:
                ctx.ops.cast(state.out, place)
        ctx.ops.rms_norm(state.out, w.vectors[self.post_norm], self.eps, residual, accumulate=True)

    def backward(
        self,
        ctx: Context,
        dm: Array,
        x: Array,
        state: AttentionState,
        w: BlockWeights,
        kv: KeyValues,
        gathered: tuple[Array, Array] | None = None,
    ) -> None:
        """dm (T, D), the gradient of m = x + lin_o(o), becomes the gradient of x in place.

        `gathered`: (dk, dv) of all tokens (T', K), to which later spans have added; None: there is but this span.
        """
        with ctx.frame():
            dq = ctx.floats("dq", ctx.tokens, self.q_size)
            if gathered is None:
                dk, dv = (ctx.floats(name, ctx.tokens, self.kv_size) for name in ("dk", "dv"))
                gathered = dk, dv
                rows = seen = slice(0, ctx.tokens)
                alone = True
            else:
                rows, seen = slice(ctx.span.start, ctx.span.stop), slice(ctx.span.first_key, ctx.span.stop)
                alone = False
            dk, dv = (gradient[rows] for gradient in gathered)
            dk_seen, dv_seen = (gradient[seen] for gradient in gathered)
            k_seen, v_seen = kv.seen(ctx.span)
            with ctx.frame():
                do = ctx.floats("do", ctx.tokens, self.q_size)
                self._output_backward(ctx, dm, state, w, do)
                delta = ctx.floats("delta", self.heads, ctx.tokens)
                # o = attention(q, k, v)
                ctx.ops.attention_backward(
                    do, state.q, k_seen, v_seen, state.o, state.lse, delta, dq, dk_seen, dv_seen,
                    self.heads, self.kv_heads,
                    ctx.span.cu_q, ctx.span.cu_k, scale=self.scale, window=self.window,
                    softcap=self.softcap, p=state.probabilities, accumulate=not alone,
                )  # fmt: skip
            # n = rms(x) g, recomputed: it is cheaper than keeping it through the MLP
            n = ctx.operands("n1", *x.shape)
            ctx.ops.rms_norm(x, w.vectors[self.pre_norm], self.eps, n)
            dn = ctx.floats("dn1", *x.shape)
            k_raw = None if kv.k_raw is None else kv.k_raw[ctx.span.start : ctx.span.stop]
            for letter, gradient, raw in (("q", dq, state.q_raw), ("k", dk, k_raw), ("v", dv, None)):
                projection = w.projections[f"{letter}_proj"]
                with ctx.frame():
                    dy = ctx.operands(f"d{letter}, operand", *gradient.shape)
                    if letter == "v":
                        ctx.ops.cast(gradient, dy)
                    else:
                        self._turn_back(ctx, gradient, raw, w.vectors.get(f"{letter}_norm"), dy)
                    h = state.h.get(letter)
                    h = projection.lora_in(ctx, n) if h is None else h
                    dh = projection.lora_in_backward(ctx, dy)
                    projection.backward_factors(ctx, n, h, dy, dh)
                    projection.backward_input(ctx, dy, dh, dn, accumulate=letter != "q")
                ctx.release(projection.weight)
            ctx.ops.rms_norm_backward(dn, x, w.vectors[self.pre_norm], self.eps, dm)

    def _output_backward(
        self, ctx: Context, dm: Array, state: AttentionState, w: BlockWeights, do: Array
    ) -> None:
        """do (T, Q) from dm, with m = x + lin_o(o), or x + rms(lin_o(o)) g."""
        o_proj = w.projections["o_proj"]
        with ctx.frame():
            dy = ctx.operands("dm, operand", *dm.shape)
            if self.post_norm is None:
                ctx.ops.cast(dm, dy)
            else:
                norm = w.vectors[self.post_norm]
                ctx.ops.rms_norm_backward(dm, state.out, norm, self.eps, dy, accumulate=False)
            h = o_proj.lora_in(ctx, state.o)
            dh = o_proj.lora_in_backward(ctx, dy)
            o_proj.backward_factors(ctx, state.o, h, dy, dh)
            o_proj.backward_input(ctx, dy, dh, do)
        ctx.release(o_proj.weight)

    def _attend(self, ctx: Context, q: Array, kv: KeyValues, o: Array, lse: Array | None) -> Array | None:
        """o (T, Q) and lse (heads, T); the probabilities, where plain autodiff would hold them."""
        k, v = kv.seen(ctx.span)
        p = ctx.floats("attention weights", self.heads * ctx.tokens, len(k)) if ctx.autodiff else None
        ctx.ops.attention(
            q, k, v, o, lse, self.heads, self.kv_heads, ctx.span.cu_q, ctx.span.cu_k,
            scale=self.scale, window=self.window, softcap=self.softcap, p=p,
        )  # fmt: skip
        return p

    def _turn(self, ctx: Context, raw: Array, norm: Array | None, out: Array) -> None:
        """out = rope(rms(raw) g), head by head, without the norm or the rotation if the family has none."""
        if norm is not None:
            ctx.ops.rms_norm(raw, norm, self.eps, out)
        if self.rotary is not None:
            cos, sin = ctx.table(self.rotary)
            source = raw if norm is None else out
            ctx.ops.rope(source, cos, sin, out, self.head_dim, self.rotary.interleaved)

    def _turn_kept_keys(self, ctx: Context, w: BlockWeights, kv: KeyValues, kept: Kept) -> None:
        """k from what is kept of it, where that is the product before the norm."""
        if kv.k_raw is not None and "k" in kept:
            rows = slice(ctx.span.start, ctx.span.stop)
            self._turn(ctx, kv.k_raw[rows], w.vectors["k_norm"], kv.k[rows])

    def _turn_back(
        self, ctx: Context, gradient: Array, raw: Array | None, norm: Array | None, dy: Array
    ) -> None:
        """dy, an operand, the gradient of the product, from that of rope(rms(raw) g), which is overwritten."""
        turned = dy if norm is None else gradient
        if self.rotary is not None:
            cos, sin = ctx.table(self.rotary)
            ctx.ops.rope(gradient, cos, sin, turned, self.head_dim, self.rotary.interleaved, inverse=True)
        elif norm is None:
            ctx.ops.cast(gradient, dy)
        if norm is not None:
            ctx.ops.rms_norm_backward(gradient, raw, norm, self.eps, dy, accumulate=False)

    def _room_for_o(self, ctx: Context) -> tuple[Array, Array | None]:
        """o and the log-sum-exp. (Only decoding goes without: all passes of training have the same arithmetic.)"""
        o = ctx.operands("o", ctx.tokens, self.q_size)
        return o, None if ctx.decoding else ctx.floats("log-sum-exp", self.heads, ctx.tokens)

    def _room_for_h(self, ctx: Context, w: BlockWeights, letters: Collection[str]) -> dict[str, Array | None]:
        loras = {c: w.projections[f"{c}_proj"].lora for c in letters}
        return {
            c: ctx.operands(f"h of {c}_proj", ctx.tokens, len(lora.a)) if lora else None
            for c, lora in loras.items()
        }
