"""What an adapter is to a layer: a `Kind` with its settings for every projection, and what it computes there.

A projection asks its adapter at fixed points, in tiles: rows of W are outputs, columns of W are inputs.

    x' = change(x)           what W reads (T, in); most kinds leave it alone
    h  = read(x)             (T, r), summed over tiles of inputs
    u  = x' W^T + h b        (T, out), summed over tiles of inputs; W's bias is added unless the adapter does that
    y  = finish(u)           (T, out); most kinds leave it alone

Backward, from dy (T, out): `collect` the gradients of what finishes u, and `weigh` dy to become du. Then
dh = du b^T, db = h^T du; `read` again with dh for the gradients of what reads; and dx from du W and dh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
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
"""The trained tensors of one projection by the names of their slots, or the gradients of these."""
BlockRows = Iterable[tuple[int, int, Float32]]
"""Rows [first, last) of a stored matrix as float32 (n, in), some at a time; whoever reads them may overwrite them."""


class AtProjection:
    """What an adapter computes at one projection, or at a tile of its outputs or inputs. Here: nothing."""

    __slots__ = ()

    width: int = 0
    """r, columns of h; 0: nothing is read of x, and nothing is added to the product."""
    b: Any
    """(r, out), where r > 0: h b is added to the product."""
    fused_a: Any = None
    """(r, in), where dx += dh A is all that `read` means to dx: the product's own kernel adds it."""
    needs_output: bool = False
    """The finished output has an array of its own: `finish` changes it, and `collect` reads it."""
    adds_bias: bool = False
    """`finish` adds W's bias."""
    changes_input: bool = False
    """W reads `change(x)`; the gradient of that is turned into that of x with x at hand."""

    reads_product: bool = False
    """`product_backward` takes the place of `collect` and `weigh`, where x is at hand: u is computed again."""

    def outputs(self, first: int, last: int) -> AtProjection:
        """Of outputs [first, last)."""
        return self

    def inputs(self, first: int, last: int) -> AtProjection:
        """Of inputs [first, last). The sum over all inputs is finished by the whole."""
        return self

    def change(self, ctx: Context, x: Array) -> Array:
        """x' (T, in), an operand of the current frame, where `changes_input`."""
        return x

    def change_backward(self, ctx: Context, x: Array, d_changed: Array, dx: Array, *, accumulate: bool) -> None:
        """dx (T, in) (+)= the gradient of x from that of x' (T, in), float32; that of what changes x is collected."""

    def read(
        self, ctx: Context, x: Array, h: Array | None = None, dh: Array | None = None, *, accumulate: bool = False
    ) -> None:
        """h (T, r) (+)= what is read of x (T, in), if there is h. With dh, gradients of what reads are collected."""

    def read_backward(self, ctx: Context, dy: Array, dh: Array, *, accumulate: bool = False) -> None:
        """dh (T, r) (+)= the gradient of h from dy (T, out), as `weigh` left it."""

    def add_to_input(self, ctx: Context, dh: Array, dx: Array) -> None:
        """dx (T, in) += what comes through `read`, where `fused_a` is None or no product takes it along."""

    def collect_b(self, ctx: Context, h: Array | None, dy: Array) -> None:
        """db += h^T dy, if it is wanted."""

    def finish(self, ctx: Context, out: Array, bias: Array | None) -> None:
        """u (T, out), whole, becomes y."""

    def collect(self, ctx: Context, dy: Array, y: Array | None, bias: Array | None) -> None:
        """Collect the gradients of what `finish` does, if they are wanted; dy (T, out) as before `weigh`."""

    def weigh(self, ctx: Context, dy: Array) -> None:
        """dy (T, out), an operand, becomes du, which all that follows takes for dy."""

    def product_backward(self, ctx: Context, u: Array, dy: Array, du: Array) -> None:
        """du (T, out), an operand, from dy, with u (T, out), float32, where `reads_product`. Of a tile of inputs, u is
        their part of the sum; gradients of what finishes u are collected.
        """


