"""A node's work: training for a round, evaluation, and the gradient of a batch, without Flower."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import featherback as fb
from featherback import methods, models
from featherback.core.decode import decode
from featherback.core.files import read_json
from featherback.data.token_file import TokenFile
from featherback.engine.budget import BudgetError
from featherback.errors import FeatherbackError
from featherback.federated import fit, gradient_process
from featherback.federated.gradient_process import Planned
from featherback.federated.settings import Federation, Node
from featherback.federated.strategies.base import Arrays
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.runs.run_directory import RunDirectory
from tests.support.budget import named_mb
from tests.support.tiny_chat import write_messages, write_tiny_chat

JOB = fit.Job("0123456789abcdef", 1)
TRAIN = {"train.rank": 4, "train.lr": 5e-3, "train.steps": 4, "train.compute": "fp32", "train.save_every": 1}


class Bench:
    """A node with a tiny model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = write_tiny_chat(folder / "tiny.gguf")
        self.data = write_messages(folder / "data.jsonl", 8)
        own = {"model": str(self.path), "data": str(self.data), "eval-data": str(self.data), "work": f"{folder}/work"}
        self.node = Node.of({**own, "threads": 1, "memory": "200MB"}, {})
        self.model: Model = models.load(self.path)

    def federation(self, **options: Any) -> Federation:
        return Federation.of({"model": str(self.path), "out": "/out", **TRAIN, **options})

    def start(self, seed: int = 0) -> Arrays:
        return Adapter(self.model, self.federation().config(self.model).form, seed).state()

    @property
    def work(self) -> Path:
        return self.folder / "work" / JOB.federation

    def run(self) -> RunDirectory:
        return RunDirectory.open(self.work / "round-000001" / "run")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@dataclass(frozen=True)
class Round:
    """A round that is finished."""

    bench: Bench
    start: Arrays
    result: fit.Result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Round:
    bench = Bench(tmp_path_factory.mktemp("finished"))
    start = bench.start()
    return Round(bench, start, fit.fit(bench.federation(), bench.node, bench.model, JOB, start))


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_round_is_a_run_of_train(finished: Round) -> None:
    start, result, run = finished.start, finished.result, finished.bench.run()
    assert run.record.status == "finished"
    assert run.config.memory == 200_000_000
    assert run.config.schedule == "constant"
    assert result.measures["steps"] == 4
    assert result.measures["peak_rss_mb"] <= 200
    assert result.arrays.keys() == start.keys()
    assert not _same(result.arrays, start)
    assert result.tokens == _trained_tokens(run)


def test_nodes_with_different_budgets_have_equal_updates(finished: Round) -> None:
    bench, large = finished.bench, finished.result
    node = replace(bench.node, memory="least", work=f"{bench.folder}/small")
    small = fit.fit(bench.federation(), node, bench.model, JOB, finished.start)
    assert small.tokens == large.tokens
    for name, each in large.arrays.items():
        np.testing.assert_allclose(small.arrays[name], each, rtol=1e-4, atol=1e-6, err_msg=name)


def _trained_tokens(run: RunDirectory) -> int:
    """The supervised tokens of the batches, of which all of the data's tokens make up whole epochs."""
    file, passes = TokenFile(run.tokens / "train.tokens"), sum(line["tokens"] for line in run.metrics())
    whole, rest = divmod(passes, file.n_tokens)
    assert rest == 0  # otherwise the test needs other data
    return whole * file.n_targets


def test_a_round_is_not_repeated_and_another_start_begins_anew(
    finished: Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, start, first = finished.bench, finished.start, finished.result
    work = shutil.copytree(bench.folder / "work", tmp_path / "work")
    node = replace(bench.node, work=str(work))
    with monkeypatch.context() as patched:
        patched.setattr(fit, "_run", lambda *arguments: pytest.fail("the round was trained again"))
        again = fit.fit(bench.federation(), node, bench.model, JOB, start)
    assert _same(first.arrays, again.arrays)
    other = fit.fit(bench.federation(), node, bench.model, JOB, bench.start(seed=1))
    assert not _same(first.arrays, other.arrays)
    fit.fit(bench.federation(), node, bench.model, fit.Job(JOB.federation, 2), start)
    assert sorted(path.name for path in (work / JOB.federation).iterdir()) == ["round-000002"]


@pytest.mark.full("starts several processes, as tests/runs/test_kill.py")
def test_a_killed_training_process_is_resumed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    start, run = bench.start(), fit._run
    whole = fit.fit(bench.federation(), bench.node, bench.model, JOB, start)
    shutil.rmtree(bench.folder / "work")
    calls = 0

    def killed(words: list[Any], log: Path) -> subprocess.CompletedProcess[str]:
        nonlocal calls
        calls += 1
        if calls > 1:
            return run(words, log)
        code = "import os, sys; from tests.federated.killed import main; main(sys.argv[1:])"
        return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)

    monkeypatch.setattr(fit, "_run", killed)
    resumed = fit.fit(bench.federation(), bench.node, bench.model, JOB, start)
    assert calls == 2
    assert _same(whole.arrays, resumed.arrays)


def test_the_error_of_a_failed_training_is_passed_on(bench: Bench) -> None:
    (bench.folder / "data.jsonl").write_text('{"neither": 1}\n')
    with pytest.raises(FeatherbackError, match=r"featherback train has failed: .*data\.jsonl"):
        fit.fit(bench.federation(), bench.node, bench.model, JOB, bench.start())


