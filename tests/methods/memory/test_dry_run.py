"""The dry run against the arena: the same bytes at the peak, for every method, in many settings."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.ledger_table import MARKER, page_with_table
from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine.backend.arena import aligned
from featherback.engine.backend.counting import Blank, BlankMatrix, Counting, CountingOperations, Ledger, Work
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.methods import METHODS
from featherback.methods.base import Draw
from featherback.methods.lcsb import LCSBOptions
from featherback.methods.memory.dry_run import account, counting_optimizer, run_step, step_ledger
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.methods.whole.gradients import WeightGradients
from featherback.methods.whole.settings import WholeModelSettings
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from featherback.models.form import Form
from featherback.models.model import Model
from featherback.optim import OPTIONS, RULES
from featherback.optim.rule import Rule
from featherback.optim.rules.adalomo import AdaLomo
from featherback.optim.rules.sgd import SGD
from tests.support import families
from tests.support.tiers import some
from tests.support.tiny_models import TINY_GEMMA3, TINY_LLAMA, TINY_PHI3, TINY_WIDE, Types, tiny, write_tiny

PAGE = Path(__file__).parents[3] / "docs" / "memory.md"

WIDE = tiny(TINY_WIDE, intermediate_size=768, vocab_size=300, tie_word_embeddings=False)
MIXED = {
    "": TensorType.Q4_K,
    "q_proj": TensorType.Q8_0,
    "v_proj": TensorType.Q6_K,
    "down_proj": TensorType.Q6_K,
    "lm_head": TensorType.Q6_K,
    "embed_tokens": TensorType.F16,
}
MODELS: dict[str, tuple[ModelConfig, Types]] = {
    **{name: (config, TensorType.F32) for name, config in families.MODELS.items()},
    "gemma3": (tiny(TINY_GEMMA3, num_hidden_layers=3, windows=(7, 0, 7)), TensorType.F32),
    "wide": (WIDE, TensorType.F32),
    "mixed types": (WIDE, MIXED),
}
ADAPTERS = [(4, "all"), (8, "q,down"), (3, "v,o,gate"), (1, "k"), (33, "all")]
TILES = [(256, 33), (512, 101), (1024, 1024)]
KEPT = [{"m": 2, "attn_out": 1}, {"gate": 1, "up": 2, "mlp_out": 2}, {"q": 2, "k": 1, "v": 2, "o": 1, "lse": 1}]
EVERY_PAIR = {"wide"}
"""The others meet every adapter and tiling, but not every pair of them."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("ledger") / f"{request.param}.gguf"
    return models.load(write_tiny(path, *MODELS[request.param]))


def all_supervised(rng: np.random.Generator, vocabulary: int, *lengths: int) -> Batch:
    """Return sequences in which even the last token has a target: the largest possible batch."""
    batch = Batch.from_sequences([rng.integers(0, vocabulary, length) for length in lengths])
    return replace(batch, targets=rng.integers(0, vocabulary, sum(lengths)).astype(np.int32))


def stored(model: Model, targets: str) -> str:
    """Return the projections that contain these, as some are fused. Units without a gate adapt up instead."""
    parts = model.blocks[0].parts
    names = [target if target != "gate" or "gate" in parts else "up" for target in targets.split(",")]
    return ",".join(parts[target].stored if target in parts else target for target in names)


def coded(model: Model, keep: dict[str, int]) -> dict[str, str]:
    """Return encodings that are not exact: blocks of eight bits for gate; without a gate, slopes for up."""
    return {
        name: about.encodings[-1]
        for name, about in model.blocks[0].intermediates.items()
        if name in keep and len(about.encodings) > 1 and (name == "gate" or "gate" not in model.blocks[0].intermediates)
    }


