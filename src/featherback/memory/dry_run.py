"""What a plan holds and computes, counted by running the method itself on a device without memory or arithmetic.

One block of each kind runs, with every token supervised: the most that a batch can ask for. Without targets there is no
adapter, and only a loss is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.backend.arena import ALIGNMENT
from featherback.backend.counting import Blank, BlankMatrix, Counting, Ledger, Work
from featherback.data.batch import Batch
from featherback.layers.block import rotaries
from featherback.layers.loss import Head
from featherback.memory.job import Job
from featherback.memory.plan import Plan
from featherback.memory.resources import Resources
from featherback.models.model import LayerWeights

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Account:
    """What one training process needs under a plan, beside what files and optimiser hold."""

    scratch: int  # bytes of the scratch arena
    kept: int  # bytes of the intermediates that all layers keep
    mapped: int  # bytes of the file that are mapped at most, if weights go matrix by matrix
    work: Work  # of a step


def account(job: Job, plan: Plan) -> Account:
    """The account of a step, the same for all places where a plan's arrays and weights may lie."""
    key = (*_shape(plan), plan.mlp_tile, plan.vocab_tile, plan.keep_h, *plan.keep.items())
    if key not in job.accounts:
        job.accounts[key] = _whole(job, plan)
    return job.accounts[key]


def _shape(plan: Plan) -> tuple[object, ...]:
    return plan.tokens, plan.compute, plan.chunk


def _whole(job: Job, plan: Plan) -> Account:
    """The account of a step. Layers that are alike are run once and counted as often as there are of them."""
    kinds: dict[object, list[int]] = {}
    for layer in range(job.layers):
        kinds.setdefault(_kind(job, plan, layer), []).append(layer)
    runs = [_once(job, plan, layers[0]) for layers in kinds.values()]
    around = _once(job, plan, None)
    work = around.work
    for run, layers in zip(runs, kinds.values()):
        work = work.plus(run.work, len(layers))
    scratch = max(run.scratch for run in [around, *runs])
    if plan.chunked:  # a short batch passes whole, its rotary tables at hand throughout
        scratch = max(scratch, account(job, replace(plan, tokens=plan.chunk_tokens)).scratch)
    kept = sum(run.kept * len(layers) for run, layers in zip(runs, kinds.values()))
    return Account(scratch, kept, max(run.mapped for run in runs), work)


def _kind(job: Job, plan: Plan, layer: int) -> tuple[object, ...]:
    """Layers of one kind need the same."""
    stored = tuple((name, matrix.type) for name, matrix in job.stored[layer].items())
    return id(job.blocks[layer]), stored, plan.kept(layer)


def _once(job: Job, plan: Plan, layer: int | None) -> Account:
    """One layer's part of a step, or the part around the layers; plans that differ in nothing it sees share it."""
    key = (*_shape(plan), plan.vocab_tile)
    if layer is not None:
        key = (*_shape(plan), plan.mlp_tile, plan.keep_h, *_kind(job, plan, layer))
    if key not in job.accounts:
        part = partial(_around, job) if layer is None else partial(_inside, job, layer)
        found = _in_chunks(plan, part)
        if plan.chunked and layer is not None:
            # However tokens are cut, a query sees the same keys, and attention's work is counted by such pairs.
            whole = _once(job, replace(plan, chunk=None), layer)
            found = replace(found, work=replace(found.work, attention=whole.work.attention))
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
        run(replace(plan, tokens=plan.tokens - (count - n) * plan.chunk_tokens))
        for n in (fewest, fewest + period)
    )
    missing = (count - fewest) // period - 1
    return replace(
        more,
        scratch=more.scratch + missing * (more.scratch - few.scratch),
        kept=more.kept + missing * (more.kept - few.kept),
        work=more.work.plus(more.work.plus(few.work, -1), missing),
    )


def _inside(job: Job, layer: int, plan: Plan) -> Account:
    """One layer's part of a step."""
    run, without = (run_step(job, plan, layers, job.head.slice(rows=(0, 1))) for layers in ([layer], []))
    return replace(run, work=run.work.plus(without.work, -1))