class Part(NamedTuple):
    """One trained tensor of a projection: where it lies in a layer's flat vector, and how PEFT keeps it."""

    slot: str
    shape: Shape  # in the flat vector
    peft: str  # PEFT's name, behind the projection's
    stored: Shape  # PEFT's shape
    transposed: bool = False  # PEFT's is the transpose
    by_output: bool = False  # PEFT's rows are outputs, in Hugging Face's order

    def outside(self, values: Float32, rows: NDArray[np.intp]) -> Float32:
        """As PEFT keeps it; `rows` (out,): the order of outputs."""
        found = (values.T if self.transposed else values).reshape(self.stored)
        return np.ascontiguousarray(found[rows]) if self.by_output else found.copy()

    def inside(self, stored: Float32, rows: NDArray[np.intp]) -> Float32:
        """The inverse of `outside`, with the inverse order."""
        found = stored[rows] if self.by_output else stored
        return (found.T if self.transposed else found).reshape(self.shape)


class Setup(NamedTuple):
    """What `Kind.attach` makes an adapter of at one projection."""

    name: str  # of the projection
    layer: int
    values: Values
    gradients: Values  # where they are collected; empty: they are not wanted
    prepared: Any  # (prepared size,), from `Kind.prepare`; None for kinds without
    draw: Draw | None  # random numbers, in training


class Entries(Protocol):
    """The entries of PEFT's configuration; FeatherbackError, naming the file, for one that cannot be read."""

    @property
    def where(self) -> str: ...
    def get(self, name: str, default: Any = None) -> Any: ...
    def switch(self, name: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """How a projection is adapted; its fields are its settings, which need not be the same for all projections.

    `target` is the projection's name, `shape` its (out, in).
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
    """Its gradients read finished outputs, which are worth keeping."""

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
        """What the usual learning rate is divided by."""
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
        """The settings as a user's options name them."""

    # What is trained, and what lies beside it.

    @abstractmethod
    def parts(self, target: str, shape: Shape) -> dict[str, Part]:
        """The trained tensors in the order of the flat vector."""

    def fixed(self, shape: Shape) -> int:
        """float32 values that are measured of the base's weights once, and read by `prepare`."""
        return 0

    def prepared(self, shape: Shape) -> int:
        """float32 values that `prepare` finds each time that the trained values changed."""
        return 0

    def measure(self, rows: BlockRows, out: Float32, target: str, layer: int) -> None:
        """Find the fixed values; FeatherbackError for weights that this kind cannot adapt."""
        raise NotImplementedError

    def prepare(self, ctx: Context, weight: Matrix, setup: Setup, fixed: Array) -> None:
        """Find the prepared values, `setup.prepared`, of a `weight` (out, in) before it is used."""
        raise NotImplementedError

    @abstractmethod
    def initialise(self, values: Values, fixed: Float32 | None, key: Key) -> None:
        """Write the values before the first step into zeros; random numbers are those of `key`."""

    def rate(self, slot: str, ratio: float) -> float:
        """A tensor's share of the learning rate; `ratio`: LoRA+'s."""
        return 1.0

    @abstractmethod
    def attach(self, setup: Setup) -> AtProjection:
        """What it computes at a projection."""

    @abstractmethod
    def change_of(self, before: Float32, values: Values, first: int, last: int) -> Float32:
        """What merging adds to rows [first, last) of W, `before` (n, in)."""

    def changes_bias(self, target: str) -> bool:
        """Whether merging would have to change the bias of a projection as well."""
        return False

    # PEFT's files.

    peft_type: ClassVar[str]
    peft_mark: ClassVar[str]
    """What follows a module's name in those of its tensors: ".lora_"."""
    peft_neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Entries of the configuration that change what is computed, with the values that change nothing."""
    peft_read: ClassVar[Collection[str]] = ()
    """Entries named use_... or ..._config that are read, or change nothing."""
    peft_patterns: ClassVar[Mapping[str, str]] = {}
    """Setting -> the entry that has it for some modules: "rank": "rank_pattern"."""

    @classmethod
    def in_peft(cls, entries: Mapping[str, Any]) -> bool:
        """Whether a PEFT configuration seems to describe this kind."""
        return entries.get("peft_type") == cls.peft_type

    @classmethod
    @abstractmethod
    def from_peft(cls, entries: Entries) -> Kind:
        """The usual settings of an adapter."""

    @classmethod
    def peft_setting(cls, where: str, setting: str, name: str, value: Any) -> Any:
        """A value of one of `peft_patterns`, checked; `name` is what messages call it."""
        return value

    @abstractmethod
    def peft_entries(self, unusual: Mapping[str, Kind | None], targets: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of the configuration after the base's name, `targets` among them; `unusual`: by module."""
