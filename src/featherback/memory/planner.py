"""Budget first: the peak and the time of every plan, predicted; the fastest that fits, chosen before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

import numpy as np

from featherback import kernels
from featherback.adapters.shapes import projection_shapes
from featherback.errors import FeatherbackError
from featherback.host.machine import Baseline, Machine
from featherback.host.pager import most_mapped
from featherback.host.reading import BLOCK
from featherback.host.scattered import ROWS
from featherback.memory.arena import aligned
from featherback.memory.job import Job
from featherback.memory.ledger import Sizes, kept_block
from featherback.memory.plan import MLP_STEP, Plan, Weights
from featherback.weights.mapping import FOLIO

MB = 10**6

MLP_TILES = (1, 2, 4, 8)  # times MLP_STEP
VOCAB_TILES = (256, 512, 1024, 2048)

CALL_SECONDS = 4e-6  # a kernel call, from Python
DROP_SECONDS = 8e-11  # a byte unmapped and mapped again
STREAM_SECONDS = 2e-10  # a byte read past the page cache, mostly behind the products
THRASH_SECONDS = 1e-8  # a byte that the page cache had to let go, read again page by page
FRUGAL = 1.25  # without a budget: nearly the least memory, at nearly the best speed
SLACK = 1 * MB  # small arrays, stacks, the interpreter's growth
STACK = 64 << 10  # bytes of it that a thread touches
VARIATION = MB // 2  # twice what the baselines of a hundred fresh processes were seen to differ by


@dataclass(frozen=True)
class Prediction:
    """A plan's peaks in bytes and its time a step in seconds."""

    plan: Plan
    footprint: int
    rss: int
    seconds: float

    def apply(self) -> Plan:
        """The plan, with the prediction written on it."""
        return replace(
            self.plan,
            predicted_footprint_mb=self.footprint / MB,
            predicted_rss_mb=self.rss / MB,
            predicted_step_seconds=self.seconds,
        )


