"""Attention, a branch of a block.

Forward:   n = rms(x) g;   q, k, v = lin(n);   q, k = rope(norm(q)), rope(norm(k));   o = attention(q, k, v)
           x += lin_o(o), or rms(lin_o(o)) g' in families with a norm after it; n = x in those without one before

The carry holds keys and values: of all tokens of a batch in training, of all tokens so far in decoding. In a backward
pass of several spans it also holds their gradients dk and dv, summed over spans. A key is seen by queries of its own
span and of later ones, and later spans come first in the backward pass. So a span's rows of dk and dv are complete when
its turn comes.

Memory: k, v (T', K) of all tokens are in the carry until the layer is done. q, o (T, Q) and lse are in the state, in
the caller's frame. n (T, D) is freed after the projections and computed again in the backward pass. dq, dk, dv are
freed at the end of `backward`. Scores exist tile by tile, inside the kernel. See docs/derivations/attention.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from featherback.engine.backend.protocol import BOTH_WAYS, Array
from featherback.nn.branch import Branch, KeyHeads, Remembered
from featherback.nn.context import Context
from featherback.nn.kept import NOTHING, Intermediate, Kept
from featherback.nn.linear import BlockWeights, bias_of, by_stored, norm_backward, normed, row_ranges, stored_shapes
from featherback.nn.rope import Rotary
from featherback.nn.span import Span

ProductArrays = Mapping[str, tuple[Array, Array]]
"""Letter (q, k or v) -> the array for the product, and the array for its normed and rotated values. Often both are the
same array.
"""

SINKS = "sinks"

FLOAT32 = ("float32",)
"""The encoding in which the factors of the scores are kept."""

NO_H: Mapping[str, Array | None] = {}
"""An empty mapping: no arrays for the adapters' h (T, r).

In such mappings, a key is the name of a stored projection. All parts of a fused projection share one h.
"""


class Scores(NamedTuple):
    """How queries and keys become scores: (q . k) scale, capped and masked, for `heads` heads of q and `kv_heads` of
    k and v.
    """

    heads: int
    kv_heads: int
    scale: float
    window: int = 0  # the most keys that a query sees, including its own; 0: no limit; or BOTH_WAYS
    softcap: float = 0.0  # scores s become cap tanh(s / cap); 0: off
    sinks: Array | None = None  # (heads,), logits that take part in the softmax, with a value of zero


class AttentionCarry(Protocol):
    """Where the keys and values of a layer are. Training keeps all of a batch; a decoder may store them otherwise."""

    def places(self, span: Span) -> ProductArrays:
        """Return arrays (T, K), float32, for the span's own k and v."""

    def attend(
        self, ctx: Context, q: Array, out: Array, lse: Array | None, probabilities: Array | None, scores: Scores
    ) -> None:
        """out (T, Q), an operand = attention of q (T, Q), once `places(ctx.span)` are filled.

        Each query sees the keys and values of its sequence up to its own. `lse` (heads, T) and `probabilities`
        (heads * T, keys) are None in decoding.
        """


@dataclass(frozen=True)
class KeyValues:
    """A carry with the keys and values of all T' tokens of a batch, one row per token in order."""

    k: Array  # (T', K), normed and rotated
    v: Array  # (T', K)
    k_raw: Array | None = None  # (T', K), k before its norm; None if nothing reads it later, or there is no norm
    gathered: tuple[Array, Array] | None = None  # dk and dv (T', K), summed over spans; None: one span, or no backward

    def seen(self, span: Span) -> tuple[Array, Array]:
        """Return the rows of k and v that the span's queries may see."""
        return self.k[span.seen], self.v[span.seen]

    def places(self, span: Span) -> ProductArrays:
        """Return the span's own rows of k and v."""
        k, v = self.k[span.own], self.v[span.own]
        return {"k": (k if self.k_raw is None else self.k_raw[span.own], k), "v": (v, v)}

    def attend(
        self, ctx: Context, q: Array, out: Array, lse: Array | None, probabilities: Array | None, scores: Scores
    ) -> None:
        """See `AttentionCarry`."""
        span, (k, v) = ctx.span, self.seen(ctx.span)
        ctx.ops.attention(
            q, k, v, out, lse, scores.heads, scores.kv_heads, span.cu_q, span.cu_k, scale=scores.scale,
            window=scores.window, softcap=scores.softcap, p=probabilities, prefix=span.prefix, sinks=scores.sinks,
        )  # fmt: skip


