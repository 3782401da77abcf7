"""The interface of adapters. A `Kind` holds the settings (rank, alpha). An `AtProjection` computes at one projection.

A `Projection` (`nn/linear.py`) calls its adapter at fixed points, on the whole matrix or on tiles: rows of W are
outputs, columns of W are inputs. LoRA is the plain case: x' = x, h = s x A^T, b = B^T, y = u.

    x' = change(x)           (T, in), the input of W; most kinds return x
    h  = read(x)             (T, r), summed over tiles of inputs
    u  = x' W^T + h b        (T, out), summed over tiles of inputs; with W's bias, unless `finish` adds it
    y  = finish(u)           (T, out), in place; most kinds change nothing

Backward, from dy (T, out):

    collect(dy, y)           gradients of the values that `finish` uses
    scale_gradient(dy)                dy becomes du, in place
    dh = read_backward(du)   (T, r) = du b^T
    read(x, dh=dh)           gradients of the values that `read` uses: LoRA's dA = dh^T x
    collect_b(h, du)         db = h^T du
    dx from du W and dh      in the product with W if there is `fused_a`, else by `add_to_input`

The caller allocates and frees x, h, u, dy, dh and dx. Gradients are added to arrays that live through the backward pass
of the block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.noise import Draw, Key
from featherback.engine.backend.protocol import Array, Matrix
from featherback.nn.context import Context

Float32 = NDArray[np.float32]
Shape = tuple[int, ...]
Values = Mapping[str, Any]
"""The trained tensors of one projection, or their gradients, by the names of their slots."""
BlockRows = Iterable[tuple[int, int, Float32]]
"""Rows [first, last) of a stored matrix as float32 (n, in), block by block. The consumer may overwrite a block."""


class AtProjection:
    """An adapter at one projection, or at a tile of its outputs or inputs. This base class computes nothing."""

    __slots__ = ()

    width: int = 0
    """r, the columns of h. 0 means that there is no h."""
    b: Any
    """(r, out), if r > 0: h b is added to the product. LoRA's B^T. None: `add_product` adds it."""
    reading: tuple[Array, float] | None = None
    """A (r, in) and s, if `read` computes h = s x A^T. The adapters of several sequences are then read in one call."""
    fused_a: Any = None
    """(r, in): A, if the gradient through `read` is dh A. The kernel of dy W then adds it.

    None: `add_to_input` adds it.
    """
    needs_output: bool = False
    """Whether the output needs its own array, because `finish` changes it and `collect` reads it."""
    adds_bias: bool = False
    """Whether `finish` adds W's bias."""
    changes_input: bool = False
    """Whether W reads `change(x)` instead of x. Then `change_backward` needs x."""

    reads_product: bool = False
    """Whether `product_backward`, which gets u computed again from x, replaces `collect` and `scale_gradient`."""

    def outputs(self, first: int, last: int) -> AtProjection:
        """Return this adapter for outputs [first, last) only."""
        return self

    def inputs(self, first: int, last: int) -> AtProjection:
        """Return this adapter for inputs [first, last) only. `finish` is called on the whole sum, not on a tile."""
        return self

    def change(self, ctx: Context, x: Array) -> Array:
        """Return x' (T, in): an operand of the current frame if `changes_input`, else x itself."""
        return x

    def change_backward(self, ctx: Context, x: Array, d_changed: Array, dx: Array, *, accumulate: bool) -> None:
        """dx (T, in) (+)= the gradient of x, given the gradient of x' (T, in), float32.

        Adds the gradients of its own values.
        """

    def read(
        self, ctx: Context, x: Array, h: Array | None = None, dh: Array | None = None, *, accumulate: bool = False
    ) -> None:
        """h (T, r) (+)= the adapter's reading of x (T, in), if h is given.

        With dh, add gradients: LoRA's dA = dh^T x.
        """

    def read_backward(self, ctx: Context, dy: Array, dh: Array, *, accumulate: bool = False) -> None:
        """dh (T, r) (+)= the gradient of h, from dy (T, out) after `scale_gradient`. LoRA: s dy B."""

    def add_to_input(self, ctx: Context, dh: Array, dx: Array) -> None:
        """dx (T, in) += the gradient through `read`: LoRA's dh A. Called if no product adds it (`fused_a`)."""

    def collect_b(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """db += h^T dy, if gradients are wanted. dy (T, out) after `scale_gradient`."""

    def add_product(self, ctx: Context, h: Array, out: Array) -> None:
        """out (T, out) += what h (T, r) adds to the product. Called if `b` is None."""

    def add_bias(self, ctx: Context, out: Array, bias: Array) -> None:
        """out (T, out) += W's bias, unless `finish` adds it."""
        if not self.adds_bias:
            ctx.ops.scale_columns(out, None, out, bias=bias)

    def finish(self, ctx: Context, out: Array, bias: Array | None) -> None:
        """u (T, out), summed over all inputs, becomes y in place."""

    def collect(self, ctx: Context, dy: Array, y: Array | None, bias: Array | None) -> None:
        """Add the gradients of the values that `finish` uses, if wanted. dy, y (T, out) before `scale_gradient`."""

    def scale_gradient(self, ctx: Context, dy: Array) -> None:
        """dy (T, out), an operand, becomes du in place. Later steps use it as dy."""

    def product_backward(self, ctx: Context, u: Array, dy: Array, du: Array) -> None:
        """du (T, out), an operand, from dy and u (T, out), float32. Called if `reads_product`.

        For a tile of inputs, u is the tile's part of the sum. Adds the gradients of the values that `finish` uses.
        """


class Part(NamedTuple):
    """One trained tensor of a projection: its slot in a layer's flat vector, and its form outside the vector."""

    slot: str
    shape: Shape  # in the flat vector
    stored: Shape  # outside: as it stands beside W (out, in)
    transposed: bool = False  # the flat vector holds the transpose
    by_output: bool = False  # its stored rows are outputs, in Hugging Face's order
    by_input: bool = False  # its stored columns are inputs, in Hugging Face's order

    def to_stored(self, values: Float32, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Float32:
        """Return the tensor in its stored form. `rows` (out,), `columns` (in,): the orders of outputs and inputs."""
        found = (values.swapaxes(-1, -2) if self.transposed else values).reshape(self.stored)
        return np.array(self._ordered(found, rows, columns), order="C")

    def from_stored(self, stored: Float32, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Float32:
        """Invert `to_stored`. `rows` and `columns` are the inverse orders."""
        found = self._ordered(stored, rows, columns)
        return (found.swapaxes(-1, -2) if self.transposed else found).reshape(self.shape)

    def _ordered(self, stored: Float32, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Float32:
        found = stored[rows] if self.by_output else stored
        return found[:, columns] if self.by_input else found


class Setup(NamedTuple):
    """The arguments of `Kind.attach`: the values of one projection, and the arrays for its gradients."""

    name: str  # the projection's
    layer: int
    values: Values
    gradients: Values  # arrays that gradients are added to; empty if no gradients are wanted
    prepared: Any  # (n,), float32: results of `Kind.prepare`; None if the kind prepares nothing
    draw: Draw | None  # the source of random numbers (dropout) in training, else None


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The options of a kind that has none of its own."""


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """A kind of adapter. Its fields are its settings. Projections may have different settings.

    In the methods, `target` is the projection's name and `shape` its (out, in).
    """

    title: ClassVar[str]
    """Name shown to people: "LoRA"."""
    is_low_rank: ClassVar[bool] = False
    """Whether its change of W is s B A, and nothing else."""
    targets: ClassVar[tuple[str, ...]] = ("all",)
    """The projections that it adapts by default."""
    own_options: ClassVar[Collection[str]] = ()
    """Training options that apply to it, but not to every kind."""
    rate_width: ClassVar[int | None] = None
    """The model width for which the usual learning rate is chosen (None: the model's own)."""
    needs_output: ClassVar[bool] = False
    """Whether its gradients read the outputs of projections. Keeping these can then save time."""
    is_branch: ClassVar[bool] = False
    """Whether it is a branch of its own (`branch`). Then it cannot be merged into weights."""
    settings: ClassVar[type] = NoSettings
    """The dataclass of the training options that only this kind has, made by `options.option`."""

    @property
    def width(self) -> int:
        """r, the columns of h."""
        return 0

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers, so that no two passes over a token are the same."""
        return False

    @property
    def adapts_experts(self) -> bool:
        """Whether it can adapt stacks of experts, whose `shape` is (E, out, in), and routers."""
        return False

    @property
    def growth(self) -> float:
        """The factor by which the default learning rate is divided."""
        return 1.0

    @property
    def briefly(self) -> str:
        """The shortest description: "rank 8"."""
        return f"rank {self.width}" if self.width else self.title

    @abstractmethod
    def describe(self) -> str:
        """Return the settings in a few words: "rank 8, alpha 16"."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the settings, keyed by the names of the user's options."""

    def branch(self, width: int) -> Any:
        """Return the `nn.branch.Branch` that follows the branches of a block of this width; called if `is_branch`.

        Its `own` places are the targets. Its weights (`BlockWeights.adapters`) hold what `attach` returns for them.
        """
        raise NotImplementedError

    # The values. Trained; fixed (measured once, from the base model); prepared (computed again after each change).

    @abstractmethod
    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        """Return the trained tensors by slot, in the order of the flat vector."""

    def fixed(self, shape: Shape) -> int:
        """Return the number of float32 values that `measure` takes from the base model's weight, once.

        `prepare` reads them.
        """
        return 0

    def prepared(self, shape: Shape) -> int:
        """Return the number of float32 values that `prepare` computes each time the trained values have changed."""
        return 0

    def measure(self, rows: BlockRows, out: Float32, target: str, layer: int) -> None:
        """Write the fixed values to `out`. Raises FeatherbackError for a weight that this kind cannot adapt."""
        raise NotImplementedError

    def prepare(self, ctx: Context, weight: Matrix, setup: Setup, fixed: Array) -> None:
        """Write the prepared values, `setup.prepared`, for a `weight` (out, in), before the weight is used."""
        raise NotImplementedError

    @abstractmethod
    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        """Write the initial values to `values`, which hold zeros. Random numbers depend only on `key`."""

    def rate(self, slot: str, ratio: float) -> float:
        """Return a tensor's learning rate as a multiple of the run's. `ratio` is LoRA+'s ratio of B to A."""
        return 1.0

    @abstractmethod
    def attach(self, setup: Setup) -> Any:
        """Return the adapter at one projection, an `AtProjection`; for a branch, what the branch computes with."""

    # The rest of this class is for kinds that are not branches.

    def change_of(self, before: Float32, values: Values, first: int, last: int) -> Float32:
        """Return the change (n, in), float32, that merging adds to rows [first, last) of W.

        `before` (n, in) are these rows.
        """
        raise NotImplementedError

    def changes_bias(self, target: str) -> bool:
        """Return whether merging would also have to change the projection's bias."""
        return False
