"""Several adapters at one projection, in a pass over several sequences: each adapter has rows of its own.

    y[a:b] = the output of the adapter of rows [a, b), for each

The product with W is one for all rows. It has no kind of its own: it asks each adapter for its rows, or multiplies the
factors of all of them in one call. There is no backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from featherback.engine.backend.protocol import Array
from featherback.nn.adapters.base import AtProjection
from featherback.nn.context import Context


class AtRows(NamedTuple):
    """The adapter of rows [first, last); None: the rows have none."""

    first: int
    last: int
    adapter: AtProjection | None


@dataclass(slots=True)
class Several(AtProjection):
    """The adapters of all rows, in order and without gaps."""

    name: str
    parts: Sequence[AtRows]
    width: int = field(init=False)
    needs_output: bool = field(init=False)
    adds_bias: bool = field(init=False)
    changes_input: bool = field(init=False)
    _together: Sequence[tuple[int, int, Array, float]] = field(init=False)  # rows, a, s: read in one call
    _apart: Sequence[tuple[int, int, AtProjection]] = field(init=False)  # the others that read x
    _factors: Sequence[tuple[int, int, Array]] = field(init=False)  # rows, b
    b: ClassVar[None] = None  # type: ignore[misc]  # `add_product` adds h b

    def __post_init__(self) -> None:
        """Look at each adapter once, because a pass uses a projection in many small steps."""
        adapters = [part.adapter for part in self.parts if part.adapter is not None]
        self.width = max(adapter.width for adapter in adapters)
        self.needs_output = any(adapter.needs_output for adapter in adapters)
        self.adds_bias = any(adapter.adds_bias for adapter in adapters)
        self.changes_input = any(adapter.changes_input for adapter in adapters)
        reading = [(first, last, each) for first, last, each in self.parts if each is not None and each.width]
        self._together = [(first, last, *each.reading) for first, last, each in reading if each.reading is not None]
        self._apart = [part for part in reading if part[2].reading is None]
        self._factors = [(first, last, each.b) for first, last, each in reading]

    def of_rows(self, first: int, last: int) -> AtProjection | None:
        """Return the adapter of rows [first, last), which have the same one."""
        return next(part.adapter for part in self.parts if part.first <= first and last <= part.last)

    def outputs(self, first: int, last: int) -> Several:
        return self._with([adapter and adapter.outputs(first, last) for _, _, adapter in self.parts])

    def inputs(self, first: int, last: int) -> Several:
        return self._with([adapter and adapter.inputs(first, last) for _, _, adapter in self.parts])

    def _with(self, adapters: Sequence[AtProjection | None]) -> Several:
        return Several(self.name, [part._replace(adapter=each) for part, each in zip(self.parts, adapters)])

    def change(self, ctx: Context, x: Array) -> Array:
        changed = ctx.operands(f"input of {self.name}, changed", *x.shape)
        for first, last, adapter in self.parts:
            with ctx.frame():
                rows = x[first:last]
                ctx.ops.cast(rows if adapter is None else adapter.change(ctx, rows), changed[first:last])
        return changed

    def read(
        self, ctx: Context, x: Array, h: Array | None = None, dh: Array | None = None, *, accumulate: bool = False
    ) -> None:
        """h (T, r) (+)= each adapter's reading of its rows of x, in its first columns."""
        assert h is not None
        assert dh is None, "there is no backward pass"
        if self._together:
            ctx.ops.lora_in_parts(x, self._together, h, accumulate=accumulate)
        for first, last, adapter in self._apart:
            adapter.read(ctx, x[first:last], h[first:last, : adapter.width], accumulate=accumulate)

    def add_product(self, ctx: Context, h: Array, out: Array) -> None:
        """out (T, out) += h b, for the rows of each adapter."""
        if self._factors:
            ctx.ops.lora_out_parts(h, self._factors, out)

    def add_bias(self, ctx: Context, out: Array, bias: Array) -> None:
        """out (T, out) += W's bias, in the rows whose adapter does not add it in `finish`."""
        for first, last, adapter in self.parts:
            if adapter is None or not adapter.adds_bias:
                rows = out[first:last]
                ctx.ops.scale_columns(rows, None, rows, bias=bias)

    def finish(self, ctx: Context, out: Array, bias: Array | None) -> None:
        for first, last, adapter in self.parts:
            if adapter is not None and adapter.needs_output:
                adapter.finish(ctx, out[first:last], bias)