@dataclass(frozen=True)
class AttentionState:
    """What the output and the backward pass of a span need: kept intermediates, or arrays of the caller's frame."""

    q: Array  # (T, Q), normed and rotated
    q_raw: Array  # (T, Q), before the norm; q itself if the norm is in place
    o: Array  # (T, Q), an operand
    lse: Array | None  # (heads, T), the log of the sum of exponentials of each score row; None in decoding
    probabilities: Array | None  # (heads * T, keys), only for MeBP, which holds what plain autodiff holds
    out: Array | None  # (T, D): lin_o(o), if a norm follows it or its adapter reads it
    h: Mapping[str, Array | None]  # (T, r), what adapters read from n, if kept for backward; by stored projection


class Attention(Branch):
    """Grouped-query attention, as configured by a family. It is causal, unless `window` is BOTH_WAYS.

    `interleaved`: the two rows of q or k that rotate together are neighbours in the file, as GGUF stores the llama
    family, also in blocks that do not rotate. `rotary`: None if q and k are not rotated. `fused`: the one
    projection that holds the rows of q, k and v. `bias`: q, k and v have one. `qk_norm`: q and k have norms, with
    weights q_norm and k_norm: "heads" norms each head by itself, weights (head_dim,); "whole" norms all heads of a
    token together, weights (heads * head_dim,). `layer_norm`: the norm before is a LayerNorm, which has a bias.
    `window`: the most keys that a query sees, including its own (0: no limit). `scale`: factor of the scores (None:
    head_dim^-1/2). `softcap`: scores s become cap tanh(s / cap) (0: off). `output_bias`: o has one, too. `sinks`:
    each head has a logit, weights sinks (heads,), that takes part in the softmax of every row, with a value of
    zero.
    """

    q_parts = 1
    """The columns of q's product for each column of q."""

    def __init__(
        self,
        *,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        interleaved: bool,
        rotary: Rotary | None,
        pre_norm: str | None = "input_layernorm",
        post_norm: str | None = None,
        fused: str | None = None,
        bias: bool = False,
        qk_norm: Literal["heads", "whole"] | None = None,
        window: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
        output_bias: bool = False,
        sinks: bool = False,
        layer_norm: bool = False,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim, self.eps = heads, kv_heads, head_dim, eps
        self.rotary, self.window, self.softcap = rotary, window, softcap
        self.rotaries = () if rotary is None else (rotary,)
        self.pre_norm, self.post_norm, self.qk_norm = pre_norm, post_norm, qk_norm
        self.scale = float(np.float32(1) / np.sqrt(np.float32(head_dim))) if scale is None else scale
        self.q_size, self.kv_size = q_size, kv_size = heads * head_dim, kv_heads * head_dim
        q_rows = self.q_parts * q_size
        self.parts = row_ranges({"q": q_rows, "k": kv_size, "v": kv_size}, fused)
        products = stored_shapes(self.parts, hidden_size)
        self.projections = products | {"o_proj": (hidden_size, q_size)}
        self.vectors: dict[str, tuple[int, ...]] = {name: (hidden_size,) for name in (pre_norm, post_norm) if name}
        if layer_norm and pre_norm:
            self.vectors[bias_of(pre_norm)] = (hidden_size,)
        if qk_norm:
            sizes = (head_dim, head_dim) if qk_norm == "heads" else (q_size, kv_size)
            self.vectors |= {"q_norm": sizes[:1], "k_norm": sizes[1:]}
        if bias:
            self.vectors |= {f"{name.removesuffix('_proj')}_bias": (n,) for name, (n, _) in products.items()}
        if output_bias:
            self.vectors |= {"o_bias": (hidden_size,)}
        if sinks:
            self.vectors |= {SINKS: (heads,)}
        self.intermediates = {
            "q": Intermediate(q_rows, FLOAT32),
            "k": Intermediate(kv_size, FLOAT32),
            "v": Intermediate(kv_size, FLOAT32),
            "o": Intermediate(q_size),
            "attn_out": Intermediate(hidden_size),
            "lse": Intermediate(heads, FLOAT32, by_head=True),
        }
        # Kept as one bundle, because o and lse must come from the same pass as q, k and v. Values of q, k and v that
        # are recomputed from a rounded checkpoint would differ.
        self.bundles = [("q", "k", "v", "o", "lse"), *([("attn_out",)] if post_norm else [])]
        self.input, self.output = "attn_in", "attn_out"
        self.heads_of_parts = {"q": heads, "k": kv_heads}
        self.interleaved_heads = self.heads_of_parts if interleaved else {}
        self.remembered = {"k": Remembered(kv_size), "v": Remembered(kv_size)}
        self.key_heads = KeyHeads(kv_heads, head_dim)

    def shares_prefixes(self, longest: int) -> bool:
        """Return whether prefixes may be shared: no window hides a key, no rotation depends on the length."""
        same_rotation = self.rotary is None or not self.rotary.uses_long_factors(longest)
        return same_rotation and self.window != BOTH_WAYS and not 0 < self.window < longest

    def carry(self, ctx: Context, tokens: int, kept: Kept = NOTHING, *, backward: bool = False) -> KeyValues:
        """Return arrays for the keys and values of all `tokens`: kept ones, or arrays of the current frame.

        Kept ones hold their values in the backward pass. With `backward` and several spans there are also dk and dv,
        zero, and k before its norm is computed again, span by span, unless it is kept.
        """
        k, v = (kept.arrays[c] if c in kept else ctx.floats(c, tokens, self.kv_size) for c in ("k", "v"))
        k_raw, gathered, whole = None, None, ctx.tokens >= tokens
        if self.qk_norm and ("k" in kept or (backward and whole)):  # what is kept of k is the product, before its norm
            k, k_raw = ctx.floats("k, normed", tokens, self.kv_size), k
        if backward and not whole:
            gathered = ctx.floats("dk", tokens, self.kv_size), ctx.floats("dv", tokens, self.kv_size)
            for gradient in gathered:
                ctx.ops.fill(gradient, 0)
        return KeyValues(k, v, k_raw, gathered)

    def resumed(self, arrays: Mapping[str, Array]) -> KeyValues:
        """Return the carry of a decoder: keys and values of all tokens so far."""
        return KeyValues(arrays["k"], arrays["v"])

    def rebuild(self, ctx: Context, x: Callable[[], Array], w: BlockWeights, carry: KeyValues, kept: Kept) -> None:
        """Write the span's rows of k, v = lin(rms(x) g) to the carry, unless all of them are kept."""
        places = carry.places(ctx.span)
        found = places.keys() <= kept.arrays.keys()
        self.project(ctx, None if found else x(), w, places, kept)

    def forward(
        self, ctx: Context, x: Array, w: BlockWeights, carry: AttentionCarry, kept: Kept = NOTHING
    ) -> AttentionState:
        """o = attention(q, k, v) of a span, with its log-sum-exp; k and v go to the carry."""
        return self._state(ctx, x, w, carry, carry.places(ctx.span), kept, again=False)

    def recompute(
        self, ctx: Context, x: Array, w: BlockWeights, carry: KeyValues, kept: Kept = NOTHING
    ) -> AttentionState:
        """Like `forward`, for `backward`: kept intermediates are read."""
        own = carry.places(ctx.span) if carry.gathered is None else {}  # else `rebuild` wrote them
        return self._state(ctx, x, w, carry, own, kept, again=True)

    def _state(
        self, ctx: Context, x: Array, w: BlockWeights, carry: AttentionCarry, own: ProductArrays, kept: Kept, *,
        again: bool,
    ) -> AttentionState:  # fmt: skip
        """Return the state of a span of x (T, D), float32 or operand. Writes its k and v to `own`.

        Intermediates are also written to `kept`, where it has arrays for them. With `again`, in the backward pass, kept
        intermediates are read, and only the others are computed.
        """
        found = kept if again else NOTHING
        q_raw = q = self._place(ctx, kept, "q")
        if self.q_parts > 1 or (self.qk_norm and (again or "q" in kept)):
            q = ctx.floats("q, normed", ctx.tokens, self.q_size)
        places = {"q": (q_raw, q), **own}
        h: dict[str, Array | None] = {}
        if again and ctx.keep_h:
            for stored in by_stored(self.parts, [letter for letter in places if letter not in found]):
                h[stored] = w.projections[stored].allocate_h(ctx, ctx.tokens)
        self.project(ctx, x, w, places, found, h)
        o = self._place(ctx, kept, "o")
        # Decoding alone has no lse. In training all passes, forward and again, must use the same arithmetic.
        lse = None if ctx.decoding else self._place(ctx, kept, "lse")
        probabilities = None
        if "o" not in found:
            if ctx.autodiff:
                keys = ctx.span.stop - ctx.span.first_key
                probabilities = ctx.floats("attention weights", self.heads * ctx.tokens, keys)
            sinks = w.vectors.get(SINKS)
            scores = Scores(self.heads, self.kv_heads, self.scale, self.window, self.softcap, sinks)
            carry.attend(ctx, q, o, lse, probabilities, scores)
        out = None
        if self.post_norm is not None or w.projections["o_proj"].needs_output:
            out = found.rows("attn_out", ctx.span)
            if out is None:
                out = ctx.floats("output of o_proj", *x.shape)
                self._project_output(ctx, o, q_raw, w, out)
                if (place := kept.rows("attn_out", ctx.span)) is not None:
                    ctx.ops.cast(out, place)
        return AttentionState(q, q_raw, o, lse, probabilities, out, h)

    def project(
        self, ctx: Context, x: Array | None, w: BlockWeights, places: ProductArrays, found: Kept = NOTHING,
        h: Mapping[str, Array | None] = NO_H,
    ) -> None:  # fmt: skip
        """Fill `places` from x (T, D): products, then their norms and rotations. Products in `found` are read instead.

        x may be None if all products are in `found`. `h`: arrays (T, r) for what adapters read, by stored projection;
        without one, h is freed here. n (T, D) is freed here too.
        """
        with ctx.frame():
            n = None if x is None else normed(ctx, "n1", x, w, self.pre_norm, self.eps)
            missing = by_stored(self.parts, [letter for letter in places if letter not in found])
            for stored, letters in missing.items():
                with ctx.frame():
                    shared = w.projections[stored].read(ctx, n, h.get(stored))
                    for letter in letters:
                        part = self.parts[letter].of(w)
                        part.forward(ctx, n, shared, places[letter][0])
                        ctx.release(part.weight)
            for letter, (raw, out) in places.items():
                if letter not in found or raw is not out:
                    self._norm_and_rotate(ctx, letter, w, raw, out)

    def add_output(self, ctx: Context, state: AttentionState, residual: Array, w: BlockWeights) -> None:
        """residual (T, D), float32, += lin_o(o), or its norm."""
        if self.post_norm is not None:
            ctx.ops.rms_norm(state.out, w.vectors[self.post_norm], self.eps, residual, accumulate=True)
        elif state.out is not None:
            ctx.ops.scale_columns(state.out, None, residual, accumulate=True)
        else:
            self._project_output(ctx, state.o, state.q_raw, w, residual, accumulate=True)

    def backward(
        self, ctx: Context, dm: Array, x: Array, state: AttentionState, w: BlockWeights, kv: KeyValues
    ) -> None:
        """Turn dm (T, D), float32, the gradient of m = x + lin_o(o) or x + rms(lin_o(o)) g', into dx, in place."""
        gathered, span = kv.gathered, ctx.span
        with ctx.frame():
            of_q = ctx.floats("dq", self.q_parts * ctx.tokens, self.q_size)
            dq = of_q[: ctx.tokens]
            dk, dv = gathered or (ctx.floats(name, ctx.tokens, self.kv_size) for name in ("dk", "dv"))
            with ctx.frame():  # frees do (T, Q) and delta
                do = ctx.floats("do", ctx.tokens, self.q_size)
                with ctx.frame():  # frees dy (T, D)
                    # m = x + lin_o(o), or x + rms(lin_o(o)) g'
                    dy = ctx.operands("dm, operand", *dm.shape)
                    if self.post_norm is None:
                        ctx.ops.cast(dm, dy)
                    else:
                        norm_backward(ctx, dm, state.out, w, self.post_norm, self.eps, dy, accumulate=False)
                    o_proj = w.projections["o_proj"]
                    o_proj.finish_backward(ctx, dy, state.out)
                    self._project_output_backward(ctx, state, dy, w, do, of_q[ctx.tokens :])
                # o = attention(q, k, v)
                delta = ctx.floats("delta", self.heads, ctx.tokens)
                k, v = kv.seen(span)
                ctx.ops.attention_backward(
                    do, state.q, k, v, state.o, state.lse, delta, dq, dk[span.seen], dv[span.seen],
                    self.heads, self.kv_heads, span.cu_q, span.cu_k, scale=self.scale, window=self.window,
                    softcap=self.softcap, p=state.probabilities, accumulate=gathered is not None, prefix=span.prefix,
                )  # fmt: skip
                if w.sink is not None and SINKS in w.vectors:
                    gradient = ctx.floats("gradient of the sinks", self.heads)
                    ctx.ops.sinks_gradient(w.vectors[SINKS], state.lse, delta, gradient)
                    w.sink.vector(ctx, SINKS, gradient)
            # n = rms(x) g (T, D), computed again: cheaper than holding it through the backward pass of the MLP
            n = normed(ctx, "n1", x, w, self.pre_norm, self.eps)
            dn = dm if self.pre_norm is None else ctx.floats("dn1", *x.shape)
            raw = {"q": state.q_raw, **{letter: place for letter, (place, _) in kv.places(span).items()}}
            gradients = {"q": of_q, "k": dk[span.own], "v": dv[span.own]}
            # q, k, v = lin(n), where q and k are then normed and rotated: dn (+)= the sum of their gradients
            for stored, letters in by_stored(self.parts, gradients).items():
                with ctx.frame():
                    h = state.h.get(stored)
                    h = w.projections[stored].read(ctx, n) if h is None else h
                    for letter in letters:
                        with ctx.frame():
                            part, product = self.parts[letter].of(w), raw[letter]
                            if letter == "k" and self.qk_norm and kv.k_raw is None:
                                product = ctx.floats("k before its norm", *product.shape)
                                part.forward(ctx, n, h, product)
                            dy = ctx.operands(f"d{letter}, operand", *product.shape)
                            self._norm_and_rotate_backward(ctx, letter, w, gradients[letter], product, dy)
                            if part.needs_output:
                                self._inverse_rope(ctx, letter, product)
                                part.finish_backward(ctx, dy, product)
                            part.backward(ctx, n, dy, dn, h=h, accumulate=dn is dm or letter != "q")
            if self.pre_norm is not None:
                norm_backward(ctx, dn, x, w, self.pre_norm, self.eps, dm)

    def _project_output(
        self, ctx: Context, o: Array, q_raw: Array, w: BlockWeights, out: Array, *, accumulate: bool = False
    ) -> None:
        """out (T, D), float32, (+)= lin_o(o)."""
        w.projections["o_proj"].run(ctx, o, out, accumulate=accumulate)

    def _project_output_backward(
        self, ctx: Context, state: AttentionState, dy: Array, w: BlockWeights, do: Array, beside: Array
    ) -> None:
        """do (T, Q), float32, becomes the gradient of o, from dy (T, D), the gradient of lin_o(o), an operand.

        `beside` ((q_parts - 1) T, Q): room for the gradients of the other products of q.
        """
        w.projections["o_proj"].backward(ctx, state.o, dy, do)

    def _place(self, ctx: Context, kept: Kept, name: str) -> Array:
        """Return the span's rows of an intermediate: in `kept`, or an uninitialised array of the current frame."""
        place = kept.rows(name, ctx.span)
        if place is None:
            place = ctx.scratch.take(name, *self.intermediates[name].placed(ctx.tokens, ctx.operand))
        return place

    def _norm_and_rotate(self, ctx: Context, letter: str, w: BlockWeights, raw: Array, out: Array) -> None:
        """out = rope(rms(raw) g), (T, n).

        Without a norm, raw and out are the same array. With a norm, they may also be the same.
        """
        norm = w.vectors.get(f"{letter}_norm")
        if norm is not None:
            ctx.ops.rms_norm(raw, norm, self.eps, out)
        if letter != "v" and self.rotary is not None:
            cos, sin = ctx.table(self.rotary)
            ctx.ops.rope(out, cos, sin, out, self.head_dim, self.rotary.interleaved)

    def _inverse_rope(self, ctx: Context, letter: str, turned: Array) -> None:
        """If the rotation overwrote y, turn rope(y) (T, n) back into y, in place.

        The caller no longer needs rope(y).
        """
        if letter == "v" or self.rotary is None or self.qk_norm:
            return
        cos, sin = ctx.table(self.rotary)
        ctx.ops.rope(turned, cos, sin, turned, self.head_dim, self.rotary.interleaved, inverse=True)
        if self.rotary.attention_factor != 1:  # both rope and its inverse multiply by it
            with ctx.frame():
                back = ctx.floats("1 / attention_factor^2", turned.shape[1] // self.head_dim, self.head_dim)
                ctx.ops.fill(back, 1)
                ctx.ops.fill(back[:, : self.rotary.dim], self.rotary.attention_factor**-2)
                ctx.ops.scale_columns(turned, back.reshape(turned.shape[1]), turned)

    def _norm_and_rotate_backward(
        self, ctx: Context, letter: str, w: BlockWeights, gradient: Array, raw: Array, dy: Array
    ) -> None:
        """Write the gradient of raw to dy (T, n), an operand, given `gradient`, the gradient of rope(rms(raw) g).

        `gradient` (T, n), float32, may be overwritten.
        """
        norm = w.vectors.get(f"{letter}_norm")
        if letter != "v" and self.rotary is not None:
            cos, sin = ctx.table(self.rotary)
            rotated_back = dy if norm is None else gradient
            ctx.ops.rope(gradient, cos, sin, rotated_back, self.head_dim, self.rotary.interleaved, inverse=True)
        elif norm is None:
            ctx.ops.cast(gradient, dy)
        if norm is not None:
            norm_backward(ctx, gradient, raw, w, f"{letter}_norm", self.eps, dy, accumulate=False)