def _around(job: Job, plan: Plan) -> Account:
    """The part around the layers. Whole tiles of the vocabulary are alike: two are run, and the rest added."""
    more = max(0, -(-job.head.rows // plan.vocab_tile) - 3)
    rows = job.head.rows - more * plan.vocab_tile
    run = run_step(job, plan, [], job.head.slice(rows=(0, rows)))
    if more:
        shorter = run_step(job, plan, [], job.head.slice(rows=(0, rows - plan.vocab_tile)))
        run = replace(
            run,
            scratch=run.scratch + more * (run.scratch - shorter.scratch),
            work=run.work.plus(run.work.plus(shorter.work, -1), more),
        )
    return run


def step_ledger(job: Job, plan: Plan) -> Ledger:
    """Every array of a step of a model with but the first layer, in the order of its birth."""
    ledger = Ledger()
    run_step(job, plan, [0], job.head, ledger)
    return ledger


def run_step(
    job: Job, plan: Plan, layers: Sequence[int], head: BlankMatrix, ledger: Ledger | None = None
) -> Account:
    """A step of a model that has only these layers, and this output head; its arrays are written down in `ledger`."""
    backend = Counting(plan.compute)
    model = _Shapes(job, layers, head)
    adapter = _BlankAdapter(job) if job.targets else None
    scratch, intermediates, store = ledger or Ledger(), Ledger(), _NoStore()
    weights: Any = _BlankWeights(job, layers, backend)
    resources = Resources(backend, scratch, intermediates, weights, store, store)
    plan = replace(plan, keep=Counter(name for layer in layers for name in plan.kept(layer)))
    batch = _full_batch(job, plan)
    if adapter is not None:
        job.method(model, adapter, plan, resources, job.options).gradients(batch, 1.0, _NoSink())
    work = replace(backend.ops.work)
    # Held-out data pass without a backward pass, and none of their intermediates are kept.
    held_out = Ledger()
    job.method(model, adapter, plan, replace(resources, scratch=held_out), job.options).loss(batch)
    most = max(scratch.high_water, held_out.high_water)
    return Account(most, intermediates.high_water, backend.ops.most_mapped, work)


def _full_batch(job: Job, plan: Plan) -> Batch:
    """A batch of the most tokens, in sequences as long as they may be, every token supervised."""
    lengths = [job.sequence] * (plan.tokens // job.sequence) + [plan.tokens % job.sequence]
    cu_seqlens = np.cumsum([0, *(n for n in lengths if n)], dtype=np.int32)
    zeros = np.zeros(plan.tokens, np.int32)
    return Batch(zeros, zeros, zeros, cu_seqlens)


class _Shapes:
    """A model that is shapes alone."""

    def __init__(self, job: Job, layers: Sequence[int], head: Any) -> None:
        self.blocks = [job.blocks[layer] for layer in layers]
        self.rotaries = rotaries(job.blocks)  # of all layers: their tables exist whichever is in use
        width = job.config.hidden_size
        self.embed_tokens = BlankMatrix((job.config.vocab_size, width), job.head.row_bytes)
        self.embedding_scale = 1.0
        self.head = Head(Blank((width,), FLOAT), head, 1.0)


class _BlankAdapter:
    """An adapter that is a layout alone."""

    scale = 1.0

    def __init__(self, job: Job) -> None:
        self.layout, self.parameters = job.layout, self

    def read(self, layer: int, out: Blank) -> None:
        """There is nothing to read."""


class _BlankWeights:
    """Weights that are shapes alone."""

    def __init__(self, job: Job, layers: Sequence[int], backend: Counting) -> None:
        self._job, self._layers, self.release = job, layers, backend.ops.release

    @contextmanager
    def layer(self, index: int, then: int | None = None) -> Iterator[LayerWeights]:
        layer = self._layers[index]
        shapes = self._job.blocks[layer].vectors
        vectors = {name: Blank(shape, FLOAT) for name, shape in shapes.items()}
        yield LayerWeights(self._job.stored[layer], vectors)  # type: ignore[arg-type]

    @contextmanager
    def rows(self, stored: BlankMatrix, first: int, last: int) -> Iterator[BlankMatrix]:
        yield stored.slice(rows=(first, last))

    def gather(self, stored: BlankMatrix, ids: NDArray[np.int32], out: Blank) -> None:
        """There is nothing to gather."""

    def close(self) -> None:
        """Nothing is held."""


class _NoStore:
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
    def gather(self, layer: int, room: Blank) -> Iterator[Blank]:
        yield room
