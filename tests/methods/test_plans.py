"""Plans that the planner can emit give the same gradients.

They are equal to the last bit if only storage, the way weights are read, or (in fp32) kept intermediates differ. In
bf16, kept values were computed from the float32 residual stream, and recomputed ones from its bf16 checkpoint.

Tiles change the order of sums: over the columns of F in dn2 and the T x r products, over the vocabulary in the online
softmax and in dhidden. In fp32 that is the accumulation's rounding, measured below 1e-6; in bf16 the vocabulary's tile
also decides to which running maximum the exponentials are rounded, measured below 7e-3, which is what bf16 rounding
costs anyway.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from featherback import models
from featherback.data.batch import Batch
from featherback.engine.formats.types import TensorType
from featherback.methods import METHODS
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.models.form import Form
from featherback.models.model import Model
from tests.methods.support import Result, assert_close, assert_equal, errors, with_plan
from tests.support.families import MODELS
from tests.support.oracle import State
from tests.support.tiers import covering, some
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, tiny, write_tiny

OTHER_BUNDLES = {name: MODELS[name] for name in ("llama", "gemma3", "qwen35", "starcoder2")}
"""One model for each set of intermediates that blocks can keep."""
OTHER_BLOCKS = OTHER_BUNDLES | {name: MODELS[name] for name in ("bitnet", "gemma2", "lfm2", "olmo2", "phi3", "qwen3")}
"""More models, which compute the same intermediates in another way."""
TOKENS = 61
BATCHES = 4
KEPT_BOUND = 1.15
"""Relative to the error of a plan that keeps nothing. The rounding is as large, in another place (measured: 1.10)."""
TILE_BOUND = {"fp32": 5e-6, "bf16": 1e-2}
"""Relative to each tensor's norm, between tilings of the same arithmetic."""


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    config = tiny(request.param, intermediate_size=1056, vocab_size=1100)
    return models.load(write_tiny(tmp_path / "model.gguf", config, TensorType.Q4_0))


def random_state(model: Model) -> State:
    rng = np.random.default_rng(4)
    state = LoRA(model, 4).state()
    return {
        name: (a if ".lora_A." in name else 0.1 * rng.standard_normal(a.shape)).astype(np.float32)
        for name, a in state.items()
    }


def plans(model: Model, method: str, compute: str) -> list[Plan]:
    job = Job.of(model, method=METHODS[method], form=Form.of(rank=4), tokens=TOKENS, sequence=40, compute=compute)
    return list(planner.candidates(job, chunks=(32,)))


@pytest.mark.parametrize(
    ("model", "method", "compute", "every"),
    some(
        [
            (TINY_LLAMA, "mesp", "fp32", True),
            (TINY_QWEN2, "mebp", "bf16", False),
            (TINY_LLAMA, "mesp", "bf16", True),
            (TINY_QWEN2, "mesp", "fp32", False),
            (TINY_LLAMA, "mezo", "fp32", False),
        ],
        3,
    ),
    indirect=["model"],
    ids=["llama-mesp-fp32", "llama-mesp-bf16", "qwen2-mesp", "qwen2-mebp", "llama-mezo"],
)
def test_every_plan(model: Model, tmp_path: Path, method: str, every: bool, compute: str) -> None:
    """Pairs of storages with the smallest and the largest tiles; with `every` also every tiling with one storage."""
    (tmp_path / "work").mkdir()
    rng = np.random.default_rng(0)
    batch = Batch.from_sequences([rng.integers(0, 1100, n) for n in (40, 1, 20)])
    state = random_state(model)
    emitted = plans(model, method, compute)
    assert len({(p.mlp_tile, p.vocab_tile) for p in emitted}) == 16
    chunks = 0 if method == "mebp" else 1  # of 32 tokens
    assert len(emitted) == 16 * 2**2 * 4 * (2 + chunks)
    first: Result | None = None
    seen: dict[tuple[int, int, bool], Result] = {}
    tilings = sorted({(p.mlp_tile, p.vocab_tile) for p in emitted})
    chosen = []
    for tiling in tilings:
        stored = [plan for plan in emitted if (plan.mlp_tile, plan.vocab_tile) == tiling]
        fields = ("checkpoints", "states", "weights", "keep_h", "chunk")
        if tiling in (tilings[0], tilings[-1]):
            rows = [tuple((name, getattr(plan, name)) for name in fields) for plan in stored]
            chosen += [stored[index] for index in covering(rows, 2)]
        elif every:
            frugal = ("file", "file", "by_matrix")
            chosen += [plan for plan in stored if (plan.checkpoints, plan.states, plan.weights) == frugal]
    for plan in chosen:
        found = with_plan(model, state, batch, plan, method, tmp_path / "work")
        chunked = plan.chunk is not None
        assert_equal(found, seen.setdefault((plan.mlp_tile, plan.vocab_tile, chunked), found))
        first = first or found
        if method != "mezo":  # whose differences of losses enlarge every rounding
            assert_close(found, first, TILE_BOUND[compute])
    assert len(seen) == (16 if every else 2) * (1 + chunks)


