"""A mixture of experts, a branch of a block: each token passes a few of many gated units.

Forward:   n = rms(m) g;   z = n W_r^T;   y = m + sum over the selected e of w_e expert_e(n) + [sig(n s) or 1] shared(n)
Backward:  da_e = dy W_d,  dw_e = da_e a_e  per token;  then da_e *= w_e, and on as in a dense unit;   dz from dw;
           dn = sum over e of what expert_e's gate and up pass back + dz W_r

dw_e = dy . expert_e(n) = (dy W_d) . a_e, so no product with W_d is computed again. dz W_r is part of dn even if the
router itself is frozen. The weights w are those of `nn.router`.

An adapter may have a pair A, B for each expert, and one for the router (`nn.adapters.stacked`).

Tokens are sorted by expert. One expert after the other reads its rows of n, and adds its rows of the result, so each
expert is read and unpacked once per span. Its weights are released after use, and the next expert is read ahead.

The selection is kept from the forward to the backward pass under every plan, because a checkpoint may be rounded. See
docs/derivations/experts.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from featherback.engine.backend.protocol import Array
from featherback.nn.branch import Branch
from featherback.nn.context import Context
from featherback.nn.gated import Gated, GatedWeights
from featherback.nn.kept import NOTHING, Intermediate, Kept, KeptState
from featherback.nn.linear import BlockWeights, norm_backward, normed
from featherback.nn.router import Gating, Group, Routing
from featherback.nn.shared_expert import SharedExpert
from featherback.nn.softmax import placed

ROUTER, SELECTION, CHOSEN = "router", "router_selection", "chosen experts"
ROUNDED = 16
"""Float32 values by which an array can grow when it is aligned."""
ARRAYS, ARRAYS_OF_TILE = 12, 4
"""The arrays of an expert with adapters in a forward pass, and those of a tile of F."""


class Experts(Branch):
    """`gating.experts` gated units of width `expert_size`, of which each token passes `gating.used`.

    `biased`: a bias (E,) is added to the scores that select experts. `shared`: a unit that all tokens pass. `fused`:
    one stack holds gate and up, the rows of an expert's gate first. `shared_is_frozen`: adapters do not change the
    shared expert. `bias`: the router and all products of experts have biases.
    """

    def __init__(
        self,
        *,
        hidden_size: int,
        expert_size: int,
        gating: Gating,
        eps: float,
        activation: str = "silu",
        pre_norm: str = "post_attention_layernorm",
        biased: bool = False,
        shared: SharedExpert | None = None,
        fused: bool = False,
        shared_is_frozen: bool = False,
        bias: bool = False,
    ) -> None:
        self.gating, self.eps, self.pre_norm, self.biased = gating, eps, pre_norm, biased
        self.shared, self.gated = shared, Gated(expert_size, activation)
        inner = {"gate_up_exps": 2 * expert_size} if fused else {"gate_exps": expert_size, "up_exps": expert_size}
        self.heights = {**inner, "down_exps": hidden_size}
        """Stack -> rows of one expert."""
        self.stacks = dict.fromkeys(self.heights, gating.experts)
        self.projections = {ROUTER: (gating.experts, hidden_size)}
        for name, height in self.heights.items():
            self.projections[name] = (gating.experts * height, expert_size if name == "down_exps" else hidden_size)
        self.vectors: dict[str, tuple[int, ...]] = {pre_norm: (hidden_size,)}
        if biased:
            self.vectors[SELECTION] = (gating.experts,)
        self.requested = (*self.heights, ROUTER)
        if bias:
            self.vectors[f"{ROUTER}_bias"] = (gating.experts,)
            self.vectors |= {f"{name}_bias": (gating.experts, height) for name, height in self.heights.items()}
        if shared is not None:
            self.frozen = tuple(shared.projections) if shared_is_frozen else ()
            self.projections |= shared.projections
            self.vectors |= shared.vectors
        self.input, self.output = "m", "mlp_out"
        self.intermediates = {
            "mlp_out": Intermediate(hidden_size),
            CHOSEN: Intermediate(gating.used, ("float32",), always=True),
        }
        self.bundles = []

    def forward(self, ctx: Context, m: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> KeptState:
        """Return a state without arrays: `add_output` computes y expert by expert."""
        return KeptState(kept, again=False)

    def add_output(self, ctx: Context, state: KeptState, m: Array, w: BlockWeights) -> None:
        """m (T, D), float32, the input, becomes y in place."""
        with ctx.frame():
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            z = self._scores(ctx, n, w)
            routing = self._route(ctx, z, w, state)
            if self.shared is not None:
                self.shared.add_output(ctx, n, m, w)
            own = ctx.of_experts()
            for group, weights in self._each(own, routing, w):
                rows = routing.rows[group.first : group.last]
                with own.frame():
                    x = own.operands("rows of an expert", len(rows), m.shape[1])
                    out = own.floats("output of an expert", *x.shape)
                    own.ops.take_rows(n, rows, x)
                    self.gated.forward(own, x, weights, out)
                    own.ops.scale_rows(out, placed(own, routing.weights[group.first : group.last], len(rows)))
                    own.ops.add_rows(out, rows, m)

    def recompute(self, ctx: Context, m: Array, w: BlockWeights, carry: None = None, kept: Kept = NOTHING) -> KeptState:
        """Return the state. Nothing is computed here, except for MeBP (`ctx.autodiff`), whose scratch frees nothing."""
        state = KeptState(kept, again=True)
        if ctx.autodiff:
            y = ctx.floats("y", *m.shape)
            ctx.ops.cast(m, y)
            self.add_output(ctx, state, y, w)
            arrays = ARRAYS + ARRAYS_OF_TILE * -(-self.gated.size // ctx.mlp_tile)
            ctx.floats("alignment", ctx.backend.most(lambda: 1, ROUNDED * arrays * self.gating.experts))
        return state

    def backward(
        self, ctx: Context, dy: Array, m: Array, state: KeptState, w: BlockWeights, carry: None = None
    ) -> None:
        """dy (T, D), float32, the gradient of y, becomes that of m in place. m (T, D) is float32 or an operand."""
        with ctx.frame():
            n = normed(ctx, "n2", m, w, self.pre_norm, self.eps)
            z = self._scores(ctx, n, w)
            routing = self._route(ctx, z, w, state)
            dn = ctx.floats("dn2", *m.shape)
            ctx.ops.fill(dn, 0)
            if self.shared is not None:
                self.shared.backward(ctx, dy, n, dn, w)
            own = ctx.of_experts()
            for group, weights in self._each(own, routing, w):
                self._expert_backward(own, dy, n, dn, routing, group, weights)
            self._router_backward(ctx, z, n, dn, routing, w)
            norm_backward(ctx, dn, m, w, self.pre_norm, self.eps, dy)

    def _expert_backward(
        self, ctx: Context, dy: Array, n: Array, dn: Array, routing: Routing, group: Group, weights: GatedWeights
    ) -> None:
        """Add to dn (T, D) what one expert passes back, and note dw of its entries in `routing`."""
        rows = routing.rows[group.first : group.last]
        with ctx.frame():
            x, d_out = (ctx.operands(name, len(rows), n.shape[1]) for name in ("rows of an expert", "rows of dy"))
            dx, dw = ctx.floats("gradient of the rows", *x.shape), ctx.floats("dw of an expert", len(rows))
            factors = placed(ctx, routing.weights[group.first : group.last], len(rows))
            ctx.ops.take_rows(n, rows, x)
            ctx.ops.take_rows(dy, rows, d_out)
            self._start_dw(ctx, d_out, weights, dw)
            self.gated.backward(ctx, x, d_out, dx, weights, dots=dw, factors=factors)
            ctx.ops.add_rows(dx, rows, dn)
            with ctx.backend.host(dw) as found:
                routing.gradients[group.first : group.last] = found

    def _start_dw(self, ctx: Context, d_out: Array, weights: GatedWeights, dw: Array) -> None:
        """dw (n,) = d_out (n, D) . b, the part of dw = d_out . (down(a) + b) that has no a; 0 without a bias b."""
        if weights.down.bias is None:
            ctx.ops.fill(dw, 0)
            return
        with ctx.frame():
            row = ctx.floats("bias of an expert", 1, d_out.shape[1])
            ctx.ops.cast(weights.down.bias.reshape(*row.shape), row)
            ctx.ops.linear(d_out, ctx.ops.dense(row), dw.reshape(len(dw), 1))

    def _scores(self, ctx: Context, n: Array, w: BlockWeights) -> Array:
        """Return z (T, E), float32, in the current frame."""
        z = ctx.floats("scores of the router", len(n), self.gating.experts)
        w.projections[ROUTER].run(ctx, n, z)
        return z

    def _route(self, ctx: Context, z: Array, w: BlockWeights, state: KeptState) -> Routing:
        """Select the experts of each token from z (T, E), or read the kept selection, and compute their weights."""
        place, where = state.kept.rows(CHOSEN, ctx.span), f"The router of layer {w.projections[ROUTER].layer}"
        return self.gating.route(ctx, z, place, state.again, where, w.vectors[SELECTION] if self.biased else None)

    def _router_backward(self, ctx: Context, z: Array, n: Array, dn: Array, routing: Routing, w: BlockWeights) -> None:
        """dn (T, D) += dz W_r, with dz (T, E) from z (T, E) and the gradients of the weights. n (T, D) was routed."""
        with ctx.frame():
            dz, operand = ctx.floats("dz", *z.shape), ctx.operands("dz, operand", *z.shape)
            self.gating.scores_backward(ctx, z, routing, dz)
            ctx.ops.cast(dz, operand)
            w.projections[ROUTER].backward(ctx, n, operand, dn, accumulate=True)

    def _each(self, ctx: Context, routing: Routing, w: BlockWeights) -> Iterator[tuple[Group, GatedWeights]]:
        """Yield the groups with their experts' weights. While an expert is in use, the next one is read ahead."""
        groups = routing.groups
        self._expect(ctx, groups[:1])
        for group in ctx.each(groups):
            self._expect(ctx, groups[group.number + 1 : group.number + 2])
            yield group, self._weights(w, group.expert)

    def _expect(self, ctx: Context, groups: Sequence[Group]) -> None:
        for group in groups:
            for name, height in self.heights.items():
                ctx.expect(name, group.expert * height, (group.expert + 1) * height)

    def _weights(self, w: BlockWeights, expert: int) -> GatedWeights:
        """Return the weights of one expert."""
        rows = {name: (expert * height, (expert + 1) * height) for name, height in self.heights.items()}
        own = {name: w.projections[name].outputs(*bounds) for name, bounds in rows.items()}
        down = own.pop("down_exps")
        if len(own) == 2:
            return GatedWeights({"gate": own["gate_exps"], "up": own["up_exps"]}, down, own)
        both, size = own["gate_up_exps"], self.gated.size
        return GatedWeights({"gate": both.outputs(0, size), "up": both.outputs(size, 2 * size)}, down, own)