@pytest.mark.parametrize(
    ("lengths", "compute"), [((1,), "bf16"), ((20, 1, 43), "fp32"), ((20, 1, 43), "bf16"), ((300,), "bf16")], ids=str
)
@pytest.mark.parametrize("name", METHODS.names)
def test_high_water_is_the_dry_runs(model: Model, name: str, lengths: tuple[int, ...], compute: str) -> None:
    rng = np.random.default_rng(0)
    tokens, vocabulary = sum(lengths), model.config.vocab_size
    batch = all_supervised(rng, vocabulary, *lengths)
    method = METHODS[name]
    settings = list(product(ADAPTERS, enumerate(TILES)))
    for (rank, targets), (index, (mlp, vocab)) in settings[:: 1 if model.path.stem in EVERY_PAIR else 4]:
        adapter = LoRA(model, rank, targets=stored(model, targets))
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        known = model.blocks[0].intermediates.keys()
        can = method.options_class().precision is not None
        keep = {name: layers for name, layers in KEPT[index].items() if can and name in known}
        for chunk in (None, 32) if method.can_chunk else (None,):
            plan = Plan(
                tokens=tokens,
                compute=compute,
                chunk=chunk,
                mlp_tile=mlp,
                vocab_tile=vocab,
                keep_h=index != 1 and chunk is None,
                keep=keep,
                encodings=coded(model, keep),
            )
            at_work = methods.create(name, model, adapter, plan)
            at_work.gradients(batch, 1.0, gradients)
            at_work.loss(batch)  # a held-out batch, of which nothing is kept
            if chunk is not None:  # a short batch passes whole
                at_work.gradients(all_supervised(rng, vocabulary, min(tokens, chunk)), 1.0, gradients)
            scratch, kept = at_work.resources.scratch, at_work.resources.kept
            assert scratch.high_water == scratch.capacity, (rank, targets, plan)
            assert kept.high_water == kept.capacity or not plan.keep
            at_work.close()


@pytest.mark.parametrize("name", some([name for name in METHODS.names if METHODS[name].can_train_weights], 2))
@pytest.mark.parametrize("frozen", [(), ("embed_tokens", "layers.0.*")], ids=["all", "some"])
def test_high_water_of_whole_models(tmp_path: Path, name: str, frozen: tuple[str, ...]) -> None:
    """With what SGD opens of the weights."""
    _high_water(tmp_path, name, frozen, SGD(), [*MODELS])


# AdaLomo takes roots of sums of its states, which are not there.
@pytest.mark.parametrize("rule", some([name for name in RULES.names if not issubclass(RULES[name], AdaLomo)], 4))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_high_water_with_each_optimiser(tmp_path: Path, rule: str) -> None:
    _high_water(tmp_path, "mesp", (), OPTIONS.make(rule, {}), random.Random(rule).sample([*MODELS], 4))


def _high_water(tmp_path: Path, name: str, frozen: tuple[str, ...], rule: Rule, which: list[str]) -> None:
    for config in (MODELS[each][0] for each in which):
        model = models.load(write_tiny(tmp_path / "model.gguf", config, TensorType.BF16))
        batch = all_supervised(np.random.default_rng(0), config.vocab_size, 20, 1, 43)
        whole = WholeModelSettings(rule, frozen=frozen)
        trained = whole.trained(config, model.blocks)
        at_work = methods.create(name, model, None, Plan(tokens=64, mlp_tile=256, vocab_tile=33), whole=whole)
        sink = WeightGradients(
            model.head,
            at_work.resources.weights,
            model.embedding_scale,
            config.tie_word_embeddings,
            counting_optimizer(whole.rule, trained),
            trained,
        )
        for step in range(2):  # of LCSB, one goes back through the first blocks, one through the others
            at_work.gradients(batch, 1.0, sink, Draw(step=step))
        at_work.loss(batch)
        scratch = at_work.resources.scratch
        assert scratch.high_water == scratch.capacity, config
        at_work.close()


@pytest.mark.parametrize("name", METHODS.names)
def test_high_water_with_dropout(model: Model, name: str) -> None:
    batch = all_supervised(np.random.default_rng(0), model.config.vocab_size, 20, 1, 43)
    for chunk in (None, 32) if METHODS[name].can_chunk else (None,):
        adapter = LoRA(model, 4)
        adapter.dropout = 0.1
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        at_work = methods.create(name, model, adapter, Plan(tokens=64, chunk=chunk, mlp_tile=256, vocab_tile=33))
        at_work.gradients(batch, 1.0, gradients)
        at_work.loss(batch)
        scratch = at_work.resources.scratch
        assert scratch.high_water == scratch.capacity


