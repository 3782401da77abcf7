"""Count what a plan holds and computes, by running the method itself on a device without memory or arithmetic.

One block of each kind runs, with every token supervised, which is the largest possible batch. Without an adapter or
trained weights, only the loss runs.
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
from featherback.methods.whole.gradients import TrainWeight, WeightGradients
from featherback.methods.whole.optimizer import WholeOptimizer
from featherback.methods.whole.trained_weights import WeightId
from featherback.models import families
from featherback.models.form import Layout
from featherback.nn.block import rotaries
from featherback.nn.context import Context
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.optim.rule import Rule, StepArgs

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Account:
    """Memory and work of one training process under a plan, without the model's file and the optimiser."""

    scratch: int  # bytes of the scratch arena
    kept: int  # bytes of the kept intermediates, all layers together
    mapped: int  # most bytes of the file that are mapped at a time, if weights are released matrix by matrix
    work: Work  # the work of a step
    loss_only: Work  # the work of a forward pass for the loss only


def account(job: Job, plan: Plan) -> Account:
    """Return the account of a step. It does not depend on where the plan's arrays and weights are stored."""
    key = (*_shape(plan), plan.mlp_tile, plan.vocab_tile, plan.keep_h, *plan.keep.items(), *plan.encodings.items())
    if key not in job.accounts:
        job.accounts[key] = _whole(job, plan)
    return job.accounts[key]


def _shape(plan: Plan) -> tuple[object, ...]:
    return plan.tokens, plan.compute, plan.chunk


def _whole(job: Job, plan: Plan) -> Account:
    """Compute the account of a step. Equal layers run once and count as often as they occur."""
    around, backward = _shared_account(job, plan, None), _backward_layers(job, plan)
    runs = {kind: _shared_account(job, plan, *kind) for kind in backward}
    work, passed = around.work, around.loss_only
    for kind, count in backward.items():
        work = work.plus(runs[kind].work, count)
    passing = {layer: run.loss_only for (layer, _), run in runs.items()}  # does not depend on what is kept
    for layer, count in Counter(job.first_equal).items():
        if layer >= job.lowest:
            work = work.plus(passing[layer], count * (1 - job.backward_count / (job.layers - job.lowest)))
        passed = passed.plus(passing[layer], count)
    scratch = max(run.scratch for run in [around, *runs.values()])
    if plan.chunked:  # a short batch passes as a whole, with all its rotary tables in memory
        scratch = max(scratch, account(job, replace(plan, tokens=plan.chunk_tokens)).scratch)
    if job.backward_count == job.layers - job.lowest:
        places = enumerate(job.first_equal[job.lowest :])
        kept = sum(runs[layer, plan.kept(place)].kept for place, layer in places)
    else:  # any layers may be selected: assume the layers that keep most
        kept = sum(
            count * max(run.kept for (_, kept), run in runs.items() if kept == names)
            for names, count in Counter(map(plan.kept, range(job.backward_count))).items()
        )
    return Account(scratch, kept, max(run.mapped for run in runs.values()), work, passed)


Kind = tuple[int, tuple[str, ...]]
"""A layer (the first of its equals), and what is kept of it."""


def _backward_layers(job: Job, plan: Plan) -> dict[Kind, float]:
    """Return kind -> number of such layers that have a backward pass in a step, or never have one.

    The layers below the lowest trained one never have one, and keep nothing; their account is that of a forward pass.
    If a method selects only some of the others, each is selected equally often, so the numbers are averages. A plan's
    layer positions then count only the selected layers.
    """
    below: dict[Kind, float] = dict(Counter((layer, ()) for layer in job.first_equal[: job.lowest]))
    others = job.first_equal[job.lowest :]
    if job.backward_count == len(others):
        return below | Counter((layer, plan.kept(place)) for place, layer in enumerate(others))
    equal_layers, positions = Counter(others), Counter(map(plan.kept, range(job.backward_count))) or {(): 0}
    return below | {
        (layer, names): count * times / len(others)
        for (layer, count), (names, times) in product(equal_layers.items(), positions.items())
    }


