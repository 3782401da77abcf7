"""The same job has the same plan, whatever is measured. No kernel runs here."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from featherback.engine import kernels
from featherback.engine.host.machine import VARIATION, Baseline, Machine
from featherback.engine.host.rates import NOMINAL
from featherback.methods.memory import planner
from featherback.methods.memory.plan import Plan
from tests.methods.memory.test_planner import BASELINE, MB, job
from tests.support.tiers import some

SHOWN = ("predicted_step_seconds", "least_step_seconds", "fastest_step_seconds", "predicted_footprint_mb")
"""Fields of a plan that are only displayed, and may be measured."""


def _decided(plan: Plan) -> dict[str, Any]:
    return {name: value for name, value in asdict(plan).items() if name not in SHOWN}


def _measured(drawn: random.Random, memory: int) -> tuple[Baseline, Machine]:
    """Measurements that a run may make: rates within a factor of three, and one of several similar baselines."""

    def about(rate: float) -> float:
        return rate * 3 ** drawn.uniform(-0.5, 0.5)

    machine = Machine(about(4e11), about(1.5e11), about(1e10), about(1.6e10), memory)
    size = BASELINE.rss + drawn.randrange(VARIATION)
    return Baseline(BASELINE.footprint, size).settled(process="worker"), machine


JOB = job("smollm2-135m", tokens=512)


@pytest.mark.parametrize("budget", some([51, 60, 90, None], 2))
def test_a_plan_depends_on_nothing_that_is_measured(budget: int | None) -> None:
    found = [_measured(random.Random(seed), 300 * MB) for seed in range(4)]
    plans = [_decided(planner.choose(JOB, budget and budget * MB, *each)) for each in found]
    assert all(plan == plans[0] for plan in plans)


@pytest.mark.parametrize("tokens", some([256, 1024], 1))
def test_without_a_budget_a_plan_does_not_depend_on_the_threads(tokens: int) -> None:
    """With a budget it may: each thread takes memory."""
    jobs = [replace(job("smollm2-135m", tokens=tokens), threads=threads) for threads in (1, 2, 7, 16)]
    plans = [_decided(planner.choose(each, None, *_measured(random.Random(1), 8000 * MB))) for each in jobs]
    for plan in plans:
        for name in ("least_mb", "fastest_mb", "predicted_rss_mb"):  # these count the threads
            plan.pop(name)
    assert all(plan == plans[0] for plan in plans)


def test_each_instruction_set_has_rates_in_each_compute() -> None:
    assert NOMINAL.keys() >= set(kernels._NOTES) | set(kernels.available())
    for rates in NOMINAL.values():
        assert rates.products.keys() == rates.unpacked.keys() == kernels.OPERANDS.keys()
        assert min(*rates.products.values(), *rates.unpacked.values(), rates.attention) > 0
