"""The interface of adapters. A `Kind` holds the settings (rank, alpha); an `AtProjection` computes at one projection.

A `Projection` (`nn/linear.py`) calls its adapter at fixed points, whole or in tiles: rows of W are outputs, columns of
W are inputs. LoRA is the plain case: x' = x, h = s x A^T, b = B^T, y = u.

    x' = change(x)           (T, in), the input of W; most kinds return x
    h  = read(x)             (T, r), summed over tiles of inputs
    u  = x' W^T + h b        (T, out), summed over tiles of inputs; with W's bias, unless `finish` adds it
    y  = finish(u)           (T, out), in place; most kinds change nothing

Backward, from dy (T, out):

    collect(dy, y)           the gradients of the values that `finish` uses
    weigh(dy)                dy becomes du, in place
    dh = read_backward(du)   (T, r) = du b^T
    read(x, dh=dh)           the gradients of the values that `read` uses: LoRA's dA = dh^T x
    collect_b(h, du)         db = h^T du
    dx from du W and dh      in W's product where `fused_a` allows, else `add_to_input`

The caller takes x, h, u, dy, dh and dx, and frees them. Gradients are added to arrays that live as long as the block is
in its backward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

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
"""Rows [first, last) of a stored matrix as float32 (n, in), block by block. The reader may overwrite a block."""


class AtProjection:
    """An adapter at one projection, or at a tile of its outputs or inputs. This class itself computes nothing."""

    __slots__ = ()

    width: int = 0
    """r, columns of h; 0: there is no h."""
    b: Any
    """(r, out), where r > 0: h b is added to the product. LoRA's B^T."""
    fused_a: Any = None
    """(r, in): A, if `read` gives dx just dh A. Then the kernel of dy W adds it. None: `add_to_input` does."""
    needs_output: bool = False
    """Whether the output needs an array of its own: `finish` changes it, and `collect` reads it."""
    adds_bias: bool = False
    """Whether `finish` adds W's bias."""
    changes_input: bool = False
    """Whether W reads `change(x)` in place of x. Then `change_backward` needs x."""

    reads_product: bool = False
    """`product_backward` takes the place of `collect` and `weigh`, where x is at hand: u is computed again."""

    def outputs(self, first: int, last: int) -> AtProjection:
        """This adapter for outputs [first, last) only."""
        return self

    def inputs(self, first: int, last: int) -> AtProjection:
        """This adapter for inputs [first, last) only. `finish` is called on the whole, not on a tile."""
        return self

    def change(self, ctx: Context, x: Array) -> Array:
        """x' (T, in): an operand of the current frame where `changes_input`, else x itself."""
        return x

    def change_backward(self, ctx: Context, x: Array, d_changed: Array, dx: Array, *, accumulate: bool) -> None:
        """dx (T, in) (+)= the gradient of x from that of x' (T, in), float32. Collect those of its own values."""

    def read(
        self, ctx: Context, x: Array, h: Array | None = None, dh: Array | None = None, *, accumulate: bool = False
    ) -> None:
        """h (T, r) (+)= what is read from x (T, in), if h is given. With dh, collect gradients: LoRA's dA = dh^T x."""

    def read_backward(self, ctx: Context, dy: Array, dh: Array, *, accumulate: bool = False) -> None:
        """dh (T, r) (+)= the gradient of h from dy (T, out), as `weigh` left it. LoRA: s dy B."""

    def add_to_input(self, ctx: Context, dh: Array, dx: Array) -> None:
        """dx (T, in) += the part that comes through `read`: LoRA's dh A. For where no product adds it (`fused_a`)."""

    def collect_b(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """db += h^T dy, if gradients are wanted. dy (T, out): as `weigh` left it."""

    def finish(self, ctx: Context, out: Array, bias: Array | None) -> None:
        """u (T, out), summed over all inputs, becomes y in place."""

    def collect(self, ctx: Context, dy: Array, y: Array | None, bias: Array | None) -> None:
        """Collect the gradients of the values that `finish` uses, if wanted. dy, y (T, out): before `weigh`."""

    def weigh(self, ctx: Context, dy: Array) -> None:
        """dy (T, out), an operand, becomes du in place. All later steps take it as dy."""

    def product_backward(self, ctx: Context, u: Array, dy: Array, du: Array) -> None:
        """du (T, out), an operand, from dy, with u (T, out), float32, where `reads_product`. Of a tile of inputs, u is
        their part of the sum; gradients of what finishes u are collected.
        """


class Part(NamedTuple):
    """One trained tensor of a projection: its slot in a layer's flat vector, and its form in PEFT's files."""

    slot: str
    shape: Shape  # in the flat vector
    peft: str  # PEFT's name, which follows the projection's
    stored: Shape  # PEFT's shape
    transposed: bool = False  # PEFT's is the transpose
    by_output: bool = False  # PEFT's rows are outputs, in Hugging Face's order

    def outside(self, values: Float32, rows: NDArray[np.intp]) -> Float32:
        """The tensor as PEFT stores it. `rows` (out,): the order of outputs."""
        found = (values.T if self.transposed else values).reshape(self.stored)
        return np.ascontiguousarray(found[rows]) if self.by_output else found.copy()

    def inside(self, stored: Float32, rows: NDArray[np.intp]) -> Float32:
        """The inverse of `outside`, with the inverse order."""
        found = stored[rows] if self.by_output else stored
        return (found.T if self.transposed else found).reshape(self.shape)


class Setup(NamedTuple):
    """The arguments of `Kind.attach`: one projection's values, and where its gradients go."""

    name: str  # of the projection
    layer: int
    values: Values
    gradients: Values  # arrays that gradients are added to; empty: no gradients are wanted
    prepared: Any  # (n,), float32: results of `Kind.prepare`; None for kinds that prepare nothing
    draw: Draw | None  # random numbers, such as dropout's, in training; None otherwise


class Entries(Protocol):
    """The entries of PEFT's configuration; FeatherbackError, naming the file, for one that cannot be read."""

    @property
    def where(self) -> str: ...
    def get(self, name: str, default: Any = None) -> Any: ...
    def switch(self, name: str) -> bool: ...
    def targets(self, names: Sequence[str]) -> set[str]:
        """The projections of the model whose modules have these names, or names that end in them."""


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """A kind of adapter with its settings, which are its fields. Projections may have different settings.

    In the methods, `target` is the projection's name and `shape` its (out, in).
    """

    title: ClassVar[str]
    """For people: "LoRA"."""
    formats: ClassVar[Collection[str]] = ()
    """File formats that can hold it, beside PEFT's: "gguf", "mlx"."""
    targets: ClassVar[tuple[str, ...]] = ("all",)
    """What it adapts where nothing is said of it."""
    own_options: ClassVar[Collection[str]] = ()
    """Options of training that mean something to it, but not to every kind."""
    rate_width: ClassVar[int | None] = None
    """The width at which the usual learning rate is taken (None: the model's)."""
    needs_output: ClassVar[bool] = False
    """Whether its gradients read the outputs of projections, so that these are worth keeping."""

    @property
    def width(self) -> int:
        """r, columns of h."""
        return 0

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers: then no two passes of a token are the same."""
        return False

    @property
    def growth(self) -> float:
        """The default learning rate is divided by this."""
        return 1.0

    @property
    def briefly(self) -> str:
        """In two words: "rank 8"."""
        return f"rank {self.width}" if self.width else self.title

    @abstractmethod
    def describe(self) -> str:
        """The settings in a few words: "rank 8, alpha 16"."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The settings by the names of the user's options."""

    # The values: trained; fixed, measured from the base model once; prepared, again after each change.

    @abstractmethod
    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        """The trained tensors by slot, in the order of the flat vector."""

    def fixed(self, shape: Shape) -> int:
        """Number of float32 values that `measure` finds in the base model's weight, once. `prepare` reads them."""
        return 0

    def prepared(self, shape: Shape) -> int:
        """Number of float32 values that `prepare` computes each time that the trained values have changed."""
        return 0

    def measure(self, rows: BlockRows, out: Float32, target: str, layer: int) -> None:
        """Write the fixed values to `out`. FeatherbackError for a weight that this kind cannot adapt."""
        raise NotImplementedError

    def prepare(self, ctx: Context, weight: Matrix, setup: Setup, fixed: Array) -> None:
        """Write the prepared values, `setup.prepared`, for a `weight` (out, in), before the weight is used."""
        raise NotImplementedError

    @abstractmethod
    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        """Write the initial values. `values` hold zeros. Random numbers depend on `key` only."""

    def rate(self, slot: str, ratio: float) -> float:
        """A tensor's learning rate as a multiple of the run's. `ratio`: LoRA+'s, of B to A."""
        return 1.0

    @abstractmethod
    def attach(self, setup: Setup) -> AtProjection:
        """The adapter at one projection."""

    @abstractmethod
    def change_of(self, before: Float32, values: Values, first: int, last: int) -> Float32:
        """The change (n, in), float32, that merging adds to rows [first, last) of W, `before` (n, in)."""

    def changes_bias(self, target: str) -> bool:
        """Whether merging would have to change the bias of a projection as well."""
        return False

    # PEFT's files.

    peft_type: ClassVar[str]
    peft_mark: ClassVar[str]
    """In tensor names, the text that follows the module's name: ".lora_"."""
    peft_neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Entries of the configuration that would change the computation, with their values that change nothing."""
    peft_read: ClassVar[Collection[str]] = ()
    """Entries named use_... or ..._config that are known: they are read, or change nothing."""
    peft_patterns: ClassVar[Mapping[str, str]] = {}
    """Setting -> the entry with its exceptions, by module: "rank": "rank_pattern"."""

    @classmethod
    def in_peft(cls, entries: Mapping[str, Any]) -> bool:
        """Whether a PEFT configuration describes an adapter of this kind."""
        return entries.get("peft_type") == cls.peft_type

    @classmethod
    @abstractmethod
    def from_peft(cls, entries: Entries) -> Kind:
        """The settings of an adapter, but for the exceptions of single modules."""

    @classmethod
    def peft_setting(cls, where: str, setting: str, name: str, value: Any) -> Any:
        """A value of a setting of `peft_patterns`, checked. `name`: the setting's name in messages."""
        return value

    @abstractmethod
    def peft_entries(
        self, unusual: Mapping[str, Kind | None], targets: Mapping[str, Any], modules: Mapping[str, str]
    ) -> dict[str, Any]:
        """The entries of the configuration that follow the base model's name, with those of `targets`.

        `unusual`: the exceptions by module, None where a module is not adapted. `modules`: the projection that each
        name in target_modules stands for.
        """
