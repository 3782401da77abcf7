"""One projection: a stored weight with an optional bias and an optional adapter.

Forward:   y = x W^T + bias;   backward:  dx = dy W

An adapter of any kind is called at fixed points (`nn.adapters.base`): it reads h (T, r) from x, adds h b to the
product, may change the finished output, and computes its gradients. For LoRA, h = s x A^T and b = B^T. If W itself is
trained, dW = dy^T x is not formed here: dy and x go to its sink (docs/derivations/whole.md).

x, y, dy and dx belong to the caller. `read` and `read_backward` allocate h and dh in the caller's frame; `run` and
`backward` in a frame of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from featherback.engine.backend.protocol import Array, Matrix
from featherback.nn import perturbed
from featherback.nn.adapters.base import AtProjection
from featherback.nn.context import Context


class LayerSink(Protocol):
    """Takes the gradients of a layer's own weights.

    It gets each gradient after the last use of the weight, so it may change the weight at once.
    """

    def matrix(self, ctx: Context, name: str, first_row: int, dy: Array, x: Array) -> None:
        """Take the gradient dy^T x of rows [first_row, first_row + out). dy (T, out) and x (T, in) are operands."""

    def bias(self, ctx: Context, name: str, first_row: int, dy: Array) -> None:
        """Take the gradient of these rows of a bias: the sum over tokens of dy (T, out), an operand."""

    def vector(self, ctx: Context, name: str, gradient: Array) -> None:
        """Take the `gradient` (n,), float32, of a norm's weight."""


