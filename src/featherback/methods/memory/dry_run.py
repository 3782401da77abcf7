"""What a plan holds and computes, counted by running the method itself on a device without memory or arithmetic.

One block of each kind runs, with every token supervised: the most that a batch can ask for. Without an adapter and
without trained weights only a loss is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.batch import Batch
from featherback.engine.backend.arena import ALIGNMENT
from featherback.engine.backend.counting import Blank, BlankMatrix, Counting, Ledger, Work
from featherback.engine.backend.device import Device
from featherback.engine.formats.matrix import LayerWeights
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.methods.memory.resources import Resources
from featherback.methods.memory.stored import StoredSizes
from featherback.methods.whole.gradients import Trains, WeightGradients
from featherback.methods.whole.optimizer import WholeOptimizer
from featherback.methods.whole.places import Place
from featherback.models.form import Layout
from featherback.nn.block import rotaries
from featherback.nn.context import Context
from featherback.nn.loss import Head
from featherback.optim.rule import Rule, Turn

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Account:
    """What one training process needs under a plan, beside what files and optimiser hold."""

    scratch: int  # bytes of the scratch arena
    kept: int  # bytes of the intermediates that all layers keep
    mapped: int  # bytes of the file that are mapped at most, if weights go matrix by matrix
    work: Work  # of a step
    passed: Work  # of a loss alone


def account(job: Job, plan: Plan) -> Account:
    """The account of a step, the same for all places where a plan's arrays and weights may lie."""
    key = (*_shape(plan), plan.mlp_tile, plan.vocab_tile, plan.keep_h, *plan.keep.items(), *plan.encodings.items())
    if key not in job.accounts:
        job.accounts[key] = _whole(job, plan)
    return job.accounts[key]


def _shape(plan: Plan) -> tuple[object, ...]:
    return plan.tokens, plan.compute, plan.chunk


def _whole(job: Job, plan: Plan) -> Account:
    """The account of a step. Layers that are alike are run once and counted as often as there are of them."""
    around, returned = _once(job, plan, None), _returned(job, plan)
    runs = {kind: _once(job, plan, *kind) for kind in returned}
    work, passed = around.work, around.passed
    for kind, count in returned.items():
        work = work.plus(runs[kind].work, count)
    passing = {layer: run.passed for (layer, _), run in runs.items()}  # whatever is kept of it
    for layer, count in Counter(job.alike).items():
        work = work.plus(passing[layer], count * (1 - job.returned / job.layers))
        passed = passed.plus(passing[layer], count)
    scratch = max(run.scratch for run in [around, *runs.values()])
    if plan.chunked:  # a short batch passes whole, its rotary tables at hand throughout
        scratch = max(scratch, account(job, replace(plan, tokens=plan.chunk_tokens)).scratch)
    if job.returned == job.layers:
        kept = sum(runs[job.alike[layer], plan.kept(layer)].kept for layer in range(job.layers))
    else:  # it may be any: those that keep most
        kept = sum(
            count * max(run.kept for (_, kept), run in runs.items() if kept == names)
            for names, count in Counter(map(plan.kept, range(job.returned))).items()
        )
    return Account(scratch, kept, max(run.mapped for run in runs.values()), work, passed)


Kind = tuple[int, tuple[str, ...]]
"""A layer, the first of those like it, and what is kept of it."""


def _returned(job: Job, plan: Plan) -> dict[Kind, float]:
    """Kind -> how many such layers a step goes back through.

    Where it goes back through some, they are each layer as often, and the plan's layers count them alone: an average.
    """
    if job.returned == job.layers:
        return dict(Counter((job.alike[layer], plan.kept(layer)) for layer in range(job.layers)))
    alike, places = Counter(job.alike), Counter(map(plan.kept, range(job.returned)))
    return {
        (layer, names): count * times / job.layers
        for (layer, count), (names, times) in product(alike.items(), places.items())
    }


