"""Predict peak memory and time of every plan, and choose the fastest plan that fits the budget, before the first step.

The choice uses fixed rates (`engine/host/rates.py`), not the machine's measured ones: a plan determines the rounding
of results, so it must not depend on measurements. Measured rates are used only for the predicted seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from featherback.models import families
from featherback.nn.block import bundles, noted

MLP_TILES = (1, 2, 4, 8)  # times MLP_STEP
VOCAB_TILES = (256, 512, 1024, 2048)
CHUNKS = (128, 256, 512, 1024, 2048)

CALL_SECONDS = 25e-6  # per kernel call: Python overhead, waking and joining threads
DROP_SECONDS = 8e-11  # per byte unmapped and mapped again
STREAM_SECONDS = 2e-10  # per byte read past the page cache; mostly overlaps with products
THRASH_SECONDS = 1e-8  # per byte that the page cache dropped and reads again, page by page
SPARE = 0.25  # share of the machine's memory that is the default budget
FRUGAL = 1.25  # times the least memory: the default budget if that is more
SLACK = 2 * MB  # for small arrays and the interpreter's growth: up to 1.4 MB were measured
SLOTS = (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Answers that may be written at once. A plan has the fewest until the rest of it is chosen."""
STACK = 64 * 1024  # bytes of a thread's stack that kernels touch


@dataclass(frozen=True)
class Prediction:
    """Predicted peaks of a plan in bytes, and its time per step in seconds."""

    plan: Plan
    footprint: int
    rss: int
    seconds: float
    reading: float  # seconds of them for reading weights from the disk, which overlaps with computing
    exceeds_page_cache: bool  # the page cache cannot hold the weights as well

    def apply(self) -> Plan:
        """Return the plan with the prediction recorded in it."""
        return replace(
            self.plan,
            predicted_footprint_mb=self.footprint / MB,
            predicted_rss_mb=self.rss / MB,
            predicted_step_seconds=self.seconds,
            predicted_reading_seconds=self.reading,
        )


Predict = Callable[[Plan], Prediction]


def candidates(job: Job, chunks: Sequence[int] = CHUNKS) -> Iterator[Plan]:
    """Yield every plan for a job, with no intermediates kept yet."""
    inner = -(-job.config.widest_unit // MLP_STEP)
    mlp_tiles = sorted({min(steps, inner) * MLP_STEP for steps in MLP_TILES})
    vocab_tiles = sorted({min(rows, job.config.vocab_size) for rows in VOCAB_TILES})
    # A weight may change only when its gradient is complete. Tokens of an encoder see later ones.
    can_chunk = job.method.can_chunk and job.whole is None and not families.family_of(job.config).is_encoder
    chunk_choices = [None, *(chunk for chunk in chunks if can_chunk and chunk < job.tokens)]
    places = ("ram", "file") if job.files else ("ram",)
    for chunk, mlp, vocab, keep_h, checkpoints, states, weights in product(
        chunk_choices, mlp_tiles, vocab_tiles, (True, False), places, places, get_args(Weights)
    ):
        if job.whole is not None and (keep_h or weights == "streamed"):  # no adapter; freshly written pages are cached
            continue
        if keep_h and chunk is not None:  # h is not kept across chunks
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
            slots=None if job.writing is None else SLOTS[-1],
        )