def test_evaluation_is_that_of_the_command(bench: Bench) -> None:
    start = bench.start()
    found = fit.evaluate(bench.federation(), bench.node, bench.model, JOB, start)
    expected = fb.evaluate(bench.path, bench.data, compute="fp32")  # B is zero, so the adapter has no effect
    assert found.measures["eval_loss"] == pytest.approx(expected.loss, rel=1e-6)
    assert found.tokens == expected.tokens
    assert found.arrays == {}


def test_the_gradient_is_that_of_the_batch(bench: Bench) -> None:
    """Of the second batch, as `fb.gradients` computes it, and bit for bit as this process does with the same plan."""
    federation = bench.federation(**{"train.batch_size": 2})
    start = bench.start()
    rng = np.random.default_rng(0)
    start = {name: each + rng.normal(0, 0.02, each.shape).astype(np.float32) for name, each in start.items()}
    found = fit.gradient(federation, bench.node, bench.model, fit.Job(JOB.federation, 2), start)
    tokens, labels = _second_batch(bench, federation)
    adapter = Adapter(bench.model, federation.config(bench.model).form, None)
    adapter.load_state(start)
    loss, expected = fb.gradients(bench.model, adapter, tokens, labels)
    assert found.measures["loss"] == pytest.approx(loss, rel=1e-6)
    assert found.tokens == sum(label != -100 for each in labels for label in each[1:])
    for name, gradient in expected.items():
        np.testing.assert_allclose(found.arrays[name], gradient, rtol=1e-5, atol=1e-8, err_msg=name)
    assert _same(found.arrays, _in_this_process(bench, federation, adapter))


def _in_this_process(bench: Bench, federation: Federation, adapter: Adapter) -> Arrays:
    """The gradient of the second batch, with the plan that the node's process had."""
    plan = decode(Planned, read_json(bench.work / "gradient.json"), "gradient.json").plan
    group = fit.batches(bench.node, federation.config(bench.model), bench.model, fit.Job(JOB.federation, 2))
    method = methods.create("mesp", bench.model, adapter, plan, bench.folder)
    gathered = adapter.parameters.zeros_like(adapter.parameters.size)
    for batch in group.batches:
        method.gradients(batch, 1 / group.n_terms, gathered)
    return adapter.state(gathered)


def test_the_gradient_keeps_to_the_budget_and_a_process_that_ignores_it_is_found(bench: Bench) -> None:
    """The examples are longer than the default of `seq_len`, and together much larger than the least budget."""
    turns = [{"role": "user", "content": "Repeat."}, {"role": "assistant", "content": "ab cd " * 66}]
    bench.data.write_text(f"{json.dumps({'messages': turns})}\n" * 16)
    federation, start = bench.federation(**{"train.batch_size": 16}), bench.start()

    def gradient(memory: str | None) -> fit.Result:
        return fit.gradient(federation, replace(bench.node, memory=memory), bench.model, JOB, start)

    with pytest.raises(BudgetError) as refused:
        gradient("1MB")
    least = named_mb(str(refused.value))
    assert str(refused.value).startswith("Training does not fit in 1MB: these options need at least --memory")
    assert str(refused.value).count("\n") == 0
    small, large = gradient(f"{least}MB"), gradient(None)
    assert small.measures["peak_rss_mb"] <= least
    assert large.measures["peak_rss_mb"] > least + 20
    assert small.tokens == large.tokens
    for name, each in large.arrays.items():
        np.testing.assert_allclose(small.arrays[name], each, rtol=1e-4, atol=1e-6, err_msg=name)


def test_steps_share_a_plan_until_the_budget_changes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else stays in the node's folder."""
    start, planned, baseline = bench.start(), [], gradient_process.worker_baseline
    monkeypatch.setattr(gradient_process, "worker_baseline", lambda: planned.append(1) or baseline())
    for number, memory in enumerate(("200MB", "200MB", "least"), 1):
        node = replace(bench.node, memory=memory)
        fit.gradient(bench.federation(), node, bench.model, fit.Job(JOB.federation, number), start)
    assert len(planned) == 2
    assert sorted(path.name for path in bench.work.iterdir()) == ["gradient.json", "train.tokens"]


def _second_batch(bench: Bench, federation: Federation) -> tuple[list[list[int]], list[list[int]]]:
    from featherback.runs.stream import BatchStream

    config = federation.config(bench.model)
    file = TokenFile(bench.folder / "work" / JOB.federation / "train.tokens")
    stream = BatchStream(file, config.batching, config.seed)
    for _ in range(2):
        group = stream.take(1)
        assert group is not None
        (batch,) = group.batches
    ends = batch.cu_seqlens
    tokens = [batch.tokens[a:b].tolist() for a, b in pairwise(ends)]
    targets = [batch.targets[a:b].tolist() for a, b in pairwise(ends)]
    return tokens, [[-100, *each[:-1]] for each in targets]  # a target is the next token; a label stands at its token


def test_nothing_but_tensors_and_numbers_leaves_the_node(finished: Round, bench: Bench) -> None:
    numbers = {"loss", "seconds", "peak_rss_mb"}
    gradient = fit.gradient(bench.federation(), bench.node, bench.model, JOB, bench.start())
    for result, names in ((finished.result, {*numbers, "steps"}), (gradient, numbers)):
        assert vars(result).keys() == {"arrays", "tokens", "measures"}
        assert all(isinstance(value, float) for value in result.measures.values())
        assert result.measures.keys() == names
        json.dumps(dict(result.measures))
