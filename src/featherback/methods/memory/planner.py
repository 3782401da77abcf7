"""Predicts the peak and the time of every plan and chooses the fastest that fits the budget, before the first step.

Which is the fastest is asked of fixed rates (`engine/host/rates.py`): a plan decides the last bits of what is computed,
and so must depend on nothing that is measured. Only the seconds that are shown are predicted with the machine's own
rates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

from featherback.core.naming import argument, arguments
from featherback.core.sizes import MB, whole_megabytes
from featherback.engine import backend
from featherback.engine.backend.counting import Work
from featherback.engine.budget import BudgetError
from featherback.engine.host.machine import VARIATION, Baseline, Machine
from featherback.engine.host.rates import nominal
from featherback.engine.host.scattered import ROWS
from featherback.errors import FeatherbackError
from featherback.methods.memory.dry_run import FLOAT, account
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import MLP_STEP, Plan, Weights
from featherback.nn.block import bundles

MLP_TILES = (1, 2, 4, 8)  # times MLP_STEP
VOCAB_TILES = (256, 512, 1024, 2048)
CHUNKS = (128, 256, 512, 1024, 2048)

CALL_SECONDS = 25e-6  # per kernel call: Python around it, threads woken and gathered
DROP_SECONDS = 8e-11  # per byte unmapped and mapped again
STREAM_SECONDS = 2e-10  # per byte read past the page cache, mostly behind the products
THRASH_SECONDS = 1e-8  # per byte that the page cache dropped, read again page by page
SPARE = 0.25  # of the machine's memory: taken for speed without a budget
FRUGAL = 1.25  # times the least memory: taken without a budget where that is more
SLACK = 1 * MB  # small arrays, the interpreter's growth
STACK = 64 * 1024  # bytes of a thread's stack that kernels touch


@dataclass(frozen=True)
class Prediction:
    """A plan's peaks in bytes and its time per step in seconds."""

    plan: Plan
    footprint: int
    rss: int
    seconds: float
    crowded: bool  # the page cache cannot hold the weights beside it

    def apply(self) -> Plan:
        """The plan, with the prediction written on it."""
        return replace(
            self.plan,
            predicted_footprint_mb=self.footprint / MB,
            predicted_rss_mb=self.rss / MB,
            predicted_step_seconds=self.seconds,
        )