def predict(job: Job, plan: Plan, baseline: Baseline, machine: Machine) -> Prediction:
    """Predict a plan's peaks and its time per step."""
    config = job.config
    needed = account(job, plan)
    freed = needed.scratch + needed.kept  # before answers are written
    if plan.checkpoints == "ram":
        rows = plan.tokens * config.hidden_size
        freed += rows * backend.of(plan.compute).operand.itemsize * job.backward_count * job.method.needs_checkpoints
        freed += rows * FLOAT.itemsize * plan.chunked + noted_bytes(job, plan)
    held = job.threads * (needed.work.thread_scratch + STACK)
    held += job.objective.host_bytes(plan.tokens, config.hidden_size)
    if plan.states == "ram":
        held += job.state_bytes
    buffers = job.buffer_bytes
    held += job.private_bytes(plan.weights, plan.vocab_tile)
    if plan.weights != "resident":
        held += min(plan.tokens, ROWS) * job.head.row_bytes
    weights = job.resident(plan.weights, plan.vocab_tile, needed.mapped)
    # The optimiser runs when no layer's weights are needed. If weights are dropped, only one of the two is in memory.
    dropped = plan.weights in ("paged", "by_matrix")
    at_work = freed + (max(buffers, weights) if dropped else buffers + weights)
    if job.writing is not None:
        written, mapped = job.writing.needs(plan)
        at_work, freed = max(at_work, written + mapped), max(freed, written)
    rss, held = baseline.rss + SLACK + held + at_work, held + freed
    outside = 0 if plan.weights == "resident" else job.weight_bytes  # bytes of the weights that are not in `rss`
    exceeds_page_cache = machine.memory is not None and machine.memory < rss + outside
    work = needed.work
    if job.writing is not None:
        work = work.plus(job.writing.work(plan), job.writing.passes(plan))
    seconds = compute_seconds(work, machine) + _paging_seconds(job, plan, machine, exceeds_page_cache)
    seconds += needed.work.read * 4 * DROP_SECONDS * (plan.weights != "resident")
    experts = needed.work.read / machine.disk_rate * exceeds_page_cache  # read ahead while others compute
    others = sweeps_of(job, plan) * job.swept_bytes + job.head.nbytes  # of the embedding, only a few rows are read
    reading = experts + others / machine.disk_rate * exceeds_page_cache
    footprint = baseline.footprint + held + buffers + SLACK
    return Prediction(plan, footprint, rss, max(seconds, experts), reading, exceeds_page_cache)


def choose(job: Job, budget: int | None, baseline: Baseline, machine: Machine) -> Plan:
    """Return the fastest plan whose peak RSS fits in `budget` bytes, with the speed at the least and the most memory.

    The default budget is SPARE of the machine's memory, or FRUGAL times the least that is enough if that is more. No
    plan exceeds the machine's memory. Only the predicted seconds depend on the machine's rates. If no plan fits:
    Raises BudgetError, naming the least budget that is enough, or FeatherbackError if the machine has less than that.
    """
    standard = nominal(job.compute, machine.memory)
    predicted = partial(predict, job, baseline=baseline, machine=standard)
    predictions = [predicted(plan) for plan in candidates(job)]
    smallest_rss = min(prediction.rss for prediction in predictions)
    least, most = least_budget(smallest_rss), machine.memory or sys.maxsize
    wanted = int(max(SPARE * (machine.memory or 0), FRUGAL * smallest_rss)) if budget is None else budget
    limit = min(wanted, most)
    if smallest_rss > limit:
        change = less_memory_advice(job.whole is None, job.tokens > job.sequence)
        if most < smallest_rss:  # no budget is enough
            raise FeatherbackError(
                f"Training does not fit on this machine: only {most // MB}MB are free or allowed by the "
                f"process's cgroup, and these options need at least {least // MB}MB; {change}."
            )
        raise BudgetError("Training", limit, least, change)

    ways = ways_to_keep(job, standard)

    def fastest_in(limit: int) -> Prediction:
        best = fastest_keeping(job, [each for each in predictions if each.rss <= limit], limit, ways, predicted)
        return predict(job, _with_slots(job, best.plan, limit, predicted), baseline, machine)

    chosen, frugal, fastest = (fastest_in(each) for each in (limit, min(least, limit), most))
    return replace(
        chosen.apply(),
        least_mb=least // MB,
        least_step_seconds=frugal.seconds,
        fastest_mb=least_budget(fastest.rss) // MB,
        fastest_step_seconds=fastest.seconds,
    )


def _with_slots(job: Job, plan: Plan, limit: int, predicted: Predict) -> Plan:
    """Return the plan with as many answers at once as fit in `limit` bytes."""
    if job.writing is None:
        return plan
    plans = (replace(plan, slots=slots) for slots in SLOTS if slots <= job.writing.most)
    return next((each for each in plans if predicted(each).rss <= limit), plan)


def less_memory_advice(adapter: bool, batch: bool) -> str:
    """Return a clause that says which options reduce memory.

    `adapter`: an adapter is trained, not the model itself. `batch`: a batch holds more than the longest sequence.
    """
    names = ["seq_len", *(["batch_size", "batch_tokens"] if batch else []), *(["rank"] if adapter else [])]
    fewer = f", or fewer {argument('targets')}," if adapter else ""
    return f"a smaller {arguments(*names)}{fewer} uses less memory"


