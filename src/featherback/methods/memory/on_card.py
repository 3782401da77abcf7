"""Plans for a card, a device beside the CPU: peak of its memory, time, and the fastest plan that fits.

Scratch memory, checkpoints and kept intermediates are in the card's memory. So are the weights, or two buffers through
which they pass ("streamed"). Parameters, gradients and optimiser states stay in the host's memory between steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from featherback.core.naming import argument
from featherback.core.sizes import MB, whole_megabytes
from featherback.engine.backend.protocol import Card
from featherback.engine.host.machine import Machine
from featherback.errors import FeatherbackError
from featherback.methods.memory.dry_run import FLOAT, account
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import MLP_STEP, Plan, Storage, Weights
from featherback.methods.memory.planner import (
    CHUNKS,
    Prediction,
    compute_seconds,
    fastest_keeping,
    less_memory_advice,
    noted_bytes,
    sweeps_of,
    ways_to_keep,
)

MLP_TILES = (1, 8, 64)  # times MLP_STEP
VOCAB_TILES = (256, 2048, 16384)
VISIBLE = 0.1
"""The share of the time of copying weights that adds to computing."""
ALIGNMENT = 256
"""Bytes by which the matrices of a buffer are aligned."""
PLACES: tuple[Storage, ...] = ("ram", "file")
WEIGHTS: tuple[Weights, ...] = ("resident", "streamed")


def choose(job: Job, card: Card, product_rate: float | None = None) -> Plan:
    """Return the fastest plan that fits in the card's memory.

    `product_rate`: operations per second of a product, measured; None: no seconds are predicted.
    Raises FeatherbackError if no plan fits.
    """
    if job.whole is not None:
        raise FeatherbackError(
            f"{argument('device', card.name)} trains adapters only. Remove {argument('train', 'full')}, or remove "
            f"{argument('device')}."
        )
    machine, limit = _machine(job, card), card.memory
    predicted = partial(_predict, job, card=card, machine=machine)
    predictions = [predicted(plan) for plan in _candidates(job)]
    least = card.enough(min(prediction.rss for prediction in predictions))
    if least > limit:
        change = less_memory_advice(adapter=job.trains, batch=job.tokens > job.sequence)
        raise FeatherbackError(
            f"{'Training' if job.trains else 'The pass'} needs at least {argument('vram', _megabytes(least))} on "
            f"{card.name}, and {limit // MB} MB are allowed or free; {change}."
        )
    fitting = [each for each in predictions if each.rss <= limit]
    best = fastest_keeping(job, fitting, limit, ways_to_keep(job, machine), predicted)
    seconds = None if product_rate is None else best.seconds * machine.product_rate / product_rate
    return replace(
        best.plan,
        predicted_vram_mb=best.rss / MB,
        predicted_step_seconds=seconds,
        least_vram_mb=whole_megabytes(least) // MB,
    )


def smallest(job: Job, card: Card) -> int:
    """Return the bytes of the card's memory that are enough for the smallest plan."""
    machine = _machine(job, card)
    return card.enough(min(_predict(job, plan, card, machine).rss for plan in _candidates(job)))


def _megabytes(nbytes: int) -> str:
    return f"{whole_megabytes(nbytes) // MB}MB"


def _machine(job: Job, card: Card) -> Machine:
    """Return the card's rates in the form of a machine's."""
    rates = card.rates(job.compute)
    return Machine(rates.products, rates.attention, rates.moved / 8, rates.unpacked, card.memory, rates.received)


def _candidates(job: Job) -> Iterator[Plan]:
    """Yield every plan for a job, with no intermediates kept yet."""
    inner = -(-job.config.widest_unit // MLP_STEP)
    mlp_tiles = sorted({min(steps, inner) * MLP_STEP for steps in MLP_TILES})
    vocab_tiles = sorted({min(rows, job.config.vocab_size) for rows in VOCAB_TILES})
    chunks = [None, *(chunk for chunk in CHUNKS if job.method.can_chunk and chunk < job.tokens)]
    places = PLACES if job.files else PLACES[:1]
    for chunk, mlp, vocab, keep_h, checkpoints, weights in product(
        chunks, mlp_tiles, vocab_tiles, (True, False), places, WEIGHTS
    ):
        if keep_h and chunk is not None:  # h is not kept across chunks
            continue
        yield Plan(
            tokens=job.tokens, compute=job.compute, chunk=chunk, mlp_tile=mlp, vocab_tile=vocab, keep_h=keep_h,
            checkpoints=checkpoints, weights=weights,
        )  # fmt: skip


def _predict(job: Job, plan: Plan, card: Card, machine: Machine) -> Prediction:
    """Predict a plan's peak in the card's memory, and its time per step."""
    config, needed = job.config, account(job, plan)
    rows = plan.tokens * config.hidden_size
    stored = rows * card.open(plan.compute, False, False).operand.itemsize * job.backward_count
    stored *= job.method.needs_checkpoints
    across_chunks = rows * FLOAT.itemsize * plan.chunked + noted_bytes(job, plan)
    held = needed.scratch + needed.kept + job.vector_bytes + plan.tokens * job.head.row_bytes
    if plan.checkpoints == "ram":
        held += stored + across_chunks
    held += job.weight_bytes if plan.weights == "resident" else 2 * _buffer(job, plan)
    widest = max(plan.mlp_tile, plan.vocab_tile, config.hidden_size, config.num_attention_heads * config.head_dim)
    of_step = job.buffer_bytes // FLOAT.itemsize // 4  # a parameter has a gradient and states
    held += job.buffer_bytes + max(card.temporaries(plan.chunk_tokens, widest), card.temporaries(1, of_step))
    computing = compute_seconds(needed.work, machine)
    received = (2 * stored + 2 * across_chunks) * (plan.checkpoints == "file") + job.moved_states
    streamed = sweeps_of(job, plan) * job.whole_bytes * (plan.weights == "streamed")
    copying = streamed / machine.disk_rate
    seconds = max(computing, copying) + VISIBLE * copying + received / machine.disk_rate
    return Prediction(plan, held, held, seconds, 0.0, exceeds_page_cache=False)


def _buffer(job: Job, plan: Plan) -> int:
    """Return the bytes of a buffer through which weights pass: of a layer, or of a tile of the head."""
    layers = (sum(-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in layer.values()) for layer in job.stored)
    return max(*layers, min(plan.vocab_tile, job.head.rows) * job.head.row_bytes + ALIGNMENT)