@pytest.mark.parametrize("name", some(METHODS.names, 2))
@pytest.mark.parametrize("layers", ["last:1", "0", "1"])
def test_high_water_with_some_layers(model: Model, name: str, layers: str) -> None:
    batch, method = all_supervised(np.random.default_rng(0), model.config.vocab_size, 20, 1, 43), METHODS[name]
    for chunk in (None, 32) if method.can_chunk else (None,):
        adapter = LoRA(model, 4, layers=layers)
        keep = {"m": 1} if method.options_class().precision and name != "lcsb" else {}
        plan = Plan(tokens=64, chunk=chunk, mlp_tile=256, vocab_tile=33, keep_h=chunk is None, keep=keep)
        at_work = methods.create(name, model, adapter, plan)
        short = all_supervised(np.random.default_rng(0), model.config.vocab_size, min(64, chunk or 64))
        for step in range(4):  # of LCSB, each goes back through other blocks
            for each in (batch, short):  # in chunks, a short batch passes whole
                at_work.gradients(each, 1.0, adapter.parameters.zeros_like(adapter.layer_size), Draw(step=step))
        at_work.loss(batch)
        scratch = at_work.resources.scratch
        assert scratch.high_water == scratch.capacity
        at_work.close()


@pytest.mark.parametrize("layers", ["last:1", "last:2", "1,2", "0"])
@pytest.mark.parametrize("chunk", [None, 48])
def test_chosen_layers_are_counted(chunk: int | None, layers: str) -> None:
    """Layers below the lowest one only run forward; its memory, work and states shrink."""
    config = tiny(TINY_LLAMA, num_hidden_layers=4)
    job, every = (
        Job.of_shape(
            config, TensorType.F32, method=METHODS["mesp"], form=Form.of(rank=4, layers=tuple(chosen.split(","))),
            tokens=321, sequence=100,
        )
        for chosen in (layers, "all")
    )  # fmt: skip
    check_against_all(job, chunk)
    adapted = {"last:1": 1, "last:2": 2, "1,2": 2, "0": 1}[layers]
    assert job.state_bytes * 4 == every.state_bytes * adapted
    assert job.disk_bytes * 4 == every.disk_bytes * adapted
    plan = Plan(tokens=321, chunk=chunk)
    ours, whole = account(job, plan), account(every, plan)
    assert whole.loss_only.unpacked == ours.loss_only.unpacked
    assert ours.loss_only.products < ours.work.products < whole.work.products


@pytest.mark.parametrize("name", some(METHODS.names, 2))
def test_high_water_with_dora(model: Model, name: str) -> None:
    batch, method = (all_supervised(np.random.default_rng(0), model.config.vocab_size, 20, 1, 43), METHODS[name])
    outputs = {"attn_out": 1, "mlp_out": 2} if method.options_class().precision else {}
    for rank, targets, compute, chunk, keep in (
        (33, "all", "bf16", None, {}),
        (4, "all", "fp32", 32, outputs),
        (4, "q,down", "bf16", 32, {}),
    ):
        adapter = LoRA(model, rank, targets=stored(model, targets), dora=True)
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        chunk = chunk if method.can_chunk else None
        plan = Plan(tokens=64, compute=compute, chunk=chunk, mlp_tile=256, vocab_tile=33, keep=keep)
        at_work = methods.create(name, model, adapter, plan)
        at_work.gradients(batch, 1.0, gradients)
        at_work.loss(batch)
        scratch, kept = at_work.resources.scratch, at_work.resources.kept
        assert scratch.high_water == scratch.capacity, (targets, plan)
        if name == "lcsb" and len({tuple(block.intermediates) for block in model.blocks}) > 1:
            assert kept.high_water <= kept.capacity  # that of the blocks which keep most
        else:
            assert kept.high_water == kept.capacity or not method.needs_checkpoints


def test_doras_norms_are_counted() -> None:
    """One float per output of each target, and as many again from a layer's forward to its backward pass."""
    plain, dora = (
        Job.of_shape(
            TINY_LLAMA, TensorType.Q4_0, method=METHODS["mesp"], tokens=64, sequence=64, form=Form.of(dora=dora)
        )
        for dora in (False, True)
    )
    outputs = sum(rows for rows, _ in plain.blocks[0].projections.values())
    assert dora.layer_floats - plain.layer_floats == outputs  # m itself
    states = dora.trained_floats - plain.trained_floats
    assert states == (2 + 2) * outputs + outputs  # m, its gradient, AdamW's two; ||W||^2
    kept = account(dora, Plan(tokens=64)).kept - account(plain, Plan(tokens=64)).kept
    assert kept == plain.layers * aligned((outputs,), np.dtype(np.float32))


@pytest.mark.parametrize("name", METHODS.names)
@pytest.mark.parametrize("chunk", [None, 32])
def test_shorter_sequences_take_no_other_bytes(model: Model, name: str, chunk: int | None) -> None:
    """A method prepares for one sequence of all tokens; plans are made for sequences of `--seq-len`."""
    plan = Plan(tokens=90, chunk=chunk if METHODS[name].can_chunk else None)
    whole, packed = (
        account(Job.of(model, method=METHODS[name], form=Form.of(rank=4), tokens=90, sequence=sequence), plan)
        for sequence in (90, 40)
    )
    assert (packed.scratch, packed.kept) == (whole.scratch, whole.kept)
    assert packed.work.attention < whole.work.attention