def candidates(job: Job, chunks: Sequence[int] = CHUNKS) -> Iterator[Plan]:
    """Every plan for a job, before intermediates are kept."""
    inner = -(-job.config.intermediate_size // MLP_STEP)
    mlp_tiles = sorted({min(steps, inner) * MLP_STEP for steps in MLP_TILES})
    vocab_tiles = sorted({min(rows, job.config.vocab_size) for rows in VOCAB_TILES})
    can_chunk = job.method.can_chunk and job.whole is None  # a weight changes once all of its gradient is there
    chunk_choices = [None, *(chunk for chunk in chunks if can_chunk and chunk < job.tokens)]
    places = ("ram", "file") if job.files else ("ram",)
    for chunk, mlp, vocab, keep_h, checkpoints, states, weights in product(
        chunk_choices, mlp_tiles, vocab_tiles, (True, False), places, places, get_args(Weights)
    ):
        if job.whole is not None and (keep_h or weights == "streamed"):  # no adapter; what was just written is cached
            continue
        if keep_h and chunk is not None:  # from one chunk's recomputation to its gradients h is not kept
            continue
        yield Plan(
            tokens=job.tokens,
            compute=job.compute,
            chunk=chunk,
            mlp_tile=mlp,
            vocab_tile=vocab,
            keep_h=keep_h,
            checkpoints=checkpoints,  # type: ignore[arg-type]
            states=states,  # type: ignore[arg-type]
            weights=weights,
        )


def predict(job: Job, plan: Plan, baseline: Baseline, machine: Machine) -> Prediction:
    """The peaks and the step time of a plan."""
    config = job.config
    needed = account(job, plan)
    held = needed.scratch + needed.kept
    held += job.threads * (needed.work.thread_scratch + STACK)
    if plan.checkpoints == "ram":
        rows = plan.tokens * config.hidden_size
        held += rows * backend.of(plan.compute).operand.itemsize * job.returned * job.method.needs_checkpoints
        held += rows * FLOAT.itemsize * plan.chunked
    if plan.states == "ram":
        held += job.state_bytes
    buffers = job.buffer_bytes
    held += job.held_beside(plan.weights, plan.vocab_tile)
    if plan.weights != "resident":
        held += min(plan.tokens, ROWS) * job.head.row_bytes
    weights = job.resident(plan.weights, plan.vocab_tile, needed.mapped)
    # The optimiser works when no layer's weights are needed: only one of the two is there, if weights are dropped.
    dropped = plan.weights in ("paged", "by_matrix")
    rss = baseline.rss + SLACK + held + (max(buffers, weights) if dropped else buffers + weights)
    outside = 0 if plan.weights == "resident" else job.weight_bytes  # of the weights, not in `rss`
    crowded = machine.memory is not None and machine.memory < rss + outside
    seconds = _compute_seconds(needed.work, machine) + _paging_seconds(job, plan, machine, crowded)
    return Prediction(plan, baseline.footprint + held + buffers + SLACK, rss, seconds, crowded)


def choose(job: Job, budget: int | None, baseline: Baseline, machine: Machine) -> Plan:
    """The fastest plan whose resident peak fits in `budget` bytes, with what the least and the most memory would give.

    Without a budget it is SPARE of the machine's memory, or FRUGAL times the least that would do if that is more. No
    plan takes more than the machine has. Nothing depends on the machine's rates but the seconds. BudgetError, naming
    the least that is enough, if none fits; FeatherbackError if that is more than the machine has.
    """
    standard = nominal(job.compute, job.threads, machine.memory)
    predictions = [predict(job, plan, baseline, standard) for plan in candidates(job)]
    smallest_rss = min(prediction.rss for prediction in predictions)
    least, most = least_budget(smallest_rss), machine.memory or sys.maxsize
    wanted = int(max(SPARE * (machine.memory or 0), FRUGAL * smallest_rss)) if budget is None else budget
    limit = min(wanted, most)
    if smallest_rss > limit:
        change = smaller(job.whole is None, job.tokens > job.sequence)
        if most < smallest_rss:  # no budget would do
            raise FeatherbackError(
                f"Training does not fit on this machine: only {most // MB}MB are free or allowed by the "
                f"process's cgroup, and with these options the least is {least // MB}MB; {change}."
            )
        raise BudgetError("Training", limit, least, change)

    bare = next(candidates(job))
    worth = [(stored, gains(job, replace(bare, encodings=stored), standard)) for stored in _encodings(job)]

    def fastest_in(limit: int) -> Prediction:
        fitting = [prediction for prediction in predictions if prediction.rss <= limit]
        found = [_keeping(job, fitting, limit, *way, baseline, standard) for way in worth]
        best = min(found, key=lambda prediction: prediction.seconds)  # the first, which is exact, if both are as fast
        return predict(job, best.plan, baseline, machine)

    chosen, frugal, fastest = (fastest_in(each) for each in (limit, min(least, limit), most))
    return replace(
        chosen.apply(),
        least_mb=least // MB,
        least_step_seconds=frugal.seconds,
        fastest_mb=least_budget(fastest.rss) // MB,
        fastest_step_seconds=fastest.seconds,
    )


def smaller(adapter: bool, batch: bool) -> str:
    """What makes training need less memory, a clause. `adapter`: of an adapter, and not of the model itself; `batch`: a
    batch holds more than the longest sequence."""
    names = ["seq_len", *(["batch_size", "batch_tokens"] if batch else []), *(["rank"] if adapter else [])]
    fewer = f", or fewer {argument('targets')}," if adapter else ""
    return f"a smaller {arguments(*names)}{fewer} needs less"


@dataclass(frozen=True)
class Gain:
    """Seconds that a layer saves by keeping some intermediates, and the bytes that they take."""

    names: tuple[str, ...]
    seconds: float
    nbytes: int

    @property
    def per_byte(self) -> float:
        """Seconds."""
        return self.seconds / self.nbytes

    def joined(self, other: Gain) -> Gain:
        """Both, one not without the other."""
        return Gain(other.names + self.names, self.seconds + other.seconds, self.nbytes + other.nbytes)


def gains(job: Job, plan: Plan, machine: Machine) -> list[Gain]:
    """The intermediates worth keeping under a plan, those that save most seconds per byte first.

    Each gain is what its intermediates save where those before it are kept already. Some are worth more once others are
    kept, as up is once gate is: they make one gain.
    """
    if job.precision is None:
        return []
    left = bundles(job.blocks, job.form is not None and job.form.kind.needs_output)
    found: list[Gain] = []
    kept: tuple[str, ...] = ()
    before = account(job, replace(plan, keep={}))
    while left:
        after = {names: account(job, replace(plan, keep=dict.fromkeys(kept + names, job.returned))) for names in left}
        next_gains = [
            Gain(
                names,
                (_compute_seconds(before.work, machine) - _compute_seconds(one.work, machine)) / job.returned,
                (one.kept - before.kept) // job.returned,
            )
            for names, one in after.items()
        ]
        best = max(next_gains, key=lambda gain: gain.per_byte)
        names = best.names
        if best.seconds <= 0:
            break
        left.remove(names)
        if found and best.per_byte > found[-1].per_byte:
            best = best.joined(found.pop())
        found.append(best)
        before, kept = after[names], kept + names
    return sorted(found, key=lambda gain: -gain.per_byte)


def _encodings(job: Job) -> list[dict[str, str]]:
    """The ways to store what is kept, as plans have them: the exact one, and the one that the user allows beside it."""
    if job.precision is None:
        return [{}]
    named = {name: about.encoded(job.precision) for block in job.blocks for name, about in block.intermediates.items()}
    allowed = {name: encoding for name, encoding in named.items() if encoding is not None}
    return [{}, allowed] if allowed else [{}]


def _keeping(
    job: Job, fitting: list[Prediction], limit: int, stored: Mapping[str, str], worth: Sequence[Gain],
    baseline: Baseline, machine: Machine,
) -> Prediction:  # fmt: skip
    """The fastest of some plans, each with the rest of the budget filled by what is `worth` keeping, `stored` so.

    Every plan is filled in its own fixed order, so that a larger budget leaves none of them, nor the best, slower.
    """
    found = []
    for bare in _front(fitting):
        filling = Filling(job, bare, stored, worth, baseline, machine)
        fullest = filling.most(lambda p: p.rss <= limit)
        found.append(fullest)
        if fullest.crowded:  # less may be faster
            found.append(filling.most(lambda p: p.rss <= limit and not p.crowded))
    return min(found, key=lambda p: (p.seconds, p.rss))


def _front(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Those than which none is both smaller and faster: what is kept takes and saves about the same in all."""
    found: list[Prediction] = []
    for prediction in sorted(predictions, key=lambda p: (p.rss, p.seconds)):
        if not found or prediction.seconds < found[-1].seconds:
            found.append(prediction)
    return found


@dataclass(frozen=True)
class Filling:
    """A plan that keeps nothing, and what it would keep, one layer after the other, as memory grows."""

    job: Job
    bare: Prediction
    stored: Mapping[str, str]  # as `Plan.encodings`
    worth: Sequence[Gain]
    baseline: Baseline
    machine: Machine

    def most(self, allowed: Callable[[Prediction], bool]) -> Prediction:
        """The plan that keeps most of those that are `allowed`; the bare plan if none is."""
        layers = self.job.returned
        # Where all layers keep the same, scratch memory is smaller than while they differ: these are tried first.
        for whole in range(len(self.worth), -1, -1):
            best = self._filled(whole * layers)
            if allowed(best):
                break
        else:
            return self.bare
        fits, too_many = whole * layers, (whole + 1) * layers
        while whole < len(self.worth) and too_many - fits > 1:
            middle = (fits + too_many) // 2
            tried = self._filled(middle)
            if allowed(tried):
                best, fits = tried, middle
            else:
                too_many = middle
        return best

    def _filled(self, steps: int) -> Prediction:
        """With the first gain in some layers; in all, and the second in some; and so on: `steps` in all."""
        layers, keep = self.job.returned, dict[str, int]()
        for number, gain in enumerate(self.worth):
            if (count := min(layers, steps - number * layers)) > 0:
                keep |= dict.fromkeys(gain.names, count)
        stored = {name: encoding for name, encoding in self.stored.items() if name in keep}
        plan = replace(self.bare.plan, keep=keep, encodings=stored)
        return predict(self.job, plan, self.baseline, self.machine)


def smallest(job: Job, baseline: Baseline, machine: Machine) -> Prediction:
    """The plan with the lowest resident peak."""
    return min(
        (predict(job, plan, baseline, machine) for plan in candidates(job)),
        key=lambda prediction: (prediction.rss, prediction.seconds),
    )


def fits(job: Job, budget: int | None, baseline: Baseline, machine: Machine) -> bool:
    """Whether `choose` finds a plan."""
    limits = [limit for limit in (budget, machine.memory) if limit is not None]
    return not limits or smallest(job, baseline, machine).rss <= min(limits)


def least_budget(least: int) -> int:
    """The budget to name, in whole megabytes, where the least resident peak was predicted to be `least` bytes.

    The baseline is measured anew when the user comes back with it, and may then be VARIATION more.
    """
    return whole_megabytes(least + VARIATION)


def _compute_seconds(work: Work, machine: Machine) -> float:
    """A step's operations at the measured rates."""
    seconds = work.products / machine.product_rate + work.unpacked / machine.unpack_rate
    seconds += work.attention / machine.attention_rate
    seconds += work.lora / (machine.product_rate / 4)
    return seconds + work.calls * CALL_SECONDS + work.moved / (8 * machine.copy_rate)


def _paging_seconds(job: Job, plan: Plan, machine: Machine, crowded: bool) -> float:
    """Seconds per step for data moved between files and memory; `crowded`: the page cache cannot hold the weights."""
    moved, sweeps = 0, 1 + job.returned / job.layers  # over the weights
    rows = plan.tokens * job.config.hidden_size * FLOAT.itemsize
    if plan.checkpoints == "file":
        moved += 2 * job.returned * rows
    if plan.chunked:
        moved += 2 * (job.layers + job.returned) * rows
    if plan.states == "file":
        moved += job.moved_states
    seconds = moved / machine.copy_rate
    if plan.weights == "streamed":
        return seconds + sweeps * job.weight_bytes * STREAM_SECONDS
    if crowded:
        seconds += sweeps * job.weight_bytes * THRASH_SECONDS
    if plan.weights == "paged":
        seconds += sweeps * job.weight_bytes * DROP_SECONDS
    if plan.weights == "by_matrix":  # the pages around every tile are mapped again
        seconds += 4 * sweeps * job.weight_bytes * DROP_SECONDS
    return seconds
