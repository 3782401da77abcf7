"""LoRA (Hu et al., 2021): y = x W^T + (alpha / rank) (x A^T) B^T with A (rank, in) and B (out, rank).

Inside Featherback one layer's parameters are one flat vector: for each target in canonical order A (rank, in), then
B transposed (rank, out). Both factors are then read along rows by the same kernels. With DoRA (Liu et al., 2024) the
target's magnitudes m (out,) follow. Outside, names and layouts are Hugging Face's; q and k rows are permuted at this
border where the file's RoPE order differs.

Adapters that were made elsewhere may have other ranks, other alphas, or no factors at all in some places: `Exceptions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.architecture.names import hf_module, parse_targets, short
from featherback.architecture.permute import gguf_to_hf_rows, hf_to_gguf_rows
from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.layers.block import Block, adaptable
from featherback.layers.linear import Factors
from featherback.models.model import Model
from featherback.models.streams import floats_of, give_back, row_blocks
from featherback.naming import argument
from featherback.noise import uniform
from featherback.parameters.slots import Slot, SlotTable
from featherback.weights.matrix import Matrix

Float32 = NDArray[np.float32]
State = dict[str, Float32]
Place = tuple[int, str]
"""A projection: layer, and target."""


class Pair(NamedTuple):
    """What is said of one projection's factors."""

    rank: int
    alpha: float


PARTS = {"A": "lora_A.weight", "B": "lora_B.weight", "m": "lora_magnitude_vector"}
"""What is trained of a projection, and PEFT's names for it; m with DoRA only."""


Exceptions = Mapping[Place, Pair | None]
"""Where an adapter's factors differ from its rank and alpha. None: there are none."""
NO_EXCEPTIONS: Exceptions = {}


@dataclass(frozen=True)
class Form:
    """What an adapter is beside its values. The scale is alpha / rank, or alpha / sqrt(rank) with `rslora`."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    rslora: bool = False
    exceptions: Exceptions = field(default_factory=dict)
    dora: bool = False

    @property
    def growth(self) -> float:
        """The scale as a multiple of alpha / rank: sqrt(rank) with `rslora`, else 1."""
        usual = Pair(self.most_rank, self.alpha)
        return scale_of(usual, self.rslora) / scale_of(usual, rslora=False)

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of PARTS that it has."""
        return tuple(part for part in PARTS if part != "m" or self.dora)

    @property
    def most_rank(self) -> int:
        """The largest rank of all projections, or the usual one."""
        return max([self.rank, *(pair.rank for pair in self.exceptions.values() if pair is not None)])

    def pair(self, layer: int, target: str) -> Pair | None:
        """Rank and alpha of one projection; None if it has no factors."""
        if target not in self.targets:
            return None
        return self.exceptions.get((layer, target), Pair(self.rank, self.alpha))

    def scale(self, layer: int, target: str) -> float:
        """What the product of one projection's factors is multiplied by."""
        pair = self.pair(layer, target)
        if pair is None:
            raise ValueError(f"{target} of layer {layer} is not adapted")
        return scale_of(pair, self.rslora)


def scale_of(pair: Pair, rslora: bool) -> float:
    """alpha / rank, or, rank-stabilised (Kalajdzievski, 2023), alpha / sqrt(rank)."""
    return pair.alpha / (math.sqrt(pair.rank) if rslora else pair.rank)


