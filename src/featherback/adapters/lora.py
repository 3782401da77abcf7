"""LoRA (Hu et al., 2021): y = x W^T + (alpha / rank) (x A^T) B^T with A (rank, in) and B (out, rank).

Inside Featherback one layer's parameters are one flat vector: for each target in canonical order A (rank, in), then
B transposed (rank, out). Both factors are then read along rows by the same kernels. Outside, names and layouts are
Hugging Face's; q and k rows are permuted at this border where the file's RoPE order differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.architecture.names import hf_module, parse_targets
from featherback.architecture.permute import gguf_to_hf_rows, hf_to_gguf_rows
from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.layers.block import Block
from featherback.models.model import Model
from featherback.noise import uniform
from featherback.parameters.slots import SlotTable

Float32 = NDArray[np.float32]
State = dict[str, Float32]


class LoRALayout:
    """Where an adapter's factors lie in a layer's flat vector: for each target A (rank, in), then B^T (rank, out).

    `targets`: as `parse_targets` reads them, "all" being the projections that the blocks have.
    """

    def __init__(self, blocks: Sequence[Block], rank: int, targets: str | Iterable[str]) -> None:
        self.rank, self.targets = rank, parse_targets(targets, blocks[0].projections)
        self.slots = SlotTable([self._shapes(block) for block in blocks])

    @property
    def size(self) -> int:
        """Values of a layer's flat vector."""
        return self.slots.size

    def view(self, layer: int, flat: Any) -> dict[str, tuple[Any, Any]]:
        """target -> (A (rank, in), B^T (rank, out)): views of one layer's flat vector (size,)."""
        views = self.slots.view(layer, flat)
        return {target: (views[f"{target}.A"], views[f"{target}.B^T"]) for target in self.targets}

    def _shapes(self, block: Block) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        for target in self.targets:
            out_features, in_features = block.projections[target]
            shapes[f"{target}.A"] = (self.rank, in_features)
            shapes[f"{target}.B^T"] = (self.rank, out_features)
        return shapes


class LoRA:
    """An adapter of `model`: A as in PEFT (Kaiming-uniform, here from `seed`), B zero, so that it starts as no change.

    `targets`: "all", "q,v" or a list. `path`: file for the parameters (None: in RAM).
    FeatherbackError for a rank or an alpha that is not positive, or an unknown target.
    """

    def __init__(
        self,
        model: Model,
        rank: int = 8,
        alpha: float = 16.0,
        targets: str | Iterable[str] = "all",
        seed: int = 0,
        path: str | Path | None = None,
    ) -> None:
        if rank < 1:
            raise FeatherbackError(f"The rank is {rank}; it must be at least 1.")
        if not isinstance(rank, (int, np.integer)):
            raise FeatherbackError(f"The rank is {rank}; it must be a whole number.")
        if not (math.isfinite(alpha) and alpha > 0):
            raise FeatherbackError(f"Alpha is {alpha}; it must be a positive number.")
        self.model, self.rank, self.alpha = model, rank, float(alpha)
        self.layout = LoRALayout(model.blocks, rank, targets)
        self.targets = self.layout.targets
        self.parameters = PagedArray(self.layout.slots.layers, self.layout.size, path)
        self._initialise(seed)

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank

    @property
    def layer_size(self) -> int:
        """Parameters of a layer."""
        return self.layout.size

    def layer_state(self, layer: int, values: PagedArray | None = None) -> State:
        """One layer of `values` (default: the parameters; or gradients) with Hugging Face's names and layouts."""
        flat = np.empty(self.layer_size, np.float32)
        (values or self.parameters).read(layer, flat)
        state = {}
        for target, (a, bt) in self.layout.view(layer, flat).items():
            b = bt.T[self._rows(layer, target, gguf_to_hf_rows)]
            state[f"{self.module(layer, target)}.lora_A.weight"] = a.copy()
            state[f"{self.module(layer, target)}.lora_B.weight"] = np.ascontiguousarray(b)
        return state

    def load_layer_state(self, layer: int, state: State) -> None:
        """Replace one layer's parameters; `state` as from layer_state."""
        flat = np.empty(self.layer_size, np.float32)
        for target, (a, bt) in self.layout.view(layer, flat).items():
            b = state[f"{self.module(layer, target)}.lora_B.weight"]
            a[...] = state[f"{self.module(layer, target)}.lora_A.weight"]
            bt[...] = b[self._rows(layer, target, hf_to_gguf_rows)].T
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

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, with Hugging Face's names and layouts, in order."""
        return adapter_shapes(self.model, self.rank, self.targets)

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
        flat, numbers = np.zeros(self.layer_size, np.float32), list(self.model.blocks[0].projections)
        for layer in range(self.parameters.layers):
            for target, (a, _) in self.layout.view(layer, flat).items():
                bound = a.shape[1] ** -0.5  # Kaiming-uniform with a = sqrt(5), as nn.Linear and PEFT have it
                a[...] = (2 * uniform((seed, layer, numbers.index(target)), a.size) - 1).reshape(
                    a.shape
                ) * bound
            self.parameters.write(layer, flat)

    def module(self, layer: int, target: str) -> str:
        """Hugging Face's name of a projection: "model.layers.3.self_attn.q_proj"."""
        return hf_module(self.model.naming.modules, layer, target)

    def _rows(
        self, layer: int, target: str, order: Callable[[int, int], NDArray[np.intp]]
    ) -> NDArray[np.intp]:
        """The order of B's rows beyond the border."""
        attention = self.model.blocks[layer].attention
        rows = np.arange(self.model.blocks[layer].projections[target][0])
        for part, heads in attention.interleaved_heads.items():
            stored, first, last = attention.parts[part]
            if stored == target:
                rows[first:last] = first + order(heads, last - first)
        return rows


def adapter_shapes(model: Model, rank: int, targets: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of an adapter, with Hugging Face's names and layouts, in order."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, block in enumerate(model.blocks):
        for target in targets:
            module = hf_module(model.naming.modules, layer, target)
            out_features, in_features = block.projections[target]
            shapes[f"{module}.lora_A.weight"] = (rank, in_features)
            shapes[f"{module}.lora_B.weight"] = (out_features, rank)
    return shapes