def candidates(job: Job) -> Iterator[Plan]:
    """Every plan the planner can emit for a job."""
    inner = -(-job.config.intermediate_size // MLP_STEP)
    mlp_tiles = sorted({min(tile, inner) * MLP_STEP for tile in MLP_TILES})
    vocab_tiles = sorted({min(tile, job.config.vocab_size) for tile in VOCAB_TILES})
    places = ("ram", "file") if job.files else ("ram",)
    kept = (
        ((True, False), (True, True), (False, False))
        if job.method.can_keep_blocks
        else ((True, False), (False, False))
    )
    for mlp, vocab, (keep_h, keep_blocks), checkpoints, states, weights in product(
        mlp_tiles, vocab_tiles, kept, places, places, get_args(Weights)
    ):
        yield Plan(
            tokens=job.tokens,
            compute=job.compute,
            mlp_tile=mlp,
            vocab_tile=vocab,
            keep_h=keep_h,
            keep_blocks=keep_blocks,
            checkpoints=checkpoints,  # type: ignore[arg-type]
            states=states,  # type: ignore[arg-type]
            weights=weights,
        )


def predict(job: Job, plan: Plan, baseline: Baseline, machine: Machine) -> Prediction:
    """What a plan will cost."""
    config, operand = job.config, 4 if plan.compute == "fp32" else 2
    layers = config.num_hidden_layers
    sizes = Sizes(config, plan, job.rank, job.targets)
    held = job.method.workspace(sizes)
    if plan.keep_blocks:
        held += layers * kept_block(sizes)
    held += job.threads * _thread_scratch(job)
    if plan.checkpoints == "ram" and job.method.needs_checkpoints:
        held += layers * plan.tokens * config.hidden_size * operand
    if plan.states == "ram":
        held += job.parameter_arrays * layers * job.layer_floats * 4
    buffers = (1 + job.parameter_arrays) * aligned(job.layer_floats * 4)  # the optimiser's
    if plan.weights == "streamed":
        norms_and_biases = 2 * config.hidden_size + config.q_size + 2 * config.kv_size
        held += 2 * _stream_buffer(job, plan) + layers * norms_and_biases * 4
    if plan.weights != "resident":
        held += min(plan.tokens, ROWS) * job.head_row_bytes
    weights = _resident(job, plan)
    # The optimiser works when no layer's weights are needed: only one of the two is there, if weights are dropped.
    rss = (
        baseline.rss
        + SLACK
        + held
        + (max(buffers, weights) if plan.weights == "paged" else buffers + weights)
    )
    crowded = machine.memory is not None and machine.memory < rss + job.weight_bytes
    return Prediction(
        plan, baseline.footprint + held + buffers + SLACK, rss, _seconds(job, plan, machine, crowded)
    )


def choose(job: Job, budget: int | None, baseline: Baseline, machine: Machine) -> Plan:
    """The fastest plan whose resident peak fits in `budget` bytes (None: in FRUGAL times the least there is).

    No plan takes more than the machine has. FeatherbackError, naming the least that would do and what to change, if
    none fits.
    """
    predictions = [predict(job, plan, baseline, machine) for plan in candidates(job)]
    least = min(p.rss for p in predictions)
    limit = FRUGAL * least if budget is None else budget
    if machine.memory is not None:
        limit = min(limit, machine.memory)
    fitting = [p for p in predictions if p.rss <= limit]
    if not fitting:
        change = "a smaller --seq-len, --batch-size or --rank, or fewer --targets, needs less."
        named = f"{least_budget(least) // MB}MB"
        if machine.memory is not None and machine.memory < least:  # no budget would do
            raise FeatherbackError(
                f"Training does not fit on this machine: only {machine.memory // MB}MB are free or allowed by the "
                f"process's cgroup, and with these options the least is {named}; {change}"
            )
        raise FeatherbackError(
            f"Training does not fit in {limit / MB:.0f}MB: with these options the least is --memory {named}; {change}"
        )
    return min(fitting, key=lambda p: (p.seconds, p.rss)).apply()


def smallest(job: Job, baseline: Baseline, machine: Machine) -> Prediction:
    """The plan with the lowest resident peak."""
    return min(
        (predict(job, plan, baseline, machine) for plan in candidates(job)), key=lambda p: (p.rss, p.seconds)
    )


def least_budget(least: int) -> int:
    """The budget to name, in whole megabytes, where the least resident peak was predicted to be `least` bytes.

    The baseline is measured anew when the user comes back with it, and may then be VARIATION more.
    """
    return -(-(least + VARIATION) // MB) * MB


def _thread_scratch(job: Job) -> int:
    """A thread's own buffers: what the hungriest operation of a block asks for, and a stack."""
    c, t, r, bf16 = job.config, job.tokens, job.rank, job.compute == "bf16"
    rows = np.array([0, job.sequence], np.int32)
    heads = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    costs = [kernels.attention_cost(rows, rows, *heads), kernels.attention_backward_cost(rows, rows, *heads)]
    for outputs, inputs in projection_shapes(c).values():
        costs += [
            kernels.linear_cost(t, inputs, outputs, r, bf16),
            kernels.linear_backward_cost(t, inputs, outputs, r, bf16),
            kernels.lora_in_cost(t, inputs, r),
            kernels.lora_gradient_cost(t, inputs, r),
        ]
    return max(scratch for _, scratch in costs) + STACK


def _resident(job: Job, plan: Plan) -> int:
    """Bytes of the weights' file resident at the peak."""
    if plan.weights == "resident":
        return job.weight_bytes + FOLIO  # with norms, and what lies around the ends
    if plan.weights == "streamed":
        return 0
    return max(job.layer_mapped, most_mapped(_head_rows(job, plan) * job.head_row_bytes))


def _stream_buffer(job: Job, plan: Plan) -> int:
    """Bytes of one of the two buffers that streamed weights pass through, with the norms that lie between them."""
    return (
        max(job.layer_bytes, _head_rows(job, plan) * job.head_row_bytes)
        + 16 * BLOCK
        + 8 * job.config.hidden_size
    )


def _head_rows(job: Job, plan: Plan) -> int:
    """Rows of the output head in use at once."""
    return job.config.vocab_size if job.method.whole_head else plan.vocab_tile


def _seconds(job: Job, plan: Plan, machine: Machine, crowded: bool) -> float:
    """Products at the measured rates, and what the plan adds; `crowded`: the page cache cannot hold the weights."""
    c, t, layers = job.config, plan.tokens, job.config.num_hidden_layers
    product_passes, attention_passes = job.method.products(Sizes(c, plan, job.rank, job.targets))
    passes = product_passes * 2 * t * job.layer_weights
    head = 2 * t * c.hidden_size * c.vocab_size * 2
    attention = attention_passes * 2 * t * job.sequence * c.q_size
    seconds = (layers * passes + head) / machine.product_rate + layers * attention / machine.attention_rate
    tiles = layers * -(-c.intermediate_size // plan.mlp_tile) * 3 + -(-c.vocab_size // plan.vocab_tile)
    seconds += tiles * (12 * CALL_SECONDS + 6 * t * c.hidden_size * 4 / (4 * machine.copy_rate))
    if not plan.keep_h:
        seconds += layers * 3 * 2 * t * c.hidden_size * job.rank / (machine.product_rate / 4)
    moved = 0
    if plan.checkpoints == "file":
        moved += 2 * layers * t * c.hidden_size * 4
    if plan.states == "file":
        moved += layers * job.layer_floats * 4 * (4 + 2 * job.parameter_arrays)
    seconds += moved / machine.copy_rate
    if plan.weights == "streamed":
        seconds += 2 * job.weight_bytes * STREAM_SECONDS
    elif crowded:
        seconds += 2 * job.weight_bytes * THRASH_SECONDS
    if plan.weights == "paged":
        seconds += 2 * job.weight_bytes * DROP_SECONDS
    return seconds