class LoRALayout:
    """Where an adapter's factors lie in a layer's flat vector: for each target A (rank, in), then B^T (rank, out), and
    with `dora` m (out,).

    `targets`: as `parse_targets` reads them, "all" being the projections that the blocks have, not each all of them.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        rank: int,
        targets: str | Iterable[str],
        exceptions: Exceptions = NO_EXCEPTIONS,
        dora: bool = False,
    ) -> None:
        self.targets = parse_targets(targets, adaptable(blocks))
        self.exceptions = _absent(blocks, self.targets) | dict(exceptions)
        self._form = Form(rank, 1.0, self.targets, exceptions=self.exceptions, dora=dora)
        self.most_rank = self._form.most_rank
        self._adapted = [
            [target for target in block.projections if self._form.pair(layer, target)]
            for layer, block in enumerate(blocks)
        ]
        self.slots = SlotTable([self._shapes(block, layer) for layer, block in enumerate(blocks)])
        self._columns = SlotTable(
            [
                {target: block.projections[target][:1] for target in self.adapted(layer) if dora}
                for layer, block in enumerate(blocks)
            ]
        )

    @property
    def size(self) -> int:
        """Values of a layer's flat vector."""
        return self.slots.size

    def view(self, layer: int, flat: Any) -> dict[str, Factors]:
        """target -> A (rank, in), B^T (rank, out), m (out,): views of one layer's flat vector (size,)."""
        views = self.slots.view(layer, flat)
        return {
            target: Factors(views[f"{target}.A"], views[f"{target}.B^T"], views.get(f"{target}.m"))
            for target in self.adapted(layer)
        }

    @property
    def columns_size(self) -> int:
        """Outputs of all targets of a layer; 0 without DoRA."""
        return self._columns.size

    def columns(self, layer: int, flat: Any) -> dict[str, Any]:
        """target -> a number per output (out,): views of `flat` (columns_size,)."""
        return self._columns.view(layer, flat)

    def of_layers(self, layers: Sequence[int]) -> LoRALayout:
        """The layout of these layers alone, in vectors of the same size."""
        some = copy(self)
        some.slots, some._columns = self.slots.of_layers(layers), self._columns.of_layers(layers)
        some._adapted = [self._adapted[layer] for layer in layers]
        return some

    def adapted(self, layer: int) -> list[str]:
        """The targets that have factors in a layer."""
        return self._adapted[layer]

    def _shapes(self, block: Block, layer: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for target in self._adapted[layer]:
            if pair := self._form.pair(layer, target):
                out_features, in_features = block.projections[target]
                shapes[f"{target}.A"] = (pair.rank, in_features)
                shapes[f"{target}.B^T"] = (pair.rank, out_features)
                if self._form.dora:
                    shapes[f"{target}.m"] = (out_features,)
        return shapes


def _absent(blocks: Sequence[Block], targets: Sequence[str]) -> dict[Place, Pair | None]:
    """The places without factors, because a layer has no such projection."""
    return {
        (layer, target): None
        for layer, block in enumerate(blocks)
        for target in targets
        if target not in block.projections
    }


def loraplus_rate(ratio: float, slot: Slot) -> float:
    """A tensor's share of the learning rate: A's is 1, B's `ratio` (LoRA+), and m has that of B, as in PEFT."""
    return 1.0 if slot.name.endswith(".A") else ratio


class LoRA:
    """An adapter of `model`: A as in PEFT (Kaiming-uniform, here from `seed`), B zero, so that it starts as no change.

    `targets`: "all", "q,v" or a list. `seed` None: all zeros, to be loaded. `path`: file for the parameters (None: in
    RAM). `rslora`: scaled by alpha / sqrt(rank) instead of alpha / rank. `dora`: with magnitudes, at first those of the
    model's rows.
    FeatherbackError for a rank or an alpha that is not positive, or an unknown target.
    """

    def __init__(
        self,
        model: Model,
        rank: int = 8,
        alpha: float = 16.0,
        targets: str | Iterable[str] = "all",
        seed: int | None = 0,
        path: str | Path | None = None,
        *,
        rslora: bool = False,
        exceptions: Exceptions = NO_EXCEPTIONS,
        dora: bool = False,
    ) -> None:
        if rank < 1:
            raise FeatherbackError(f"The rank is {rank}; it must be at least 1.")
        if not isinstance(rank, (int, np.integer)):
            raise FeatherbackError(f"The rank is {rank}; it must be a whole number.")
        if not (math.isfinite(alpha) and alpha > 0):
            raise FeatherbackError(f"Alpha is {alpha}; it must be a positive number.")
        self.model, self.rank, self.alpha = model, rank, float(alpha)
        self.layout = LoRALayout(model.blocks, rank, targets, exceptions, dora)
        self.targets = self.layout.targets
        self.dropout = 0.0  # share of the inputs dropped in training
        self.form = Form(rank, self.alpha, self.targets, rslora, self.layout.exceptions, dora)
        self._squares: PagedArray | None = None
        self.parameters = PagedArray(self.layout.slots.layers, self.layout.size, path)
        if seed is not None:
            self._initialise(seed)

    def __repr__(self) -> str:
        values = sum(slot.size for layer in range(self.layout.slots.layers) for slot in self.layout.slots.layer(layer))
        scaled = ", rslora" if self.form.rslora else ""
        return (
            f"LoRA(rank {self.layout.most_rank}, alpha {self.alpha:g}{scaled}, on {short(self.targets)}, "
            f"{values:,} values, of {self.model.path.name!r})"
        )

    def scales(self, layer: int) -> dict[str, float]:
        """target -> what the product of its factors is multiplied by."""
        return {target: self.form.scale(layer, target) for target in self.layout.adapted(layer)}

    @property
    def layer_size(self) -> int:
        """Parameters of a layer."""
        return self.layout.size

    def layer_state(self, layer: int, values: PagedArray | None = None) -> State:
        """One layer of `values` (default: the parameters; or gradients) with Hugging Face's names and layouts."""
        flat = np.empty(self.layer_size, np.float32)
        (values or self.parameters).read(layer, flat)
        state = {}
        for target, (a, bt, m) in self.layout.view(layer, flat).items():
            rows = self._rows(layer, target, gguf_to_hf_rows)
            state[self.name(layer, target, "A")] = a.copy()
            state[self.name(layer, target, "B")] = np.ascontiguousarray(bt.T[rows])
            if m is not None:
                state[self.name(layer, target, "m")] = m[rows]
        return state

    def load_layer_state(self, layer: int, state: State) -> None:
        """Replace one layer's parameters; `state` as from layer_state."""
        flat = np.zeros(self.layer_size, np.float32)  # a layer of smaller ranks does not fill it
        for target, (a, bt, m) in self.layout.view(layer, flat).items():
            rows = self._rows(layer, target, hf_to_gguf_rows)
            a[...] = state[self.name(layer, target, "A")]
            bt[...] = state[self.name(layer, target, "B")][rows].T
            if m is not None:
                m[...] = state[self.name(layer, target, "m")][rows]
        self.parameters.write(layer, flat)

    def state(self, values: PagedArray | None = None) -> State:
        """All layers of `values` (default: the parameters): {name: float32}, in Hugging Face's names and layouts."""
        return {
            name: array
            for layer in range(self.parameters.layers)
            for name, array in self.layer_state(layer, values).items()
        }

    def load_state(self, state: State) -> None:
        """Replace all parameters; FeatherbackError naming every missing, unknown, misshapen or non-finite tensor."""
        problems = list(self._problems(state))
        if problems:
            raise FeatherbackError("The adapter does not fit this model: " + "; ".join(problems) + ".")
        for layer in range(self.parameters.layers):
            self.load_layer_state(layer, state)

    @contextmanager
    def holding(self, values: PagedArray) -> Iterator[None]:
        """Within, the parameters are `values` (layers, size), which stay their owner's."""
        own, self.parameters = self.parameters, values
        try:
            yield
        finally:
            self.parameters = own

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, with Hugging Face's names and layouts, in order."""
        return adapter_shapes(self.model, self.form)

    def _problems(self, state: State) -> Iterator[str]:
        expected = self.shapes()
        for name, shape in expected.items():
            if name not in state:
                yield f"{name} is missing"
            elif np.shape(state[name]) != shape:
                yield f"{name} is {np.shape(state[name])}, not {shape}"
            elif not np.isfinite(state[name]).all():
                yield f"{name} holds NaN or infinity"
        for name in state:
            if name not in expected:
                yield f"{name} is unknown"

    def _initialise(self, seed: int) -> None:
        flat, numbers = np.zeros(self.layer_size, np.float32), adaptable(self.model.blocks)
        for layer in range(self.parameters.layers):
            if self.form.dora:
                squares = np.empty(self.layout.columns_size, np.float32)
                self.squares.read(layer, squares)
            for target, (a, _, m) in self.layout.view(layer, flat).items():
                bound = a.shape[1] ** -0.5  # Kaiming-uniform with a = sqrt(5), as nn.Linear and PEFT have it
                a[...] = (2 * uniform((seed, layer, numbers.index(target)), a.size) - 1).reshape(a.shape) * bound
                if m is not None:
                    np.sqrt(self.layout.columns(layer, squares)[target], out=m)
            self.parameters.write(layer, flat)

    @property
    def squares(self) -> PagedArray:
        """||W_i||^2 of every output of a layer's targets, for DoRA; beside the parameters.

        All of the model's rows are read for it, once. FeatherbackError for a row of zeros, which has no direction.
        """
        if self._squares is None:
            place = self.parameters.path and self.parameters.path.with_name("squares.f32")
            self._squares = PagedArray(self.parameters.layers, self.layout.columns_size, place)
            flat = np.zeros(self._squares.size, np.float32)
            for layer in range(self._squares.layers):
                matrices = self.model.layer(layer).matrices
                for target, squares in self.layout.columns(layer, flat).items():
                    squares[...] = squared_rows(matrices[target])
                    if not squares.all():
                        raise FeatherbackError(
                            f"{target} of layer {layer} has a row of zeros, which DoRA cannot give a length; leave "
                            f"{argument('dora')} out, or {target} out of {argument('targets')}."
                        )
                self._squares.write(layer, flat)
        return self._squares

    def close(self) -> None:
        """Close files."""
        self.parameters.close()
        if self._squares is not None:
            self._squares.close()

    def name(self, layer: int, target: str, part: str) -> str:
        """PEFT's name of one of PARTS of a projection, without its prefix."""
        return f"{self.module(layer, target)}.{PARTS[part]}"

    def module(self, layer: int, target: str) -> str:
        """Hugging Face's name of a projection: "model.layers.3.self_attn.q_proj"."""
        return hf_module(self.model.naming.modules, layer, target)

    def _rows(self, layer: int, target: str, order: Callable[[int, int], NDArray[np.intp]]) -> NDArray[np.intp]:
        """The order of B's rows beyond the border."""
        return self.model.blocks[layer].row_order(target, order)


def adapter_shapes(model: Model, form: Form) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of an adapter, with Hugging Face's names and layouts, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, block in enumerate(model.blocks):
        for target in block.projections:
            if pair := form.pair(layer, target):
                module = hf_module(model.naming.modules, layer, target)
                out_features, in_features = block.projections[target]
                sizes = {"A": (pair.rank, in_features), "B": (out_features, pair.rank), "m": (out_features,)}
                shapes |= {f"{module}.{PARTS[part]}": sizes[part] for part in form.parts}
    return shapes


def squared_rows(stored: Matrix, lora: Factors | None = None, scale: float = 1.0) -> Float32:
    """||W_i||^2 (out,), or ||W_i + scale B_i A||^2 with A (r, in) and B^T (r, out); a few rows are held at a time."""
    found = np.empty(stored.rows, np.float32)
    for first, last in row_blocks(stored.rows, stored.cols):
        rows = floats_of(stored.rows_between(first, last))
        with np.errstate(over="ignore", invalid="ignore"):  # of an adapter that does not fit: its loss says so
            if lora is not None:
                rows += np.float32(scale) * (np.ascontiguousarray(lora.bt[:, first:last].T) @ lora.a)
            np.square(rows, out=rows)
            found[first:last] = rows.sum(axis=1, dtype=np.float64)
        give_back(stored.data)
    return found