@pytest.mark.parametrize("name", METHODS.names)
def test_loss_alone_stays_within(model: Model, name: str) -> None:
    rng = np.random.default_rng(0)
    for tokens in (1, 40):
        plan = Plan(tokens=tokens, mlp_tile=256, vocab_tile=33)
        method = methods.create(name, model, None, plan)
        method.loss(all_supervised(rng, model.config.vocab_size, tokens))
        assert method.resources.scratch.high_water <= method.resources.scratch.capacity


@pytest.mark.parametrize("sequence", [321, 100, 7])
@pytest.mark.parametrize("chunk", [None, 48])
def test_many_chunks_and_tiles_are_counted_from_few(model: Model, chunk: int | None, sequence: int) -> None:
    """Extrapolated counts equal those of a dry run of every layer, chunk and tile."""
    check_against_all(Job.of(model, method=METHODS["mesp"], form=Form.of(rank=4), tokens=321, sequence=sequence), chunk)


@pytest.mark.parametrize("sequence", [321, 100])
def test_windows_of_several_chunks(sequence: int) -> None:
    """Beyond some chunk, chunks see no more keys than those before them."""
    job = Job.of_shape(
        tiny(TINY_LLAMA, windows=(50, 130)),
        TensorType.F32,
        method=METHODS["mesp"],
        form=Form.of(rank=4),
        tokens=321,
        sequence=sequence,
    )
    check_against_all(job, 16)


@pytest.mark.parametrize(("share", "returned"), [(0.5, 2), (0.75, 3), (1.0, 4)])
@pytest.mark.parametrize("chunk", [None, 48])
def test_blocks_that_are_skipped(chunk: int | None, share: float, returned: int) -> None:
    """Equal blocks cost the same, whichever are selected."""
    shape: dict[str, Any] = {"form": Form.of(rank=4), "tokens": 321, "sequence": 100}
    config = tiny(TINY_LLAMA, num_hidden_layers=4)
    options = LCSBOptions(share=share)
    some, every = (
        Job.of_shape(config, TensorType.F32, method=METHODS[name], options=own, **shape)
        for name, own in (("lcsb", options), ("mesp", None))
    )
    assert (some.backward_count, every.backward_count) == (returned, 4)
    check_against_all(some, chunk)
    plan = Plan(tokens=321, chunk=chunk)
    ours, whole = account(some, plan), account(every, plan)
    assert whole.loss_only.products < ours.work.products <= whole.work.products
    assert (ours.work == whole.work) == (share == 1)


def check_against_all(job: Job, chunk: int | None) -> None:
    keep = {"o": job.backward_count, "lse": job.backward_count, "m": 1}
    plan = Plan(tokens=321, chunk=chunk, mlp_tile=256, vocab_tile=16, keep_h=False, keep=keep)
    found, every = account(job, plan), run_step(job, plan, range(job.layers), job.head)
    assert (found.scratch, found.kept) == (every.scratch, every.kept)
    assert found.mapped == every.mapped
    assert found.work == every.work
    assert found.kept > 0


def test_parts_of_a_fused_projection_share_one_h() -> None:
    job = Job.of_shape(TINY_PHI3, TensorType.F32, method=METHODS["mesp"], form=Form.of(rank=4), tokens=64, sequence=64)
    born = Counter(entry.name for entry in step_ledger(job, Plan(tokens=64)).entries)
    # Forward, and recomputed, there to stay for its gradients.
    assert born["h of qkv_proj"] == born["h of gate_up_proj"] == 2
    assert born["dh of gate_up_proj, sum"] == 1


def test_peak_of_a_hand_made_ledger() -> None:
    ledger = Ledger()
    with ledger.frame():
        ledger.take("a", (16,))  # 64 bytes
        with ledger.frame():
            ledger.take("b", (32,))
        with ledger.frame():
            ledger.take("c", (10,), np.uint16)
            ledger.take("d", (16, 2))
    assert ledger.high_water == 64 + 64 + 128
    assert [entry.name for entry in ledger.live_at_peak()] == ["a", "c", "d"]


