"""An adapter of a model. Inside Featherback one layer's values are one flat vector (`Layout`).

Outside, names and layouts are PEFT's; q and k rows are permuted at this border where the file's RoPE order differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.models.architecture.names import hf_module, short
from featherback.models.architecture.permute import gguf_to_hf_rows, hf_to_gguf_rows
from featherback.models.form import Form, Layout, Place
from featherback.models.model import Model
from featherback.models.streams import floats_of, give_back, row_blocks
from featherback.nn.adapters import made
from featherback.nn.block import adaptable

Float32 = NDArray[np.float32]
State = dict[str, Float32]


class Adapter:
    """An adapter of `model` as `form` says. `seed` None: all zeros, to be loaded. `path`: file for the parameters
    (None: in RAM). FeatherbackError for an unknown target.
    """

    def __init__(self, model: Model, form: Form, seed: int | None = 0, path: str | Path | None = None) -> None:
        self.model = model
        self.layout = Layout(model.blocks, form)
        self._fixed: PagedArray | None = None
        self.parameters = PagedArray(self.layout.slots.layers, self.layout.size, path)
        if seed is not None:
            self._initialise(seed)

    def __repr__(self) -> str:
        values = sum(slot.size for layer in range(self.layout.slots.layers) for slot in self.layout.slots.layer(layer))
        return (
            f"{self.form.kind.title}({self.form.widest.kind.describe()}, on {short(self.targets)}, {values:,} values, "
            f"of {self.model.path.name!r})"
        )

    @property
    def form(self) -> Form:
        """What it is beside its values."""
        return self.layout.form

    @property
    def targets(self) -> tuple[str, ...]:
        """The projections that are adapted."""
        return self.form.targets

    @property
    def rank(self) -> int:
        """The usual rank; 0 for a kind without."""
        return self.form.kind.width

    @property
    def alpha(self) -> float | None:
        """The usual alpha; None for a kind without."""
        return self.form.options["alpha"]

    @property
    def dropout(self) -> float:
        """The share of the inputs dropped in training."""
        return float(getattr(self.form.kind, "dropout", 0.0))

    @dropout.setter
    def dropout(self, share: float) -> None:
        if share != self.dropout:
            self.layout.form = self.form.replaced(dropout=share)

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers for it."""
        return self.form.kind.draws

    @property
    def layer_size(self) -> int:
        """Parameters of a layer."""
        return self.layout.size

    def layer_state(self, layer: int, values: PagedArray | None = None) -> State:
        """One layer of `values` (default: the parameters; or gradients) with PEFT's names and layouts."""
        flat = np.empty(self.layer_size, np.float32)
        (values or self.parameters).read(layer, flat)
        state = {}
        for target, found in self.layout.view(layer, flat).items():
            rows = self._rows(layer, target, gguf_to_hf_rows)
            for name, part in self.layout.parts(layer, target).items():
                state[self.name(layer, target, name)] = part.outside(found[part.slot], rows)
        return state

    def load_layer_state(self, layer: int, state: State) -> None:
        """Replace one layer's parameters; `state` as from layer_state."""
        flat = np.zeros(self.layer_size, np.float32)  # a layer with less to adapt does not fill it
        for target, found in self.layout.view(layer, flat).items():
            rows = self._rows(layer, target, hf_to_gguf_rows)
            for name, part in self.layout.parts(layer, target).items():
                found[part.slot][...] = part.inside(state[self.name(layer, target, name)], rows)
        self.parameters.write(layer, flat)

    def state(self, values: PagedArray | None = None) -> State:
        """All layers of `values` (default: the parameters): {name: float32}, in PEFT's names and layouts."""
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
        """Name -> shape of every tensor, with PEFT's names and layouts, in order."""
        return {
            self.name(layer, target, name): part.stored
            for layer in range(self.parameters.layers)
            for target in self.layout.kinds(layer)
            for name, part in self.layout.parts(layer, target).items()
        }

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
        fixed = np.empty(self.layout.fixed.size, np.float32)
        for layer in range(self.parameters.layers):
            if fixed.size:
                self.fixed.read(layer, fixed)
            places, kinds = self.layout.fixed.view(layer, fixed), self.layout.kinds(layer)
            for target, values in self.layout.view(layer, flat).items():
                kinds[target].initialise(values, places.get(target), (seed, layer, numbers.index(target)))
            self.parameters.write(layer, flat)

    @property
    def fixed(self) -> PagedArray:
        """What is measured of the base, beside the parameters. All of the model's rows are read for it, once."""
        if self._fixed is None:
            place = self.parameters.path and self.parameters.path.with_name("squares.f32")
            self._fixed = PagedArray(self.parameters.layers, self.layout.fixed.size, place)
            flat = np.zeros(self._fixed.size, np.float32)
            for layer in range(self._fixed.layers):
                self.measured.read(layer, flat)
                self._fixed.write(layer, flat)
        return self._fixed

    @property
    def measured(self) -> Measured:
        """The same, measured whenever it is read."""
        return Measured(self.model, self.layout)

    def close(self) -> None:
        """Close files."""
        self.parameters.close()
        if self._fixed is not None:
            self._fixed.close()

    def name(self, layer: int, target: str, part: str) -> str:
        """PEFT's name of a trained tensor of a projection, without its prefix."""
        return f"{self.module(layer, target)}.{self.layout.parts(layer, target)[part].peft}"

    def module(self, layer: int, target: str) -> str:
        """Hugging Face's name of a projection: "model.layers.3.self_attn.q_proj"."""
        return hf_module(self.model.naming.modules, layer, target)

    def _rows(self, layer: int, target: str, order: Callable[[int, int], NDArray[np.intp]]) -> NDArray[np.intp]:
        """The order of an output's rows beyond the border."""
        return self.model.blocks[layer].row_order(target, order)