def _shared_account(job: Job, plan: Plan, layer: int | None, kept: tuple[str, ...] = ()) -> Account:
    """Return the account of one layer, or of the part outside the layers. Plans with the same result share it."""
    key: tuple[object, ...] = (*_shape(plan), plan.vocab_tile)
    if layer is not None:
        encodings = {name: each for name, each in plan.encodings.items() if name in kept}
        plan = replace(plan, keep=dict.fromkeys(kept, job.layers), encodings=encodings)
        key = (*_shape(plan), plan.mlp_tile, plan.keep_h, layer, kept, *encodings.items())
    if key not in job.accounts:
        part = partial(_outside_account, job) if layer is None else partial(_layer_account, job, layer)
        found = _in_chunks(plan, part)
        if plan.chunked and layer is not None:
            # A query sees the same keys however tokens are cut. Attention's work counts pairs of a query and a key.
            whole = _shared_account(job, replace(plan, chunk=None), layer, kept)
            found = replace(
                found,
                work=replace(found.work, attention=whole.work.attention),
                loss_only=replace(found.loss_only, attention=whole.loss_only.attention),
            )
        job.accounts[key] = found
    return job.accounts[key]


def _in_chunks(plan: Plan, run: Callable[[Plan], Account]) -> Account:
    """Derive the account of many chunks from a few, usually two and three. Does not cover attention's work.

    Chunks differ only in the keys that they see, so everything but attention's work is affine in their number. If a
    chunk is too short to fill the arena's alignment, memory is affine over periods of several chunks.
    """
    count, period = -(-plan.tokens // plan.chunk_tokens), ALIGNMENT // gcd(ALIGNMENT, plan.chunk_tokens)
    fewest = 2 + (count - 2) % period
    if count <= fewest + period:
        return run(plan)
    few, more = (
        run(replace(plan, tokens=plan.tokens - (count - n) * plan.chunk_tokens)) for n in (fewest, fewest + period)
    )
    return _extrapolated(few, more, (count - fewest) // period - 1)


def _extrapolated(few: Account, more: Account, times: int) -> Account:
    """Extrapolate linearly: return `more` plus `times` times the difference between `more` and `few`."""
    return replace(
        more,
        scratch=more.scratch + times * (more.scratch - few.scratch),
        kept=more.kept + times * (more.kept - few.kept),
        work=more.work.plus(more.work.plus(few.work, -1), times),
        loss_only=more.loss_only.plus(more.loss_only.plus(few.loss_only, -1), times),
    )


def _layer_account(job: Job, layer: int, plan: Plan) -> Account:
    """Compute the account of one layer."""
    run, without = (run_step(job, plan, layers, job.head.slice(rows=(0, 1))) for layers in ([layer], []))
    return replace(run, work=run.work.plus(without.work, -1), loss_only=run.loss_only.plus(without.loss_only, -1))


def _outside_account(job: Job, plan: Plan) -> Account:
    """Compute the account of the part outside the layers."""
    return run_step(job, plan, [], job.head)


def step_ledger(job: Job, plan: Plan) -> Ledger:
    """Return every array of a step, in the order of allocation, for a model with only the lowest trained layer."""
    ledger = Ledger()
    run_step(job, plan, [job.lowest], job.head, ledger)
    return ledger


def run_step(job: Job, plan: Plan, layers: Sequence[int], head: BlankMatrix, ledger: Ledger | None = None) -> Account:
    """Run a step of a model with only these layers and this output head. `ledger` records its arrays."""
    backend = Counting(plan.compute)
    model = _Shapes(job, layers, head)
    adapter = None
    if job.form is not None:
        adapter = BlankAdapter(job.layout.of_layers(layers), job.form.kind.draws)
    scratch, intermediates, store = ledger or Ledger(), Ledger(), NoStore()
    weights: Any = BlankWeights(job, layers, backend)
    resources = Resources(backend, scratch, intermediates, weights, store, store, store)
    plan = replace(plan, keep=Counter(name for layer in layers for name in plan.kept(layer)))
    batch = _full_batch(job, plan)
    if job.trains and adapter is not None:
        job.method(model, adapter, plan, resources, job.options, job.objective).gradients(batch, 1.0, _NoSink())
    elif job.trains and job.whole is not None:
        method = job.method(model, None, plan, resources, job.options, job.objective)
        tied, trained = job.config.tie_word_embeddings, job.whole.trained(job.config, model.blocks, layers)
        sink = WeightGradients(model.head, weights, 1.0, tied, counting_optimizer(job.whole.rule, trained), trained)
        method.gradients(batch, 1.0, sink)
    step = replace(backend.ops.work)
    # Held-out data only need a forward pass, and keep no intermediates.
    held_out = Ledger()
    passing = job.method(model, adapter, plan, replace(resources, scratch=held_out), job.options, job.objective)
    passing.loss(batch, objective=NEXT_TOKEN if job.objective.of_logits else job.objective)
    most = max(scratch.high_water, held_out.high_water)
    passed = backend.ops.work.plus(step, -1)
    work = step if job.trains else passed
    return Account(most, intermediates.high_water, backend.ops.most_mapped, work, passed)


def _full_batch(job: Job, plan: Plan) -> Batch:
    """Return the largest batch, in sequences as long as allowed, with every token supervised."""
    lengths = [job.sequence] * (plan.tokens // job.sequence) + [plan.tokens % job.sequence]
    cu_seqlens = np.cumsum([0, *(n for n in lengths if n)], dtype=np.int32)
    zeros = np.zeros(plan.tokens, np.int32)
    return job.objective.fullest(Batch(zeros, zeros, zeros, cu_seqlens))


def counting_optimizer(rule: Rule, trained: Mapping[WeightId, tuple[int, int]]) -> TrainWeight:
    """Return an optimiser for weights and states without contents."""
    numbers = {place: number for number, place in enumerate(trained)}
    return WholeOptimizer(rule, _NoRows(), _NoStates(rule, trained), StepArgs(1, 0.0), numbers).train


class _NoRows:
    """Weights without contents, in a file of 16-bit values."""

    def read(self, ctx: Context, place: WeightId, rows: slice, out: Blank) -> None:
        with ctx.frame():
            ctx.scratch.take("weights, stored", out.shape, np.uint16)

    def write(self, ctx: Context, place: WeightId, rows: slice, values: Blank, step: int) -> None:
        self.read(ctx, place, rows, values)


@dataclass(frozen=True)
class _NoStates:
    """Optimiser states that are only counted: shapes without values, as if they were in files."""

    rule: Rule
    trained: Mapping[WeightId, tuple[int, int]]

    @contextmanager
    def part(self, ctx: Context, place: WeightId, name: str, first: int, count: int | None) -> Iterator[Blank]:
        if count is None:
            count = self.rule.state_sizes(self.trained[place], place.role)[name] - first
        with ctx.frame():
            yield ctx.floats(name, count)


class _Shapes:
    """A model that has shapes only."""

    def __init__(self, job: Job, layers: Sequence[int], head: Any) -> None:
        self.blocks = [job.blocks[layer] for layer in layers]
        self.rotaries = rotaries(job.blocks)  # of all layers: all tables exist, whichever layer is in use
        width = job.config.hidden_size
        self.embed_tokens = BlankMatrix((job.config.vocab_size, width), job.head.row_bytes)
        self.embedding_scale = 1.0
        family = families.family_of(job.config)
        vectors = {part: Blank(shape, FLOAT) for part, shape in family.top_vectors(job.config).items()}
        self.head = replace(family.head(job.config, Blank((width,), FLOAT), head, vectors), softcap=0.0)


class BlankAdapter:
    """An adapter that has a layout only."""

    def __init__(self, layout: Layout, draws: bool) -> None:
        self.layout, self.draws = layout, draws
        self.parameters = self.fixed = self.measured = self

    def fetch(self, layer: int, out: Blank, on: Device) -> None:
        """Do nothing."""


class BlankWeights:
    """Weights that have shapes only: some layers of a model, and its tables."""

    def __init__(self, sizes: StoredSizes, layers: Sequence[int], backend: Counting) -> None:
        self._sizes, self._layers, self._ops = sizes, layers, backend.ops
        self.release = self.release_expert = backend.ops.release
        self._current = 0

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        self._current = layer = self._layers[index]
        shapes = self._sizes.blocks[layer].vectors
        vectors = {name: Blank(shape, FLOAT) for name, shape in shapes.items()}
        yield LayerWeights(self._sizes.stored[layer], vectors)  # type: ignore[arg-type]

    def expect(self, name: str, first: int, last: int) -> None:
        """Count the rows as read from the file."""
        self._ops.work.read += (last - first) * self._sizes.stored[self._current][name].row_bytes

    @contextmanager
    def rows(self, stored: Any, first: int, last: int) -> Iterator[BlankMatrix]:
        yield Counting.matrix(stored).slice(rows=(first, last))

    def gather(self, stored: Any, ids: NDArray[np.int32], out: Blank) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class NoStore:
    """A store that drops its rows."""

    def save(self, slot: int, x: Blank, first: int, scratch: Blank) -> None:
        """Do nothing."""

    def load(self, slot: int, out: Blank, first: int) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _NoSink:
    """A sink that discards gradients."""

    @contextmanager
    def gather(self, layer: int, room: Blank, on: Device) -> Iterator[Blank]:
        yield room
