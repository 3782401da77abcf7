"""What a plan predicts for a model that is read from the disk in every step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from featherback.cli.preamble import describe_choice
from featherback.engine.formats.types import TensorType
from featherback.engine.host import disk
from featherback.engine.host.machine import Baseline, Machine
from featherback.methods import METHODS
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.nn.router import expected_experts
from tests.support.families.qwen3moe import TINY_QWEN3MOE
from tests.support.tiny_models import TINY_LLAMA, tiny

CONFIG = tiny(TINY_QWEN3MOE, hidden_size=256, experts=128, experts_used=8, num_hidden_layers=4)
BASELINE = Baseline(18_000_000, 35_000_000)
MACHINE = Machine(1e11, 1e11, 1e10, 1e10, memory=None, disk_rate=1e9)
SHORT = replace(MACHINE, memory=1)


def job(tokens: int = 256) -> Job:
    return Job.of_shape(CONFIG, TensorType.Q4_0, method=METHODS["mesp"], tokens=tokens, sequence=256)


def predict(asked: Job, machine: Machine, **plan: object) -> planner.Prediction:
    chosen = Plan(**{"tokens": asked.tokens, "mlp_tile": 256, "weights": "by_matrix", **plan})  # type: ignore[arg-type]
    return planner.predict(asked, chosen, BASELINE, machine)


@pytest.mark.parametrize("tokens", [1, 16, 256])
def test_the_experts_that_a_batch_selects_are_read_twice(tokens: int) -> None:
    asked = job(tokens)
    share = expected_experts(tokens, 128, 8) / 128
    read = 2 * share * asked.expert_bytes + 2 * asked.swept_bytes + asked.head.nbytes
    assert predict(asked, SHORT).reading == pytest.approx(read / 1e9)
    assert predict(asked, MACHINE).reading == 0
    assert asked.expert_bytes + asked.swept_bytes + asked.head.nbytes == asked.weight_bytes


def test_a_larger_batch_reads_less_per_token() -> None:
    one, sixteen = (predict(job(256 * n), SHORT).reading / n for n in (1, 16))
    assert one / sixteen >= 8


def test_chunks_read_experts_again() -> None:
    whole, chunks = (predict(job(512), SHORT, chunk=chunk).reading for chunk in (None, 128))
    assert chunks > 3 * whole


def test_a_step_takes_at_least_as_long_as_reading_its_experts() -> None:
    slow = replace(SHORT, disk_rate=1e6)
    found = predict(job(), slow)
    assert found.seconds >= predict(job(), slow).reading * job().expert_bytes / job().weight_bytes
    assert found.seconds > 5 * predict(job(), MACHINE).seconds


def test_dense_models_are_predicted_as_before() -> None:
    asked = Job.of_shape(TINY_LLAMA, TensorType.Q4_0, method=METHODS["mesp"], tokens=64, sequence=64)
    for machine in (MACHINE, SHORT):
        found, without = (
            planner.predict(asked, Plan(tokens=64, weights="paged"), BASELINE, each)
            for each in (machine, replace(machine, disk_rate=np.inf))
        )
        assert found.seconds == without.seconds
        assert found.rss == without.rss


def test_the_banner_says_what_dominates() -> None:
    plan = Plan(tokens=256, predicted_step_seconds=12.0, least_step_seconds=12.0, fastest_step_seconds=12.0)
    assert not list(describe_choice(replace(plan, predicted_reading_seconds=1.0), named=True))
    (note,) = describe_choice(replace(plan, predicted_reading_seconds=11.0), named=True)
    assert "12.0 s" in note
    assert "11.0 s" in note
    assert "--batch-size" in note


def test_the_disk_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(5 * disk.PIECE))
    assert (disk.rate_of(path) or 0) > 1e5
    path.write_bytes(b"small")
    assert disk.rate_of(path) is None
