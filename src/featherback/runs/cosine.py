"""Measures how far an approximated gradient is from the exact one, before training.

It is needed if the plan keeps only slopes of an intermediate (`Encoding.slopes_of`). The gradient of the first batch is
computed twice: by a plan that keeps nothing, which is exact, and by the run's own plan. Their cosine goes to
run.json.
The second gradient is compared layer by layer and never stored, so both need less memory than a step of training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.noise import Draw
from featherback.runs.pass_loop import undone_on_failure
from featherback.runs.record import ApproximateGradient

if TYPE_CHECKING:
    from featherback.data.batch import Batch
    from featherback.engine.backend.device import Device
    from featherback.engine.backend.protocol import Array
    from featherback.engine.host.paged import PagedArray
    from featherback.methods.base import Method
    from featherback.methods.memory.plan import Plan
    from featherback.models.adapter import Adapter
    from featherback.models.model import Model
    from featherback.nn.objectives.base import Objective
    from featherback.runs.run_directory import RunDirectory


def is_needed(run: RunDirectory) -> bool:
    """Return whether a run's plan approximates gradients, and their cosine was not measured for this plan yet."""
    found = run.plan.approximated if run.config.train == "lora" else {}
    gradient = run.record.gradient
    return bool(found) and (gradient is None or gradient.approximated != found)


def measure_cosine(run: RunDirectory, open_model: Callable[..., Model] | None = None) -> None:
    """Record the cosine of the approximated gradient with the exact one. `open_model`: like `models.load`.

    If that fails, everything that was made for a new run is deleted.
    """
    with undone_on_failure(run):
        _measure(run, open_model)


@dataclass
class Comparison:
    """A sink of gradients that compares each layer with its exact gradient, and stores nothing."""

    exact: PagedArray
    sums: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """Layer -> the dot product of both gradients, and the squared norm of each."""

    @contextmanager
    def gather(self, layer: int, room: Array, on: Device) -> Iterator[Array]:
        """Yield `room` (size,), zero, for the layer's gradient."""
        on.ops.fill(room, 0)
        yield room
        exact = np.empty(room.shape, np.float32)
        self.exact.read(layer, exact)
        with on.backend.host(room) as found:
            pairs = ((found, exact), (found, found), (exact, exact))
            dot, own, other = (float(np.einsum("i,i", a, b, dtype=np.float64)) for a, b in pairs)
        self.sums[layer] = dot, own, other

    def cosines(self) -> tuple[float, float]:
        """Return the cosine of the whole gradients, and that of the layer in which it is lowest."""
        whole = tuple(map(sum, zip(*self.sums.values(), strict=True)))
        return _cosine(*whole), min(_cosine(*each) for each in self.sums.values())


def _cosine(dot: float, own: float, other: float) -> float:
    """Return the cosine of two vectors; 1 if both are zero."""
    return dot / math.sqrt(own * other) if own and other else float(own == other)


def cosines(
    plan: Plan, batch: Batch, create: Callable[[Plan], Method], gradients: PagedArray, draw: Draw
) -> tuple[float, float]:
    """Return the cosine of a plan's gradient of `batch` with the exact one, and that of the layer where it is lowest.

    `create` makes the method of a plan. `gradients` holds the exact gradient meanwhile.
    """
    found = Comparison(gradients)
    for each, sink in ((replace(plan, keep={}, encodings={}), gradients), (plan, found)):
        method = create(each)
        method.gradients(batch, 1 / batch.n_terms, sink, draw)
        method.close()
    return found.cosines()


def _measure(run: RunDirectory, open_model: Callable[..., Model] | None) -> None:
    from featherback import methods, models
    from featherback.engine.host.maps import MapWatch
    from featherback.runs.initial_state import first_adapter

    config = run.config
    model = (open_model or models.load)(config.model, config.quantize)
    config.use_machine()
    plan, options = run.plan_of(model.blocks), methods.OPTIONS.make(config.method, config.method_options)
    run.begin_work()
    try:
        states = run.work if plan.states == "file" else None
        adapter = first_adapter(run, model, states and states / "cosine parameters.f32")
        _draw_head(adapter, config.seed)
        parameters = adapter.parameters
        gradients = parameters.zeros_like(parameters.size, states and states / "cosine.f32")
        batch, objective = _first_batch(run, model)

        def create(plan: Plan) -> Method:
            return methods.create(config.method, model, adapter, plan, run.work, options, objective=objective)

        with MapWatch(model.maps, model.close) as maps:
            whole, lowest = cosines(plan, batch, create, gradients, Draw(config.seed, 0, 0))
            maps.check()
        gradients.close()
        adapter.close()
    finally:
        run.remove_work()
    run.update(gradient=ApproximateGradient(approximated=plan.approximated, cosine=whole, lowest_cosine=lowest))


def _draw_head(adapter: Adapter, seed: int) -> None:
    """Replace a trained head of zeros, through which no gradient would reach the layers, by random values."""
    head, random = adapter.layout.head, np.random.default_rng(seed)
    if head is None:
        return
    state = adapter.layer_state(head)
    if not any(values.any() for values in state.values()):
        drawn = {name: random.standard_normal(values.shape, np.float32) for name, values in state.items()}
        adapter.load_layer_state(head, drawn)


def _first_batch(run: RunDirectory, model: Model) -> tuple[Batch, Objective]:
    """Return the run's first batch and the objective to differentiate.

    If the run's own objective needs a pass before training, which comes later, it is the next-token loss.
    """
    from featherback.nn.objectives.next_token import NEXT_TOKEN
    from featherback.runs.stream import stream_of
    from featherback.runs.token_files import examples_of

    config = run.config
    needs_pass = config.criterion.needs_reference or config.teacher is not None
    tokens = examples_of(run, "train", complete=False)
    tokens.check(model.config.vocab_size)
    group = stream_of(config, tokens).take(1)
    assert group is not None  # a run has at least one step
    return next(group.batches), NEXT_TOKEN if needs_pass else config.criterion