def _once(job: Job, plan: Plan, layer: int | None, kept: tuple[str, ...] = ()) -> Account:
    """One layer's part of a step, or the part around the layers; plans that differ in nothing it sees share it."""
    key: tuple[object, ...] = (*_shape(plan), plan.vocab_tile)
    if layer is not None:
        encodings = {name: each for name, each in plan.encodings.items() if name in kept}
        plan = replace(plan, keep=dict.fromkeys(kept, job.layers), encodings=encodings)
        key = (*_shape(plan), plan.mlp_tile, plan.keep_h, layer, kept, *encodings.items())
    if key not in job.accounts:
        part = partial(_around, job) if layer is None else partial(_inside, job, layer)
        found = _in_chunks(plan, part)
        if plan.chunked and layer is not None:
            # However tokens are cut, a query sees the same keys, and attention's work is counted by such pairs.
            whole = _once(job, replace(plan, chunk=None), layer, kept)
            found = replace(
                found,
                work=replace(found.work, attention=whole.work.attention),
                passed=replace(found.passed, attention=whole.passed.attention),
            )
        job.accounts[key] = found
    return job.accounts[key]


def _in_chunks(plan: Plan, run: Callable[[Plan], Account]) -> Account:
    """The account of many chunks, but for attention's work, from those of a few: usually two and three.

    Chunks differ only in the keys that they see, so all but attention's work is affine in their number. Where a chunk
    is so short that the rows of one do not fill the arena's alignment, memory is affine over periods of several.
    """
    count, period = -(-plan.tokens // plan.chunk_tokens), ALIGNMENT // gcd(ALIGNMENT, plan.chunk_tokens)
    fewest = 2 + (count - 2) % period
    if count <= fewest + period:
        return run(plan)
    few, more = (
        run(replace(plan, tokens=plan.tokens - (count - n) * plan.chunk_tokens)) for n in (fewest, fewest + period)
    )
    return _continued(few, more, (count - fewest) // period - 1)


def _continued(few: Account, more: Account, times: int) -> Account:
    """What comes after `more` and `times` more steps like that from `few` to it."""
    return replace(
        more,
        scratch=more.scratch + times * (more.scratch - few.scratch),
        kept=more.kept + times * (more.kept - few.kept),
        work=more.work.plus(more.work.plus(few.work, -1), times),
        passed=more.passed.plus(more.passed.plus(few.passed, -1), times),
    )


def _inside(job: Job, layer: int, plan: Plan) -> Account:
    """One layer's part of a step."""
    run, without = (run_step(job, plan, layers, job.head.slice(rows=(0, 1))) for layers in ([layer], []))
    return replace(run, work=run.work.plus(without.work, -1), passed=run.passed.plus(without.passed, -1))


def _around(job: Job, plan: Plan) -> Account:
    """The part around the layers."""
    return run_step(job, plan, [], job.head)


def step_ledger(job: Job, plan: Plan) -> Ledger:
    """Every array of a step of a model with but the first layer, in the order of its birth."""
    ledger = Ledger()
    run_step(job, plan, [0], job.head, ledger)
    return ledger


def run_step(job: Job, plan: Plan, layers: Sequence[int], head: BlankMatrix, ledger: Ledger | None = None) -> Account:
    """A step of a model that has only these layers, and this output head; its arrays are written down in `ledger`."""
    backend = Counting(plan.compute)
    model = _Shapes(job, layers, head)
    adapter = None
    if job.form is not None:
        adapter = BlankAdapter(job.layout.of_layers(layers) if layers else job.layout, job.form.kind.draws)
    scratch, intermediates, store = ledger or Ledger(), Ledger(), NoStore()
    weights: Any = BlankWeights(job, layers, backend)
    resources = Resources(backend, scratch, intermediates, weights, store, store)
    plan = replace(plan, keep=Counter(name for layer in layers for name in plan.kept(layer)))
    batch = _full_batch(job, plan)
    if adapter is not None:
        job.method(model, adapter, plan, resources, job.options, job.objective).gradients(batch, 1.0, _NoSink())
    elif job.whole is not None:
        method = job.method(model, None, plan, resources, job.options, job.objective)
        tied, trained = job.config.tie_word_embeddings, job.whole.trained(job.config, model.blocks, layers)
        sink = WeightGradients(model.head, weights, 1.0, tied, opened(job.whole.rule, trained), trained)
        method.gradients(batch, 1.0, sink)
    work = replace(backend.ops.work)
    # Held-out data pass without a backward pass, and none of their intermediates are kept.
    held_out = Ledger()
    job.method(model, adapter, plan, replace(resources, scratch=held_out), job.options).loss(batch)
    most = max(scratch.high_water, held_out.high_water)
    passed = backend.ops.work.plus(work, -1)
    return Account(most, intermediates.high_water, backend.ops.most_mapped, work, passed)


def _full_batch(job: Job, plan: Plan) -> Batch:
    """A batch of the most tokens, in sequences as long as they may be, every token supervised."""
    lengths = [job.sequence] * (plan.tokens // job.sequence) + [plan.tokens % job.sequence]
    cu_seqlens = np.cumsum([0, *(n for n in lengths if n)], dtype=np.int32)
    zeros = np.zeros(plan.tokens, np.int32)
    return job.objective.fullest(Batch(zeros, zeros, zeros, cu_seqlens))


def opened(rule: Rule, trained: Mapping[Place, tuple[int, int]]) -> Trains:
    """An optimiser at work on weights and states that are not there."""
    numbers = {place: number for number, place in enumerate(trained)}
    return WholeOptimizer(rule, _NoRows(), _NoStates(rule, trained), Turn(1, 0.0), numbers).train


class _NoRows:
    """Weights that are not there, in a file of 16 bits."""

    def read(self, ctx: Context, place: Place, rows: slice, out: Blank) -> None:
        with ctx.frame():
            ctx.scratch.take("weights, stored", out.shape, np.uint16)

    def write(self, ctx: Context, place: Place, rows: slice, values: Blank, step: int) -> None:
        self.read(ctx, place, rows, values)


@dataclass(frozen=True)
class _NoStates:
    """States in files that are not there."""

    rule: Rule
    trained: Mapping[Place, tuple[int, int]]

    @contextmanager
    def part(self, ctx: Context, place: Place, name: str, first: int, count: int | None) -> Iterator[Blank]:
        if count is None:
            count = self.rule.state_sizes(self.trained[place], place.role)[name] - first
        with ctx.frame():
            yield ctx.floats(name, count)


class _Shapes:
    """A model that is shapes alone."""

    def __init__(self, job: Job, layers: Sequence[int], head: Any) -> None:
        self.blocks = [job.blocks[layer] for layer in layers]
        self.rotaries = rotaries(job.blocks)  # of all layers: their tables exist whichever is in use
        width = job.config.hidden_size
        self.embed_tokens = BlankMatrix((job.config.vocab_size, width), job.head.row_bytes)
        self.embedding_scale = 1.0
        self.head = Head(Blank((width,), FLOAT), head, 1.0)


class BlankAdapter:
    """An adapter that is a layout alone."""

    def __init__(self, layout: Layout, draws: bool) -> None:
        self.layout, self.draws = layout, draws
        self.parameters = self.fixed = self.measured = self

    def fetch(self, layer: int, out: Blank, on: Device) -> None:
        """There is nothing to read."""


class BlankWeights:
    """Weights that are shapes alone: those of some layers of a model, and its tables."""

    def __init__(self, sizes: StoredSizes, layers: Sequence[int], backend: Counting) -> None:
        self._sizes, self._layers, self.release = sizes, layers, backend.ops.release

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        layer = self._layers[index]
        shapes = self._sizes.blocks[layer].vectors
        vectors = {name: Blank(shape, FLOAT) for name, shape in shapes.items()}
        yield LayerWeights(self._sizes.stored[layer], vectors)  # type: ignore[arg-type]

    @contextmanager
    def rows(self, stored: Any, first: int, last: int) -> Iterator[BlankMatrix]:
        yield Counting.matrix(stored).slice(rows=(first, last))

    def gather(self, stored: Any, ids: NDArray[np.int32], out: Blank) -> None:
        """There is nothing to gather."""

    def close(self) -> None:
        """Nothing is held."""


class NoStore:
    """Rows that are not kept."""

    def save(self, slot: int, x: Blank, first: int, scratch: Blank) -> None:
        """Nothing is written."""

    def load(self, slot: int, out: Blank, first: int) -> None:
        """Nothing is read."""

    def close(self) -> None:
        """Nothing is held."""


class _NoSink:
    """A sink that discards gradients."""

    @contextmanager
    def gather(self, layer: int, room: Blank, on: Device) -> Iterator[Blank]:
        yield room
