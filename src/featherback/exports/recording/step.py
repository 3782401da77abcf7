"""Record the step of a model with an adapter, by running the method itself on a device that writes down its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback import methods
from featherback.data.batch import IGNORE, Batch
from featherback.engine.backend.device import Device
from featherback.engine.backend.recording.arrays import Placed, Stored
from featherback.engine.backend.recording.device import Call, Recording, Space
from featherback.engine.formats.matrix import LayerWeights, Matrix
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import Resources
from featherback.models.adapter import Adapter
from featherback.models.model import Model

FLOAT = np.dtype(np.float32)
SCALE = 0.7390851332151607
"""The factor on the loss in a recording. A replay replaces it by its own: no model computes with this number."""
TOKENS, TARGETS = 1 << 28, 1 << 29
"""The recorded batch has these ids and the following: they say which numbers an operation reads."""


@dataclass(frozen=True)
class Vector:
    """Floats of the model: a tensor of its file as it is stored, or `values`, which the recording then contains."""

    name: str
    size: int
    values: NDArray[np.float32] | None


@dataclass(frozen=True)
class Step:
    """A recorded step."""

    model: Model
    adapter: Adapter
    plan: Plan
    rows: int  # most supervised rows of a batch
    calls: Sequence[Call]
    vectors: Sequence[Vector]
    scratch: int  # bytes of the arena
    kept: int  # bytes of the arena for intermediates that are kept


def record(model: Model, adapter: Adapter, tokens: int, compute: str) -> Step:
    """Return the step of a batch of at most `tokens` tokens, or a few more.

    Raises FeatherbackError if the model, adapter or method computes what depends on more than the numbers of a batch.
    """
    if adapter.draws or adapter.layout.fixed.size or adapter.layout.prepared.size or adapter.layout.head is not None:
        raise FeatherbackError("Only the step of an adapter of LoRA without dropout can be recorded.")
    plan = Plan(tokens=_unlike_others(model, adapter, tokens), compute=compute)
    if any(rotary.uses_long_factors(plan.tokens) for rotary in model.rotaries):
        raise FeatherbackError(f"The positions of {model.path.name} depend on the length; record fewer tokens.")
    short = replace(plan, tokens=plan.tokens - 1)
    return _checked(_recorded(model, adapter, plan), _recorded(model, adapter, short))


def _unlike_others(model: Model, adapter: Adapter, tokens: int) -> int:
    """Return a number of tokens, at least `tokens`, that no dimension of the model shares, and neither do the two
    numbers below it: they stand for the tokens and the supervised rows of a batch.
    """
    config, layout = model.config, adapter.layout
    matrices = [m for index in range(len(model.blocks)) for m in model.layer(index).matrices.values()]
    taken = {extent for m in (*matrices, *model.tables) for extent in m.shape}
    taken |= {extent for layer in layout.adapted for view in layout.view(layer, np.empty(layout.size)).values()
              for values in view.values() for extent in values.shape}  # fmt: skip
    taken |= {config.head_dim, config.head_dim // 2, config.num_attention_heads, config.num_key_value_heads}
    plan = Plan(tokens=1)
    multiples = {plan.mlp_tile, plan.vocab_tile}
    taken |= multiples | {m.rows % tile for m in (*matrices, *model.tables) for tile in multiples}
    return next(n for n in count(max(tokens, 3)) if not taken & {n, n - 1, n - 2})


def _recorded(model: Model, adapter: Adapter, plan: Plan) -> Step:
    """Record a batch of one sequence of as many tokens as the plan allows, with all targets that it can have."""
    device, scratch, kept = Recording(plan.compute, plan.tokens - 1), Space("scratch"), Space("kept")
    source = _Places(model, device)
    shapes = _Shapes(model, source)
    checkpoints: Any = _Checkpoints(device)
    weights: Any = source
    resources = Resources(device, scratch, kept, weights, checkpoints, None, None)  # type: ignore[arg-type]
    batch = _batch(plan.tokens)
    values: Any = _Values(adapter, device)
    method = methods.METHODS["mesp"](shapes, values, plan, resources)  # type: ignore[arg-type]
    method.gradients(batch, SCALE, values)
    return Step(model, adapter, plan, plan.tokens - 1, device.calls.calls, source.vectors, scratch.high_water,
                kept.high_water)  # fmt: skip


def _batch(tokens: int) -> Batch:
    places = np.arange(tokens, dtype=np.int32)
    targets = TARGETS + places
    targets[-1] = IGNORE
    return Batch(TOKENS + places, targets, places, np.array([0, tokens], np.int32))


def _checked(step: Step, shorter: Step) -> Step:
    """Return the step if one with a token less has the same operations. Otherwise lengths decide what is computed."""
    names, others = ([call.name for call in each.calls] for each in (step, shorter))
    if names != others:
        raise FeatherbackError(f"What {step.model.path.name} computes depends on the length of a batch.")
    return step


class _Places:
    """The model's weights as places, in the order in which the methods ask for them."""

    def __init__(self, model: Model, device: Recording) -> None:
        self._model, self._calls, self.vectors = model, device.calls, list[Vector]()
        self.layers = [self._layer(index) for index in range(len(model.blocks))]

    def _layer(self, index: int) -> Any:
        weights = self._model.layer(index)
        matrices = {part: self.matrix(part, matrix, index) for part, matrix in weights.matrices.items()}
        vectors = {part: self.vector(part, values, index) for part, values in weights.vectors.items()}
        return LayerWeights(matrices, vectors)  # type: ignore[arg-type]

    def matrix(self, part: str, stored: Matrix, layer: int | None = None) -> Stored:
        """Return the place of a stored matrix."""
        name = self._model.stored_name(part, layer)
        return Stored(name, int(stored.type), stored.shape, (0, 0), stored.shape, stored.row_bytes)

    def vector(self, part: str, values: NDArray[np.float32], layer: int | None = None) -> Placed:
        """Return the place of a vector. A vector that is not stored as it is used is recorded with its values."""
        name = self._model.stored_name(part, layer)
        stored = self._model.store.data(name)
        as_stored = stored.nbytes == values.nbytes and bytes(stored) == values.tobytes()
        self.vectors.append(Vector(name, values.size, None if as_stored else np.array(values, np.float32).reshape(-1)))
        shape = values.shape
        return Placed(f"vector {len(self.vectors) - 1}", 0, shape, FLOAT, shape[-1])

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[Any]:
        yield self.layers[index]

    @contextmanager
    def rows(self, stored: Stored, first: int, last: int) -> Iterator[Stored]:
        part = stored.slice(rows=(first, last))
        yield part
        self.release(part)

    def gather(self, stored: Stored, ids: NDArray[np.int32], out: Placed) -> None:
        self._calls.add("gather_rows", w=stored, ids=ids.copy(), out=out)

    def release(self, matrix: Any) -> None:
        self._calls.add("release", w=matrix)

    release_expert = release

    def expect(self, name: str, first: int, last: int) -> None:
        """Do nothing: dense models do not ask for it."""

    def close(self) -> None:
        """Do nothing."""