def test_nothing_of_t_by_f_or_t_by_v_exists() -> None:
    tokens = 300
    config = tiny(TINY_LLAMA, intermediate_size=9984, vocab_size=8888)
    job = Job.of_shape(
        config,
        TensorType.Q4_0,
        method=METHODS["mesp"],
        form=Form.of(rank=4, targets=("q_proj",)),
        tokens=tokens,
        sequence=tokens,
    )
    ledger = step_ledger(job, Plan(tokens=tokens, mlp_tile=256, vocab_tile=64))
    assert max(int(np.prod(entry.shape)) for entry in ledger.entries) == tokens * 256


@pytest.mark.parametrize(
    ("name", "config", "more"),
    [
        ("mesp", TINY_LLAMA, {"down_proj": -1}),
        # For `down` before its norm, and for their own gradients.
        ("mesp", TINY_GEMMA3, {"gate_proj": 1, "up_proj": 1}),
        ("mebp", TINY_LLAMA, {}),
        ("mebp", TINY_GEMMA3, {}),
    ],
)
def test_work_is_what_the_products_are(name: str, config: ModelConfig, more: dict[str, int]) -> None:
    """Every weight multiplies forward, again, and backward; `down` not again in MeSP unless a norm follows it."""
    job = Job.of_shape(config, TensorType.Q4_0, method=METHODS[name], form=Form.of(rank=1), tokens=64, sequence=64)
    shapes = job.blocks[0].projections
    times = {name: 3 + more.get(name, 0) for name in shapes}
    weights = sum(times[name] * rows * cols for name, (rows, cols) in shapes.items())
    lora = sum(rows + cols for rows, cols in shapes.values())
    head = config.vocab_size * config.hidden_size
    work: Work = account(job, Plan(tokens=64)).work
    least = 2 * 64 * (job.layers * weights + 2 * head)
    most = least + max(times.values()) * 2 * 64 * job.layers * lora
    assert least < work.products < most


def test_work_is_counted_with_the_methods_options() -> None:
    once, thrice = (
        Job.of_shape(
            TINY_LLAMA,
            TensorType.Q4_0,
            method=METHODS["mezo"],
            options=MeZOOptions(directions=directions),
            tokens=64,
            sequence=64,
        )
        for directions in (1, 3)
    )
    plan = Plan(tokens=64)
    assert account(thrice, plan).work.products == 3 * account(once, plan).work.products > 0


def test_aligned_to_whole_cache_lines() -> None:
    assert aligned((3, 5), np.dtype(np.float32)) == 64
    assert aligned((17,), np.dtype(np.float32)) == 128


def test_the_page_has_the_ledger() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MARKER in text
    assert text == page_with_table(text), "stale: run python -m benchmarks.ledger_table docs/memory.md"


def test_a_weight_is_mapped_while_it_is_dequantised() -> None:
    """MeBP dequantises whole weights: their pages are in memory until they are released, and the plan has to know."""
    counted = Counting("bf16").ops
    weights = [BlankMatrix((4096, 4096), 2304, name, int(TensorType.Q4_0)) for name in ("first", "second")]
    for weight in weights:
        counted.dequantize(weight, Blank((4096, 4096), np.dtype(np.float32)))
        counted.release(weight)
    assert weights[0].nbytes <= counted.most_mapped < 2 * weights[0].nbytes
    for weight in weights:
        counted.dequantize(weight, Blank((4096, 4096), np.dtype(np.float32)))
    assert counted.most_mapped >= 2 * weights[0].nbytes


def test_mebp_holds_one_stored_weight_at_a_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stored weight is released as soon as it is dequantised, before the next one is read."""
    events: list[tuple[str, str]] = []
    dequantize, release = CountingOperations.dequantize, CountingOperations.release

    def dequantized(ops: CountingOperations, w: BlankMatrix, out: Blank) -> None:
        events.append(("dequantized", w.name))
        dequantize(ops, w, out)

    def released(ops: CountingOperations, w: BlankMatrix) -> None:
        events.append(("released", w.name))
        release(ops, w)

    monkeypatch.setattr(CountingOperations, "dequantize", dequantized)
    monkeypatch.setattr(CountingOperations, "release", released)
    job = Job.of(model, method=METHODS["mebp"], form=Form.of(rank=4), tokens=90, sequence=90)
    account(job, Plan(tokens=90, mlp_tile=256, vocab_tile=33))
    starts = [i for i, (what, _) in enumerate(events) if what == "dequantized"]
    assert starts
    assert all(events[i + 1] == ("released", events[i][1]) for i in starts)
