"""Distillation through whole models of two sizes, against autograd of transformers and PEFT on both."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from featherback import methods, models
from featherback.data.batch import IGNORE, Batch, ExtraTargets
from featherback.data.prefixes import share_prefixes
from featherback.data.teacher_file import decoded, encoded
from featherback.methods.likely import LikelyTokens
from featherback.methods.losses import token_gradient
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA
from featherback.nn.objectives.distilled import Distilled
from tests.methods.conftest import Twins
from tests.methods.support import assert_close, with_plan
from tests.methods.test_exact_gradients import draw
from tests.methods.test_objectives import a_batch, distilled_truth, truth_of_model
from tests.support import tiers
from tests.support.oracle import random_adapter, reference_model
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

K = 9
BOUND = 1e-4


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wider and deeper model than the student, with its vocabulary."""
    config = tiny(TINY_LLAMA, vocab_size=101, num_hidden_layers=3, hidden_size=128, intermediate_size=224)
    return write_tiny(tmp_path_factory.mktemp("teacher") / "teacher.gguf", config, seed=7)


def likely(path: Path, batch: Batch, objective: Distilled, chunk: int | None, compute: str = "fp32") -> Batch:
    """Return the batch with the teacher's likely tokens, as a run stores them."""
    model = models.load(path)
    plan = replace(Plan.default(model.config, tokens=batch.n_tokens, compute=compute), vocab_tile=48, chunk=chunk)
    method = methods.create_of(LikelyTokens, model, None, plan, objective=objective)
    ids, logp = method.likely(batch)
    method.close()
    rows = np.flatnonzero(batch.targets != IGNORE).astype(np.int32)
    assert ids.shape == (len(rows), objective.top_k)
    return replace(batch, further=ExtraTargets(np.repeat(rows, K), ids.reshape(-1), np.exp(logp).reshape(-1)))


def truth_of_teacher(network: Any, batch: Batch, objective: Distilled) -> Batch:
    """Return the same from transformers' logits, in float64."""
    rows = np.flatnonzero(batch.targets != IGNORE).astype(np.int32)
    parts = [batch.tokens[a:b] for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])]
    with torch.no_grad():
        logits = torch.cat([network(input_ids=torch.from_numpy(t)[None].long()).logits[0] for t in parts]).double()
    best = torch.softmax(logits[rows] / objective.temperature, -1).topk(K, -1)
    ids, shares = (each.numpy().reshape(-1) for each in (best.indices, best.values))
    return replace(batch, further=ExtraTargets(np.repeat(rows, K), ids.astype(np.int32), shares))


def prompts(vocabulary: int) -> Batch:
    """Return sequences that begin alike, whose prefixes are shared."""
    one, other, *answers = draw((11, 9, 5, 8, 4, 6), vocabulary, seed=3)
    sequences = [other + answers[0], one + answers[1], one + answers[2], other + answers[3]]
    labels = [[IGNORE] * size + row[size:] for row, size in zip(sequences, (9, 11, 11, 9))]
    return Batch.from_sequences(sequences, labels)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize(("method", "chunk"), [("mesp", None), ("mesp", 8), ("mebp", None)])
def test_gradients_of_two_models(
    all_twins: dict[str, Twins], teacher: Path, method: str, chunk: int | None, temperature: float
) -> None:
    """The student's gradient from our teacher, against autograd from transformers' teacher. Batches are packed."""
    twins, objective = all_twins["llama-untied"], Distilled(weight=0.7, temperature=temperature, top_k=K)
    state, network = random_adapter(twins.reference, 4, seed=1), reference_model(teacher)
    for batch in (a_batch(101), prompts(101)):
        ours, theirs = likely(teacher, batch, objective, chunk), truth_of_teacher(network, batch, objective)
        for name, bound in (("ids", 0), ("weights", 1e-5)):
            mine, truth = (getattr(each.further, name) for each in (ours, theirs))
            np.testing.assert_allclose(mine, truth, rtol=bound)
        plan = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
        plan = replace(plan, mlp_tile=256, vocab_tile=48, chunk=chunk)
        found = with_plan(twins.model, state, ours, plan, method, objective=objective)
        loss = distilled_truth(objective, theirs)
        assert_close(found, truth_of_model(twins, state, batch, loss), BOUND)
    assert share_prefixes(batch).n_tokens < batch.n_tokens


@pytest.mark.parametrize("family", tiers.some(["qwen3moe", "gemma2", "lfm2"], 2))
def test_teachers_of_other_families(all_twins: dict[str, Twins], family: str) -> None:
    """Experts, capped logits, convolutions."""
    twins, objective = all_twins[family], Distilled(weight=0.7, temperature=1.5, top_k=K)
    batch = a_batch(twins.model.config.vocab_size)
    for chunk in (None, 8):
        ours = likely(twins.path, batch, objective, chunk)
        truth = truth_of_teacher(twins.reference, batch, objective)
        assert ours.further is not None
        assert truth.further is not None
        np.testing.assert_array_equal(ours.further.ids, truth.further.ids)
        np.testing.assert_allclose(ours.further.weights, truth.further.weights, rtol=1e-4)


@pytest.mark.parametrize("temperature", tiers.some([1.0, 2.0], 1))
def test_what_the_targets_take_outside_the_arena_is_counted(all_twins: dict[str, Twins], temperature: float) -> None:
    """From the entries of a file to the gradient of the head."""
    model, size, k = all_twins["llama-untied"].model, 512, 64
    objective = Distilled(weight=0.5, temperature=temperature, top_k=k)
    batch = Batch.from_sequences([np.arange(size) % 101])
    rows = size - 1
    entries = encoded(np.tile(np.arange(k, dtype=np.int32), (rows, 1)), np.full((rows, k), -5.0))
    plan = replace(Plan.default(model.config, tokens=size, compute="fp32"), vocab_tile=48)
    method = methods.create("mesp", model, LoRA(model, 2, 16.0, "all"), plan, objective=objective)
    tracemalloc.start()
    ids, logp = decoded(entries)
    further = ExtraTargets(np.repeat(np.arange(rows, dtype=np.int32), k), ids.reshape(-1), np.exp(logp).reshape(-1))
    with method._begin(replace(batch, further=further)) as sweep:
        sweep.embed()
        token_gradient(sweep, objective, 1.0, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    method.close()
    assert 0.5 * objective.host_bytes(size, 64) < peak < objective.host_bytes(size, 64)


def test_the_tokens_are_the_most_likely_ones_whatever_the_tiles(teacher: Path) -> None:
    """Ties aside, the tiles of the vocabulary and the chunks do not matter; ids beyond a limit are left out."""
    objective, batch = Distilled(weight=1.0, temperature=1.0, top_k=K), a_batch(101)
    model = models.load(teacher)
    found = []
    for tile, known in ((7, None), (101, None), (48, 60)):
        plan = replace(Plan.default(model.config, tokens=batch.n_tokens, compute="fp32"), vocab_tile=tile)
        method = methods.create_of(LikelyTokens, model, None, plan, objective=objective)
        method.known = known
        found.append(method.likely(batch))
        method.close()
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-6)
    assert found[2][0].max() < 60
    assert (np.diff(found[2][1]) <= 0).all()
    kept = found[1][0] < 60
    assert not kept.all()
    for row, (ids, logp) in enumerate(zip(*found[1])):
        mine = ids[kept[row]]
        np.testing.assert_array_equal(found[2][0][row][: len(mine)], mine)
        np.testing.assert_allclose(found[2][1][row][: len(mine)], logp[kept[row]], atol=1e-6)
