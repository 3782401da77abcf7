"""LoRA (Hu et al., 2021): y = x W^T + (alpha / rank) (x A^T) B^T with A (rank, in) and B (out, rank).

Inside Featherback one layer's parameters are one flat vector: for each target in canonical order A (rank, in), then
B transposed (rank, out). Both factors are then read along rows by the same kernels. Outside, names and layouts are
Hugging Face's; q and k rows are permuted at this border where the file's RoPE order differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.adapters.shapes import layer_size, projection_shapes
from featherback.errors import FeatherbackError
from featherback.host.paged import PagedArray
from featherback.models.model import Model
from featherback.models.names import TARGETS, hf_module, parse_targets
from featherback.models.permute import gguf_to_hf_rows, hf_to_gguf_rows
from featherback.noise import uniform

Float32 = NDArray[np.float32]
State = dict[str, Float32]
Pair = tuple[Float32, Float32]


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
        self.targets = parse_targets(targets)
        self.config = model.config
        shapes = projection_shapes(self.config)
        self._shapes = {target: shapes[target] for target in self.targets}
        self.layer_size = layer_size(self.config, rank, self.targets)
        self.parameters = PagedArray(self.config.num_hidden_layers, self.layer_size, path)
        self._initialise(seed)

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank

    def view(self, flat: Float32) -> dict[str, Pair]:
        """target -> (A (rank, in), B^T (rank, out)): views of one layer's flat vector (layer_size,)."""
        pairs, at = {}, 0
        for target, (out_features, in_features) in self._shapes.items():
            middle, end = at + self.rank * in_features, at + self.rank * (in_features + out_features)
            pairs[target] = (
                flat[at:middle].reshape(self.rank, in_features),
                flat[middle:end].reshape(self.rank, out_features),
            )
            at = end
        return pairs

    def layer_state(self, layer: int, values: PagedArray | None = None) -> State:
        """One layer of `values` (default: the parameters; or gradients) with Hugging Face's names and layouts."""
        flat = np.empty(self.layer_size, np.float32)
        (values or self.parameters).read(layer, flat)
        state = {}
        for target, (a, bt) in self.view(flat).items():
            rows = self._rows(target, gguf_to_hf_rows)
            b = bt.T if rows is None else bt.T[rows]
            state[f"{hf_module(layer, target)}.lora_A.weight"] = a.copy()
            state[f"{hf_module(layer, target)}.lora_B.weight"] = np.ascontiguousarray(b)
        return state

    def load_layer_state(self, layer: int, state: State) -> None:
        """Replace one layer's parameters; `state` as from layer_state."""
        flat = np.empty(self.layer_size, np.float32)
        for target, (a, bt) in self.view(flat).items():
            rows = self._rows(target, hf_to_gguf_rows)
            b = state[f"{hf_module(layer, target)}.lora_B.weight"]
            a[...] = state[f"{hf_module(layer, target)}.lora_A.weight"]
            bt[...] = (b if rows is None else b[rows]).T
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

    def _problems(self, state: State) -> Iterator[str]:
        expected = {}
        for layer in range(self.parameters.layers):
            for target, (out_features, in_features) in self._shapes.items():
                expected[f"{hf_module(layer, target)}.lora_A.weight"] = (self.rank, in_features)
                expected[f"{hf_module(layer, target)}.lora_B.weight"] = (out_features, self.rank)
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
        flat = np.zeros(self.layer_size, np.float32)
        for layer in range(self.parameters.layers):
            for target, (a, _) in self.view(flat).items():
                bound = a.shape[1] ** -0.5  # Kaiming-uniform with a = sqrt(5), as nn.Linear and PEFT have it
                a[...] = (2 * uniform((seed, layer, TARGETS.index(target)), a.size) - 1).reshape(
                    a.shape
                ) * bound
            self.parameters.write(layer, flat)

    def _rows(self, target: str, order: Callable[[int, int], NDArray[np.intp]]) -> NDArray[np.intp] | None:
        """The permutation of B's rows at the border, if this projection has one."""
        heads = {"q_proj": self.config.num_attention_heads, "k_proj": self.config.num_key_value_heads}.get(
            target
        )
        if heads is None or not self.config.rope_interleaved:
            return None
        return order(heads, self._shapes[target][0])