def kept_sets(model: Model) -> list[dict[str, int]]:
    """Plans that keep every bundle in one layer and in all, and one that keeps everything."""
    bundles, layers = model.blocks[0].bundles, model.config.num_hidden_layers
    everything = dict.fromkeys((name for bundle in bundles for name in bundle), layers)
    return [*(dict.fromkeys(bundle, n) for bundle in bundles for n in (1, layers)), everything]


@pytest.mark.parametrize("chunk", [None, 32])
@pytest.mark.parametrize("model", some(OTHER_BLOCKS.values(), 2), indirect=True, ids=OTHER_BLOCKS)
def test_what_is_kept_changes_no_bit_in_fp32(model: Model, chunk: int | None) -> None:
    batch = Batch.from_sequences([np.random.default_rng(0).integers(0, 1100, n) for n in (40, 1, 20)])
    state, plan = random_state(model), Plan(tokens=TOKENS, compute="fp32", chunk=chunk)
    expected = with_plan(model, state, batch, plan)
    for keep in kept_sets(model):
        assert_equal(with_plan(model, state, batch, replace(plan, keep=keep)), expected)


@pytest.mark.parametrize("model", some(OTHER_BUNDLES.values(), 1), indirect=True, ids=OTHER_BUNDLES)
def test_what_is_kept_is_no_less_exact_in_bf16(model: Model) -> None:
    """Recomputed values start from the bf16 checkpoint; kept ones were computed in float32 and then rounded.

    A tensor's error in one batch is large or small by chance, so it is its mean square over several batches.
    """
    batches = [
        Batch.from_sequences([np.random.default_rng(seed).integers(0, 1100, n) for n in (40, 1, 20)])
        for seed in range(BATCHES)
    ]
    state = random_state(model)
    truth = [with_plan(model, state, batch, Plan(tokens=TOKENS, compute="fp32")).grads for batch in batches]

    def mean_errors(keep: dict[str, int]) -> list[float]:
        plan = Plan(tokens=TOKENS, keep=keep)
        found = [errors(with_plan(model, state, *each, plan).grads, exact) for *each, exact in zip(batches, truth)]
        return [float(np.sqrt(np.mean([each[name] ** 2 for each in found]))) for name in found[0]]

    recomputed = mean_errors({})
    for keep in kept_sets(model):
        found = mean_errors(keep)
        assert sum(found) < KEPT_BOUND * sum(recomputed), keep
        assert max(found) < 1.25 * max(recomputed), keep


@pytest.mark.parametrize("compute", some(["fp32", "bf16"], 1))
@pytest.mark.parametrize("model", [TINY_LLAMA], indirect=True, ids=["llama"])
def test_mebp_is_mesp_in_every_tiling(model: Model, compute: str) -> None:
    batch = Batch.from_sequences([np.arange(TOKENS)])
    state = random_state(model)
    emitted = {replace(p, states="ram", checkpoints="ram", weights="resident") for p in plans(model, "mebp", compute)}
    assert len(emitted) == 16 * 2
    for plan in emitted:
        assert_equal(*(with_plan(model, state, batch, plan, method) for method in ("mesp", "mebp")))