class _Shapes:
    """The model with places in place of its weights."""

    def __init__(self, model: Model, source: _Places) -> None:
        self.blocks, self.rotaries, self.embedding_scale = model.blocks, model.rotaries, model.embedding_scale
        self.embed_tokens = source.matrix("embed_tokens", model.embed_tokens)
        tied = model.head.weight is model.embed_tokens
        weight = self.embed_tokens if tied else source.matrix("lm_head", model.head.weight)
        arrays = {each.name: getattr(model.head, each.name) for each in fields(model.head)}
        places = {
            name: source.vector("norm", values) for name, values in arrays.items() if isinstance(values, np.ndarray)
        }
        self.head = replace(model.head, weight=weight, **places)  # type: ignore[arg-type]


class _Values:
    """The adapter's values and gradients: a row per layer, which a replay has."""

    draws = False

    def __init__(self, adapter: Adapter, device: Recording) -> None:
        self.layout, self._calls = adapter.layout, device.calls
        self.parameters = self.fixed = self.measured = self

    def fetch(self, layer: int, out: Placed, on: Device) -> None:
        self._calls.add("fetch_values", layer=layer, out=out)

    @contextmanager
    def gather(self, layer: int, room: Placed, on: Device) -> Iterator[Placed]:
        self._calls.add("fetch_gradients", layer=layer, out=room)
        yield room
        self._calls.add("store_gradients", layer=layer, x=room)


@dataclass
class _Checkpoints:
    """The inputs of the blocks, whose memory a replay has."""

    device: Recording

    def save(self, slot: int, x: Placed, first: int, scratch: Placed) -> None:
        assert first == 0
        self.device.calls.add("save", slot=slot, x=x)

    def load(self, slot: int, out: Placed, first: int) -> None:
        assert first == 0
        self.device.calls.add("load", slot=slot, out=out)

    def release(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