class Projection(NamedTuple):
    """y (T, out) = x (T, in) W^T + bias, with an adapter.

    It is a NamedTuple, which is cheap to create: every tile creates three.
    """

    name: str
    weight: Matrix
    bias: Array | None = None
    adapter: AtProjection | None = None
    sink: LayerSink | None = None  # takes the gradients of weight and bias, if these are trained
    layer: int | None = None  # number of the block; None: outside the blocks
    corner: tuple[int, int] = (0, 0)  # row and column of the stored weight at which this part begins

    @property
    def needs_output(self) -> bool:
        """Whether the output needs its own array, because the adapter changes it and reads it in backward."""
        return self.adapter is not None and self.adapter.needs_output

    @property
    def needs_input(self) -> bool:
        """Whether `backward_input` reads x."""
        return self.adapter is not None and (self.adapter.changes_input or self.adapter.reads_product)

    def outputs(self, first: int, last: int) -> Projection:
        """Return outputs [first, last): rows of W and of the bias."""
        if last - first == self.weight.shape[0]:
            return self
        adapter = None if self.adapter is None else self.adapter.outputs(first, last)
        bias = None if self.bias is None else self.bias[first:last]
        weight = self.weight.slice(rows=(first, last))
        row, col = self.corner
        return Projection(self.name, weight, bias, adapter, self.sink, self.layer, (row + first, col))

    def inputs(self, first: int, last: int) -> Projection:
        """Return inputs [first, last): columns of W, without the bias.

        The caller sums the products and finishes the sum.
        """
        if last - first == self.weight.shape[1]:
            return self
        adapter = None if self.adapter is None else self.adapter.inputs(first, last)
        row, col = self.corner
        weight = self.weight.slice(cols=(first, last))
        return Projection(self.name, weight, None, adapter, layer=self.layer, corner=(row, col + first))

    def run(self, ctx: Context, x: Array, out: Array, *, accumulate: bool = False) -> None:
        """The whole forward pass: out (T, out) (+)= y."""
        with ctx.frame():
            self.forward(ctx, x, self.read(ctx, x), out, accumulate=accumulate)
        ctx.release(self.weight)

    def backward(
        self, ctx: Context, x: Array, dy: Array, dx: Array, *, h: Array | None = None, accumulate: bool = False
    ) -> None:
        """The whole backward pass of y = x W^T + h b + bias: dx (T, in) (+)= dy W + the gradient through h.

        dy (T, out) is an operand after `scale_gradient`. `h` (T, r) comes from `read`, if the caller still has it.
        Otherwise it is computed again in the same reading of x that dA needs, and freed here. The gradients of the
        adapter are added, and x and dy are handed to the sink if W is trained.
        """
        with ctx.frame():
            room = self.allocate_h(ctx, len(x)) if h is None else None
            dh = self.read_backward(ctx, dy)
            if self.adapter is not None:
                self.adapter.read(ctx, x, room, dh)
                self.adapter.collect_b(ctx, room if h is None else h, dy)
            self.backward_input(ctx, dy, dh, x, dx, accumulate=accumulate)
        self.give_to_sink(ctx, x, dy)
        ctx.release(self.weight)

    def give_to_sink(self, ctx: Context, x: Array, dy: Array) -> None:
        """Pass the operands x (T, in) and dy (T, out) to the sink.

        The weight is not used after that, so it may change.
        """
        if self.sink is not None:
            self.sink.matrix(ctx, self.name, self.corner[0], dy, x)
            if self.bias is not None:
                self.sink.bias(ctx, self.name, self.corner[0], dy)

    def forward(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """out (T, out) (+)= y, with h from `read`. `accumulate` is not allowed if the adapter changes the output."""
        assert not accumulate or not self.needs_output
        self.product(ctx, x, h, out, accumulate=accumulate)
        self.finish(ctx, out)

    def product(self, ctx: Context, x: Array, h: Array | None, out: Array, *, accumulate: bool = False) -> None:
        """Like `forward` without `finish`, so that the caller can add more to out.

        `h` None: the adapter adds nothing.
        """
        adapter, bias = self.adapter, self.bias
        if ctx.perturbations is not None:
            spot = perturbed.WeightPart(self.name, self.layer, *self.corner)
            perturbed.product(ctx, x, self.weight, spot, out, bias=bias, accumulate=accumulate)
        elif adapter is None:
            ctx.ops.linear(x, self.weight, out, bias=bias, accumulate=accumulate)
        else:
            read, b = h, None if h is None else adapter.b
            h = None if b is None else h
            bias = None if adapter.adds_bias else bias
            if adapter.changes_input:
                with ctx.frame():
                    changed = adapter.change(ctx, x)
                    ctx.ops.linear(changed, self.weight, out, bias=bias, h=h, b=b, accumulate=accumulate)
            else:
                ctx.ops.linear(x, self.weight, out, bias=bias, h=h, b=b, accumulate=accumulate)
            if adapter.adds_bias:
                self.add_bias(ctx, out)
            if read is not None and b is None:
                adapter.add_product(ctx, read, out)

    def add_bias(self, ctx: Context, out: Array) -> None:
        """out (T, out), a sum of products of `inputs`, += the bias, unless the adapter adds it in `finish`."""
        if self.bias is None:
            return
        if self.adapter is None:
            ctx.ops.scale_columns(out, None, out, bias=self.bias)
        else:
            self.adapter.add_bias(ctx, out, self.bias)

    def finish(self, ctx: Context, out: Array) -> None:
        """u (T, out), the complete sum, becomes y in place, if the adapter changes it."""
        if self.adapter is not None and self.adapter.needs_output:
            self.adapter.finish(ctx, out, self.bias)

    def collect(self, ctx: Context, dy: Array, y: Array | None) -> None:
        """Add the gradients of the adapter's values that `finish` uses. dy (T, out) before `scale_gradient`."""
        if self.adapter is not None and self.adapter.needs_output:
            self.adapter.collect(ctx, dy, y, self.bias)

    def scale_gradient(self, ctx: Context, dy: Array) -> None:
        """dy (T, out), an operand, becomes du in place. Later steps use it as dy."""
        if self.adapter is not None and self.adapter.needs_output:
            self.adapter.scale_gradient(ctx, dy)

    def finish_backward(self, ctx: Context, dy: Array, y: Array | None) -> None:
        """Call `collect`, and then `scale_gradient`: dy (T, out), an operand, becomes du in place."""
        self.collect(ctx, dy, y)
        self.scale_gradient(ctx, dy)

    def add_output_backward(self, ctx: Context, x: Array, y: Array | None, dy: Array, dx: Array) -> None:
        """dx (T, in), float32 = the gradient of x, from dy (T, out), float32, of y, which was added to a stream."""
        with ctx.frame():
            operand = ctx.operands("dy, operand", *dy.shape)
            ctx.ops.cast(dy, operand)
            self.finish_backward(ctx, operand, y)
            self.backward(ctx, x, operand, dx)

    def allocate_h(self, ctx: Context, tokens: int) -> Array | None:
        """Allocate an uninitialised operand (T, r) in the current frame. None if the adapter reads nothing from x."""
        width = 0 if self.adapter is None else self.adapter.width
        return ctx.operands(f"h of {self.name}", tokens, width) if width else None

    def read(self, ctx: Context, x: Array, h: Array | None = None) -> Array | None:
        """Return h (T, r), an operand, in the given `h` or the current frame.

        None if the adapter reads nothing from x.
        """
        h = self.allocate_h(ctx, len(x)) if h is None else h
        if self.adapter is not None and h is not None:
            self.adapter.read(ctx, x, h)
        return h

    def read_backward(self, ctx: Context, dy: Array) -> Array | None:
        """Return dh (T, r), an operand of the current frame, from dy (T, out).

        None if the adapter reads nothing from x.
        """
        width = 0 if self.adapter is None else self.adapter.width
        if self.adapter is None or not width:
            return None
        dh = ctx.operands(f"dh of {self.name}", len(dy), width)
        self.adapter.read_backward(ctx, dy, dh)
        return dh

    def backward_input(
        self, ctx: Context, dy: Array, dh: Array | None, x: Array | None, dx: Array, *, accumulate: bool = False
    ) -> None:
        """dx (T, in) (+)= the gradient of x: dy W, and with dh from `read_backward` also the gradient through h.

        x (T, in) is read only if `needs_input`.
        """
        adapter = self.adapter
        if adapter is None:
            ctx.ops.linear_backward(dy, self.weight, dx, accumulate=accumulate)
        elif adapter.changes_input:
            assert x is not None
            with ctx.frame():
                d_changed = ctx.floats(f"gradient of what {self.name} reads", *dx.shape)
                ctx.ops.linear_backward(dy, self.weight, d_changed)
                adapter.change_backward(ctx, x, d_changed, dx, accumulate=accumulate)
            if dh is not None:
                adapter.add_to_input(ctx, dh, dx)
        elif adapter.reads_product:
            assert x is not None
            with ctx.frame():
                u = ctx.floats(f"product of {self.name}", *dy.shape)
                du = ctx.operands(f"gradient of the product of {self.name}", *dy.shape)
                self.product(ctx, x, None, u)
                adapter.product_backward(ctx, u, dy, du)
                ctx.ops.linear_backward(du, self.weight, dx, accumulate=accumulate)
        elif dh is None or (a := adapter.fused_a) is None:
            ctx.ops.linear_backward(dy, self.weight, dx, accumulate=accumulate)
            if dh is not None:
                adapter.add_to_input(ctx, dh, dx)
        else:
            ctx.ops.linear_backward(dy, self.weight, dx, dh=dh, a=a, accumulate=accumulate)

    def accumulator(self, ctx: Context, what: str, tokens: int) -> Array | None:
        """Allocate zeros (T, r), float32, in the current frame, to sum h or dh tile by tile. None if there is no h."""
        width = 0 if self.adapter is None else self.adapter.width
        if not width:
            return None
        total = ctx.floats(f"{what} of {self.name}, sum", tokens, width)
        ctx.ops.fill(total, 0)
        return total

    def add_read(self, ctx: Context, x: Array, total: Array | None, dh: Array | None = None) -> None:
        """total (T, r) += h of a tile of x's columns. With dh, add the gradients of the values that read x."""
        if self.adapter is not None and total is not None:
            self.adapter.read(ctx, x, total, dh, accumulate=True)

    def add_read_backward(self, ctx: Context, dy: Array, total: Array | None) -> None:
        """total (T, r) += dh of a tile of dy's columns."""
        if self.adapter is not None and total is not None:
            self.adapter.read_backward(ctx, dy, total, accumulate=True)

    def summed(self, ctx: Context, total: Array | None, what: str) -> Array | None:
        """Return a complete sum (T, r) as an operand: itself, or a copy in the current frame."""
        if total is None or total.dtype == ctx.operand:
            return total
        operand = ctx.operands(f"{what} of {self.name}", *total.shape)
        ctx.ops.cast(total, operand)
        return operand

    def backward_read(self, ctx: Context, total: Array | None, x: Array, dx: Array) -> None:
        """Once dh = `total` is complete: dx += the gradient through h.

        Also add the gradients of the values that read x.
        """
        dh = self.summed(ctx, total, "dh")
        if self.adapter is not None and dh is not None:
            self.adapter.add_to_input(ctx, dh, dx)
            self.adapter.read(ctx, x, dh=dh)

    def collect_b(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """Add the gradient of b, which multiplies h: LoRA's dB^T = h^T dy."""
        if self.adapter is not None:
            self.adapter.collect_b(ctx, h, dy)


class BlockWeights(NamedTuple):
    """One block's weights as its branches use them: projections, and vectors such as norms, by name."""

    projections: Mapping[str, Projection]
    vectors: Mapping[str, Array]
    sink: LayerSink | None = None  # takes their gradients, if they are trained
    adapters: Mapping[str, Any] = {}  # adapters that are branches, with their values, by place


def normed(ctx: Context, name: str, x: Array, w: BlockWeights, norm: str | None, eps: float) -> Array:
    """Return n (T, D) = rms(x) g, or x without a `norm`: an operand of the current frame, or x itself.

    A norm with a bias b, among the vectors under `bias_of(norm)`, is a LayerNorm: n = (x - mean) / std g + b.
    """
    if norm is None and x.dtype == ctx.operand:
        return x
    n = ctx.operands(name, *x.shape)
    if norm is None:
        ctx.ops.cast(x, n)
    elif (bias := w.vectors.get(bias_of(norm))) is not None:
        ctx.ops.layer_norm(x, w.vectors[norm], bias, eps, n)
    else:
        ctx.ops.rms_norm(x, w.vectors[norm], eps, n)
    return n


def bias_of(norm: str) -> str:
    """Return the name of a LayerNorm's bias among a block's vectors."""
    return f"{norm}_bias"


def norm_backward(
    ctx: Context, dn: Array, x: Array, w: BlockWeights, norm: str, eps: float, dx: Array, *,
    accumulate: bool = True,
) -> None:  # fmt: skip
    """dx (T, D) (+)= the gradient of x from dn (T, D), float32, where n = rms(x) g, or a LayerNorm: see `normed`.

    The gradients of g and b go to the sink.
    """
    weight, is_layer_norm = w.vectors[norm], bias_of(norm) in w.vectors
    with ctx.frame():
        gradients: dict[str, Array] = {}
        if w.sink is not None:
            for name in (norm, bias_of(norm))[: 1 + is_layer_norm]:
                gradients[name] = ctx.floats(f"gradient of {name}", *weight.shape)
                ctx.ops.fill(gradients[name], 0)
            norm_gradient(ctx, dn, x, eps, *gradients.values())
        backward = ctx.ops.layer_norm_backward if is_layer_norm else ctx.ops.rms_norm_backward
        backward(dn, x, weight, eps, dx, accumulate=accumulate)
        if w.sink is not None:
            for name, gradient in gradients.items():
                w.sink.vector(ctx, name, gradient)


def norm_gradient(ctx: Context, dn: Array, x: Array, eps: float, gradient: Array, of_bias: Array | None = None) -> None:
    """gradient (n,) += the gradient of g in n = u g, u = x / rms(x), from dn (T, D), float32: the sum over tokens of
    dn u.

    If all heads share the weight (n,) of one head, D is a multiple of n. With `of_bias` (n,), the norm is a LayerNorm:
    u = (x - mean) / std, and of_bias += the gradient of its bias, the sum over tokens of dn.
    """
    (size,) = gradient.shape
    with ctx.frame():
        ones = ctx.floats("a norm without weight", size)
        ctx.ops.fill(ones, 1)
        unit = ctx.floats("normed without weight", *x.shape)
        if of_bias is None:
            ctx.ops.rms_norm(x, ones, eps, unit)
        else:
            ctx.ops.layer_norm(x, ones, None, eps, unit)
            sums = ctx.floats("sums of dn", size)
            ctx.ops.column_sums(dn, sums)
            ctx.ops.add(of_bias, sums, of_bias)
        shape = (x.shape[0] * x.shape[1] // size, size)
        ctx.ops.column_dots(dn.reshape(*shape), unit.reshape(*shape), gradient)


class Rows(NamedTuple):
    """Rows [first, last) of a stored projection: one of several parts in a tensor, or the whole tensor."""

    stored: str
    first: int
    last: int

    def of(self, w: BlockWeights) -> Projection:
        """Return these rows of the weight and of its adapter. All parts of a stored projection share one h."""
        return w.projections[self.stored].outputs(self.first, self.last)


def row_ranges(sizes: Mapping[str, int], fused: str | None) -> dict[str, Rows]:
    """Return the rows of parts of these sizes: each in its own projection, or one below the other in `fused`."""
    if fused is None:
        return {part: Rows(f"{part}_proj", 0, size) for part, size in sizes.items()}
    ends = accumulate(sizes.values())
    return {part: Rows(fused, end - size, end) for (part, size), end in zip(sizes.items(), ends)}


def by_stored(parts: Mapping[str, Rows], wanted: Iterable[str]) -> dict[str, list[str]]:
    """Group the wanted parts by the stored projection that holds them. A group shares one h."""
    found: dict[str, list[str]] = {}
    for part in wanted:
        found.setdefault(parts[part].stored, []).append(part)
    return found


def stored_shapes(parts: Mapping[str, Rows], inputs: int) -> dict[str, tuple[int, int]]:
    """Return the shapes (out, in) of the stored projections that hold these parts."""
    return {rows.stored: (rows.last, inputs) for rows in parts.values()}  # the last part ends the tensor