@dataclass(frozen=True)
class Gain:
    """Seconds per layer saved by keeping some intermediates, and the bytes that they take."""

    names: tuple[str, ...]
    seconds: float
    nbytes: int

    @property
    def per_byte(self) -> float:
        """Seconds saved per byte."""
        return self.seconds / self.nbytes

    def joined(self, other: Gain) -> Gain:
        """Combine two gains that are only useful together."""
        return Gain(other.names + self.names, self.seconds + other.seconds, self.nbytes + other.nbytes)


def gains(job: Job, plan: Plan, machine: Machine) -> list[Gain]:
    """Return the intermediates worth keeping under a plan, beginning with the most seconds saved per byte.

    Each gain assumes that the ones before it are kept already. Some intermediates are worth more once others are kept,
    as up is once gate is kept. These are combined into one gain.
    """
    if job.precision is None:
        return []
    layers, left = job.backward_count, bundles(job.computed_blocks, job.form is not None and job.form.kind.needs_output)
    found: list[Gain] = []
    kept: tuple[str, ...] = ()
    before = account(job, replace(plan, keep={}))
    while left:
        after = {names: account(job, replace(plan, keep=dict.fromkeys(kept + names, layers))) for names in left}
        next_gains = [
            Gain(
                names,
                (compute_seconds(before.work, machine) - compute_seconds(one.work, machine)) / layers,
                (one.kept - before.kept) // layers,
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


Ways = Sequence[tuple[Mapping[str, str], Sequence[Gain]]]
"""The possible `Plan.encodings`, with the intermediates that are worth keeping so, the best first."""


def ways_to_keep(job: Job, machine: Machine) -> Ways:
    """Return the ways to keep intermediates of a job, with a machine's rates."""
    bare = next(candidates(job))
    return [(stored, gains(job, replace(bare, encodings=stored), machine)) for stored in _encodings(job)]


def fastest_keeping(job: Job, fitting: list[Prediction], limit: int, ways: Ways, predicted: Predict) -> Prediction:
    """Return the fastest plan within `limit` bytes: one of those that fit, with intermediates in one of the `ways`."""
    found = [_keeping(job, fitting, limit, *way, predicted) for way in ways]
    return min(found, key=lambda prediction: prediction.seconds)  # in a tie the first, which is exact


def _encodings(job: Job) -> list[dict[str, str]]:
    """Return the possible `Plan.encodings`: exact, and the one that the user allows, if any."""
    if job.precision is None:
        return [{}]
    named = {
        name: about.encoded(job.precision)
        for block in job.computed_blocks
        for name, about in block.intermediates.items()
    }
    allowed = {name: encoding for name, encoding in named.items() if encoding is not None}
    return [{}, allowed] if allowed else [{}]


def _keeping(
    job: Job, fitting: list[Prediction], limit: int, stored: Mapping[str, str], ranked_gains: Sequence[Gain],
    predicted: Predict,
) -> Prediction:  # fmt: skip
    """Fill each plan's remaining budget with the intermediates of `ranked_gains`, and return the fastest result.

    `stored`: how intermediates are encoded, as in `Plan.encodings`.
    Each plan is filled in its own fixed order, so a larger budget never makes a plan, or the best of them, slower.
    """
    found = []
    for bare in _front(fitting):
        filling = Filling(job, bare, stored, ranked_gains, predicted)
        fullest = filling.most(lambda p: p.rss <= limit)
        found.append(fullest)
        if fullest.exceeds_page_cache:  # keeping less may be faster
            found.append(filling.most(lambda p: p.rss <= limit and not p.exceeds_page_cache))
    return min(found, key=lambda p: (p.seconds, p.rss))


def _front(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the plans that no other plan beats in both memory and time.

    The others need not be tried with intermediates: these take and save about the same in every plan.
    """
    found: list[Prediction] = []
    for prediction in sorted(predictions, key=lambda p: (p.rss, p.seconds)):
        if not found or prediction.seconds < found[-1].seconds:
            found.append(prediction)
    return found


@dataclass(frozen=True)
class Filling:
    """A plan that keeps nothing, and the order in which it keeps intermediates, layer by layer, as memory grows."""

    job: Job
    bare: Prediction
    stored: Mapping[str, str]  # as `Plan.encodings`
    ranked_gains: Sequence[Gain]
    predicted: Predict

    def most(self, allowed: Callable[[Prediction], bool]) -> Prediction:
        """Return the plan that keeps most among those `allowed`, or the plan that keeps nothing."""
        layers = self.job.backward_count
        # If all layers keep the same, scratch memory is smaller than if they differ. So try whole gains first.
        for whole in range(len(self.ranked_gains), -1, -1):
            best = self._filled(whole * layers)
            if allowed(best):
                break
        else:
            return self.bare
        fits, too_many = whole * layers, (whole + 1) * layers
        while whole < len(self.ranked_gains) and too_many - fits > 1:
            middle = (fits + too_many) // 2
            tried = self._filled(middle)
            if allowed(tried):
                best, fits = tried, middle
            else:
                too_many = middle
        return best

    def _filled(self, steps: int) -> Prediction:
        """Apply gains in order, each to all layers before the next one: `steps` layers and gains in total."""
        layers, keep = self.job.backward_count, dict[str, int]()
        for number, gain in enumerate(self.ranked_gains):
            if (count := min(layers, steps - number * layers)) > 0:
                keep |= dict.fromkeys(gain.names, count)
        stored = {name: encoding for name, encoding in self.stored.items() if name in keep}
        plan = replace(self.bare.plan, keep=keep, encodings=stored)
        return self.predicted(plan)


def smallest(job: Job, baseline: Baseline, machine: Machine) -> Prediction:
    """Return the plan with the lowest peak RSS."""
    return min(
        (predict(job, plan, baseline, machine) for plan in candidates(job)),
        key=lambda prediction: (prediction.rss, prediction.seconds),
    )


def fits(job: Job, budget: int | None, baseline: Baseline, machine: Machine) -> bool:
    """Return whether `choose` finds a plan."""
    limits = [limit for limit in (budget, machine.memory) if limit is not None]
    return not limits or smallest(job, baseline, machine).rss <= min(limits)


def least_budget(least: int) -> int:
    """Return the least budget, in whole megabytes, for a predicted least peak RSS of `least` bytes.

    The baseline is measured again when the user retries with this budget, and may then be VARIATION higher.
    """
    return whole_megabytes(least + VARIATION)


def compute_seconds(work: Work, machine: Machine) -> float:
    """Return the time of a step's operations at the measured rates."""
    seconds = work.products / machine.product_rate + work.unpacked / machine.unpack_rate
    seconds += work.attention / machine.attention_rate
    seconds += work.lora / (machine.product_rate / 4)
    return seconds + work.calls * CALL_SECONDS + work.moved / (8 * machine.copy_rate)


def sweeps_of(job: Job, plan: Plan) -> float:
    """Return the number of passes over the weights in a step."""
    written = 0 if job.writing is None else job.writing.passes(plan)
    return 1 + job.backward_count / job.layers + written


def noted_bytes(job: Job, plan: Plan) -> int:
    """Return the bytes that a layer notes for all chunks."""
    per_chunk = noted(job.blocks)
    if per_chunk is None or per_chunk.rows is None or not plan.chunked or not job.method.needs_checkpoints:
        return 0
    return plan.chunks * per_chunk.rows * per_chunk.width * FLOAT.itemsize


def _paging_seconds(job: Job, plan: Plan, machine: Machine, exceeds_page_cache: bool) -> float:
    """Return seconds per step for moving data between files and memory, without experts.

    `exceeds_page_cache`: see Prediction.
    """
    moved, sweeps = 0, sweeps_of(job, plan)
    rows = plan.tokens * job.config.hidden_size * FLOAT.itemsize
    if plan.checkpoints == "file":
        moved += 2 * job.backward_count * rows
    if plan.chunked:
        moved += 2 * (job.layers + job.backward_count) * rows
        moved += 3 * job.backward_count * noted_bytes(job, plan)  # written once, read twice
    if plan.states == "file":
        moved += job.moved_states
    seconds = moved / machine.copy_rate
    if plan.weights == "streamed":
        return seconds + sweeps * job.whole_bytes * STREAM_SECONDS
    if exceeds_page_cache:
        seconds += sweeps * job.whole_bytes * THRASH_SECONDS
    if plan.weights == "paged":
        seconds += sweeps * job.whole_bytes * DROP_SECONDS
    if plan.weights == "by_matrix":  # the pages at the edges of every tile are mapped twice
        seconds += 4 * sweeps * job.whole_bytes * DROP_SECONDS
    return seconds