class Pair(NamedTuple):
    """Rank and alpha of one projection."""

    rank: int
    alpha: float


class LoRA(Adapter):
    """A low-rank adapter of `model`: A from `seed`, B zero, so that it starts as no change.

    `targets`: "all", "q,v" or a list. `seed` None: all zeros, to be loaded. `path`: file for the parameters (None: in
    RAM). `rslora`: scaled by alpha / sqrt(rank) instead of alpha / rank. `dora`: with magnitudes, at first those of the
    model's rows. `exceptions`: where rank and alpha are others; None: nothing is adapted there.
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
        exceptions: Mapping[Place, Pair | None] | None = None,
        dora: bool = False,
    ) -> None:
        kind = made({"rank": rank, "alpha": alpha, "rslora": rslora, "dora": dora})
        others = {place: pair and replace(kind, **pair._asdict()) for place, pair in (exceptions or {}).items()}
        super().__init__(model, Form(kind, targets, others), seed, path)  # type: ignore[arg-type]


class Measured(NamedTuple):
    """What an adapter's kinds measure of a model's weights."""

    model: Model
    layout: Layout

    def read(self, layer: int, out: Float32) -> None:
        """Measure a layer: out (fixed size,)."""
        matrices, kinds = self.model.layer(layer).matrices, self.layout.kinds(layer)
        for target, values in self.layout.fixed.view(layer, out).items():
            kinds[target].measure(_rows_of(matrices[target]), values, target, layer)

    def fetch(self, layer: int, out: Array, on: Device) -> None:
        """The same, for an array of a device."""
        with on.backend.host(out, write=True) as values:
            self.read(layer, values)


def _rows_of(stored: Matrix) -> Iterator[tuple[int, int, Float32]]:
    """The rows of a matrix as float32, a few at a time."""
    for first, last in row_blocks(stored.rows, stored.cols):
        yield first, last, floats_of(stored.rows_between(first, last))
        give_back(stored.data)
