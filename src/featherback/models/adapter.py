"""Adapters of a model, of any kind (`nn/adapters/`). The values of a layer are one flat vector (`Layout`).

Callers see PEFT's names and layouts. If the model file stores the rows of q and k in another order, reading and writing
permutes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats import fingerprint
from featherback.engine.formats.matrix import Matrix
from featherback.engine.host.paged import LayerRows, PagedArray
from featherback.errors import FeatherbackError
from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows
from featherback.models.architecture.layer_choice import ALL, described_layers, layer_words
from featherback.models.architecture.names import hf_module, short
from featherback.models.form import Form, LayerTarget, Layout
from featherback.models.model import Model
from featherback.models.streams import floats_of, row_blocks, unmap_pages
from featherback.nn.adapters import made
from featherback.nn.block import adaptable

Float32 = NDArray[np.float32]
State = dict[str, Float32]

PEFT_NAMES = {"A": "lora_A.weight", "B": "lora_B.weight", "m": "lora_magnitude_vector", "l": "ia3_l"}
"""Trained tensor -> its name in PEFT, which follows the projection's name. Others keep their own names."""


class Adapter:
    """An adapter of `model`, of the kinds in `form`.

    `seed`: for the initial values; None: all zeros, to be loaded. `path`: the file for the parameters; None: in RAM.
    Raises FeatherbackError for an unknown target.
    """

    def __init__(self, model: Model, form: Form, seed: int | None = 0, path: str | Path | None = None) -> None:
        self.model = model
        self.layout = Layout(model.blocks, form)
        self._fixed: PagedArray | None = None
        self.parameters = PagedArray(self.layout.slots.layers, self.layout.size, path, self.layout.adapted)
        if seed is not None:
            self._initialise(seed)

    def __repr__(self) -> str:
        return (
            f"{self.form.kind.title}({self.form.widest.kind.describe()}, on {short(self.targets)}, "
            f"{described_layers(self.form.layers)}{self.layout.values:,} values, of {self.model.path.name!r})"
        )

    @property
    def form(self) -> Form:
        """The kind, targets and exceptions of the adapter."""
        return self.layout.form

    @property
    def targets(self) -> tuple[str, ...]:
        """The adapted projections."""
        return self.form.targets

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are adapted."""
        return self.layout.layers

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the scores of its trained head; empty if it has none."""
        return self.form.outputs

    @property
    def rank(self) -> int:
        """The rank of projections that are not exceptions; 0 for a kind without rank."""
        return self.form.kind.width

    @property
    def alpha(self) -> float | None:
        """The alpha of projections that are not exceptions; None for a kind without alpha."""
        return self.form.options["alpha"]

    @property
    def dropout(self) -> float:
        """The share of inputs that dropout sets to zero in training."""
        return float(getattr(self.form.kind, "dropout", 0.0))

    @dropout.setter
    def dropout(self, share: float) -> None:
        if share != self.dropout:
            self.layout.form = self.form.replaced(dropout=share)

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers for this kind, for example for dropout."""
        return self.form.kind.draws

    @property
    def layer_size(self) -> int:
        """The number of parameters of a layer."""
        return self.layout.size

    def layer_state(self, layer: int, values: PagedArray | None = None) -> State:
        """Return one layer of `values` (default: the parameters) as {name: float32}, in PEFT's names and layouts."""
        return {
            self.name(layer, target, part): self.factor(layer, target, part, values)
            for target in self.layout.targets(layer)
            for part in self.layout.parts(layer, target)
        }

    def factor(self, layer: int, target: str, part: str, values: PagedArray | None = None) -> Float32:
        """Return one tensor of `values` (default: the parameters), in PEFT's layout. Nothing else is read."""
        about = self.layout.parts(layer, target)[part]
        slot = self.layout.slot(layer, target, about)
        flat = np.empty(slot.size, np.float32)
        (values or self.parameters).read(layer, flat, slot.start)
        orders = [np.argsort(order) for order in self.orders(layer, target)]
        return about.to_stored(flat.reshape(slot.shape), *orders)

    def load_layer_state(self, layer: int, state: State) -> None:
        """Replace the parameters of a layer. `state`: as `layer_state` returns it."""
        flat = np.zeros(self.layer_size, np.float32)  # a layer with fewer projections does not fill the vector
        for target, found in self.layout.view(layer, flat).items():
            orders = self.orders(layer, target)
            for name, part in self.layout.parts(layer, target).items():
                found[part.slot][...] = part.from_stored(state[self.name(layer, target, name)], *orders)
        self.parameters.write(layer, flat)

    def state(self, values: PagedArray | None = None) -> State:
        """Return all layers of `values` (default: the parameters) as {name: float32}, in PEFT's names and layouts."""
        return {name: array for layer in self.layout.adapted for name, array in self.layer_state(layer, values).items()}

    def load_state(self, state: State) -> None:
        """Replace all parameters.

        Raises FeatherbackError, which names every tensor that is missing, unknown, not finite or of another shape.
        """
        problems = list(self._problems(state))
        if problems:
            raise FeatherbackError("The adapter does not fit this model: " + "; ".join(problems) + ".")
        for layer in self.layout.adapted:
            self.load_layer_state(layer, state)

    def on(self, model: Model) -> Adapter:
        """Return this adapter for `model`: the one that it was made for, or the same file opened again.

        Both adapters have the same values. Raises FeatherbackError for another model.
        """
        if model is self.model:
            return self
        if fingerprint.of_store(model.store) != fingerprint.of_store(self.model.store):
            raise FeatherbackError(
                f"The adapter was made for the model {self.model.path}, and this is {model.path}. Open that model, or "
                f"load the adapter for this one: adapter = featherback.LoRA(model, ...); adapter.load_state(state)."
            )
        other = copy(self)
        other.model, other.layout = model, Layout(model.blocks, self.form)
        return other

    @contextmanager
    def holding(self, values: PagedArray) -> Iterator[None]:
        """Use `values`, shape (layers, size), as the parameters inside the context. The caller closes them."""
        own, self.parameters = self.parameters, values
        try:
            yield
        finally:
            self.parameters = own

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, in PEFT's names and layouts, in order."""
        return {
            self.name(layer, target, name): part.stored
            for layer in self.layout.adapted
            for target in self.layout.targets(layer)
            for name, part in self.layout.parts(layer, target).items()
        }

    def _problems(self, state: State) -> Iterator[str]:
        expected = self.shapes()
        for name, shape in expected.items():
            if name not in state:
                yield f"{name} is missing"
            elif np.shape(state[name]) != shape:
                yield f"{name} has shape {np.shape(state[name])}, not {shape}"
            elif not np.isfinite(state[name]).all():
                yield f"{name} holds NaN or infinity"
        for name in state:
            if name not in expected:
                yield f"{name} is unknown"

    def _initialise(self, seed: int) -> None:
        flat, numbers = np.zeros(self.layer_size, np.float32), adaptable(self.layout.blocks)
        fixed = np.empty(self.layout.fixed.size, np.float32)
        for layer in self.layout.layers:  # a trained head begins as zeros
            if fixed.size:
                self.fixed.read(layer, fixed)
            places, kinds = self.layout.fixed.view(layer, fixed), self.layout.kinds(layer)
            for target, values in self.layout.view(layer, flat).items():
                kinds[target].initialise(values, places.get(target), (seed, layer, numbers.index(target)))
            self.parameters.write(layer, flat)

    @property
    def fixed(self) -> PagedArray:
        """Values measured from the base model's weights (for DoRA, squared row norms).

        The first access reads all weights of the adapted projections.
        """
        if self._fixed is None:
            place = self.parameters.path and self.parameters.path.with_name("squares.f32")
            self._fixed = self.parameters.zeros_like(self.layout.fixed.size, place)
            flat = np.zeros(self._fixed.size, np.float32)
            for layer in self._fixed.rows:
                self.measured.read(layer, flat)
                self._fixed.write(layer, flat)
        return self._fixed

    @property
    def measured(self) -> Measured:
        """The same values, but measured again at each read, which needs no storage."""
        return Measured(self.model, self.layout)

    def close(self) -> None:
        """Close the files of the parameters and of the fixed values."""
        self.parameters.close()
        if self._fixed is not None:
            self._fixed.close()

    def name(self, layer: int, target: str, part: str) -> str:
        """The name of a trained tensor in PEFT, without PEFT's prefix."""
        return f"{self.module(layer, target)}.{PEFT_NAMES.get(part, part)}"

    def module(self, layer: int, target: str) -> str:
        """The name of a projection in Hugging Face's model, such as "model.layers.3.self_attn.q_proj"."""
        if layer == self.layout.head:
            return target
        return hf_module(self.model.naming.modules, layer, target)

    def orders(self, layer: int, target: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The indices that turn PEFT's order of outputs and of inputs into that of the model file."""
        if layer == self.layout.head:
            return np.empty(0, np.intp), np.empty(0, np.intp)  # its only part has no such order
        block = self.layout.blocks[layer]
        return block.row_order(target, hf_to_gguf_rows), block.column_order(target)


class Pair(NamedTuple):
    """The rank and alpha of a projection."""

    rank: int
    alpha: float


class LoRA(Adapter):
    """A low-rank adapter of `model`. A is drawn from `seed` and B is zero, so the adapter begins without effect.

    `targets`: "all", "q,v" or a list of names. `seed` None: all values are zero, to be loaded. `path`: the file for the
    parameters; None: in RAM. `rslora`: the scale is alpha / sqrt(rank) instead of alpha / rank. `dora`: train also a
    magnitude per row, which begins as the length of the model's row. `exceptions`: projections with another rank and
    alpha; None: not adapted. `layers`: the adapted layers: "all", "last:8", "last:25%", "0,5,10-20", or a list of them.

    Raises FeatherbackError for a rank or an alpha that is not positive, for an unknown target, and for layers that the
    model does not have.
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
        exceptions: Mapping[LayerTarget, Pair | None] | None = None,
        dora: bool = False,
        layers: str | int | Iterable[str | int] = ALL,
    ) -> None:
        kind = made({"rank": rank, "alpha": alpha, "rslora": rslora, "dora": dora})
        others = {place: pair and replace(kind, **pair._asdict()) for place, pair in (exceptions or {}).items()}
        form = Form(kind, targets, others, layer_words(layers))  # type: ignore[arg-type]
        super().__init__(model, form, seed, path)


@dataclass(frozen=True)
class Measured(LayerRows):
    """The fixed values of an adapter's kinds (squared row norms, for DoRA), measured anew at each read."""

    model: Model
    layout: Layout

    def read(self, layer: int, out: Float32) -> None:
        """Measure a layer into `out`, shape (layout.fixed.size,)."""
        matrices, kinds = self.model.layer(layer).matrices, self.layout.kinds(layer)
        for target, values in self.layout.fixed.view(layer, out).items():
            kinds[target].measure(_rows_of(matrices[target]), values, target, layer)


def _rows_of(stored: Matrix) -> Iterator[tuple[int, int, Float32]]:
    """Yield (first row, last row, values) of a matrix: a few rows at a time, as float32."""
    for first, last in row_blocks(stored.rows, stored.cols):
        yield first, last, floats_of(stored.rows_between(first, last))
        unmap_pages(stored.data)
