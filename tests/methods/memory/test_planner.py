"""The planner's promises, on artificial machines. No kernel runs here."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from benchmarks.synthetic import CONFIGS
from featherback.engine.formats.types import TensorType
from featherback.engine.host.machine import Baseline
from featherback.engine.host.rates import nominal
from featherback.errors import FeatherbackError
from featherback.methods import METHODS
from featherback.methods.base import KeepingOptions
from featherback.methods.memory import planner
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan
from featherback.models.form import Form
from featherback.optim.rules.adamw import AdamW
from featherback.optim.rules.sgd import SGD
from tests.support.tiers import some
from tests.support.tiny_models import TINY_GEMMA3

MB = 10**6
MACHINE = nominal("bf16")
BASELINE = Baseline(15 * MB, 29 * MB)


def job(name: str = "qwen2.5-0.5b", method: str = "mesp", tokens: int = 256, **options: object) -> Job:
    return Job.of_shape(
        CONFIGS[name], TensorType.Q4_0, method=METHODS[method], tokens=tokens, sequence=tokens, threads=2, **options
    )


@pytest.mark.parametrize("method", METHODS.names)
@pytest.mark.parametrize("name", some(CONFIGS, 5))
def test_the_chosen_plan_fits_and_is_the_fastest_that_does(name: str, method: str) -> None:
    asked = job(name, method)
    least = planner.smallest(asked, BASELINE, MACHINE)
    others = [planner.predict(asked, p, BASELINE, MACHINE) for p in planner.candidates(asked)]
    for factor in (1.0, 1.1, 1.5, 3, 10):
        budget = int(least.rss * factor)
        plan = planner.choose(asked, budget, BASELINE, MACHINE)
        assert plan.predicted_rss_mb is not None
        assert round(plan.predicted_rss_mb * MB) <= budget
        fastest = min(p.seconds for p in others if p.rss <= budget)
        assert plan.predicted_step_seconds is not None
        if plan.keep:
            assert plan.predicted_step_seconds < fastest
        else:
            assert plan.predicted_step_seconds == fastest


def some_of(values: range) -> list[int]:
    """Return the first, the last and a random sample of the values."""
    return [values[0], *sorted(random.Random(0).sample(values[1:-1], 16)), values[-1]]


@pytest.mark.parametrize(("tokens", "free"), some([(256, 120), (1024, 600), (256, None), (256, 450)], 2))
def test_more_memory_is_never_slower(tokens: int, free: int | None) -> None:
    """`free`: megabytes of the machine. With 600, the page cache holds the weights as well for some budgets only."""
    asked = job(tokens=tokens)
    machine = replace(MACHINE, memory=free and free * MB)
    least = planner.smallest(asked, BASELINE, machine).rss
    seconds = [
        planner.choose(asked, least + extra * MB, BASELINE, machine).predicted_step_seconds or 0
        for extra in some_of(range(600))
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]


def test_eight_bits_are_kept_only_where_they_are_asked_for_and_pay() -> None:
    exact = job()
    rough = job(options=KeepingOptions(keep_precision="8bit"))
    least = planner.smallest(exact, BASELINE, MACHINE).rss
    assert planner.smallest(rough, BASELINE, MACHINE).rss == least
    seconds = []
    for extra in (0, 60 * MB, 120 * MB, 2000 * MB):
        usual, asked = (planner.choose(each, least + extra, BASELINE, MACHINE) for each in (exact, rough))
        assert not usual.encodings
        if 0 < extra < 2000 * MB:
            assert asked.encodings == {"gate": "blocks8", "up": "blocks8"}
            assert asked.keep["gate"] > 1.2 * usual.keep.get("gate", 0)
            assert (asked.predicted_step_seconds or 0) < (usual.predicted_step_seconds or 0)
        else:
            assert asked == usual  # nothing is kept, or there is room for everything
        assert round((asked.predicted_rss_mb or 0) * MB) <= least + extra
        seconds.append(asked.predicted_step_seconds or 0)
    assert seconds == sorted(seconds, reverse=True)


GEMMA3 = replace(  # F of which no tile is a multiple
    TINY_GEMMA3, num_hidden_layers=2, windows=(64, 0), intermediate_size=3008, vocab_size=3000
)


@pytest.mark.parametrize("free", some([61, None], 1))
def test_a_little_more_memory_is_never_slower(free: int | None) -> None:
    asked = Job.of_shape(
        GEMMA3, TensorType.Q8_0, method=METHODS["mesp"], tokens=300, sequence=100, form=Form.of(rank=1), compute="fp32"
    )
    machine = replace(MACHINE, memory=free and free * MB)
    least = planner.smallest(asked, BASELINE, machine).rss
    plans = [planner.choose(asked, least + extra * MB // 8, BASELINE, machine) for extra in some_of(range(60))]
    seconds = [plan.predicted_step_seconds or 0 for plan in plans]
    assert seconds == sorted(seconds, reverse=True)
    assert not plans[0].keep
    assert plans[-1].keep


def test_weights_that_stay_mapped_are_counted_once() -> None:
    asked = job()
    resident = Plan(tokens=256, mlp_tile=2048, vocab_tile=2048)
    needed = planner.predict(asked, resident, BASELINE, MACHINE)
    for room, exceeds_page_cache in ((0, False), (-1, True)):
        machine = replace(MACHINE, memory=needed.rss + room)
        assert planner.predict(asked, resident, BASELINE, machine).exceeds_page_cache == exceeds_page_cache


@pytest.mark.parametrize("method", some(METHODS.names, 2))
def test_a_refusal_names_a_budget_that_is_accepted(method: str) -> None:
    asked = job(method=method)
    refusal = r"does not fit in 20MB: .*--memory \d+MB; a smaller --seq-len"
    with pytest.raises(FeatherbackError, match=refusal) as caught:
        planner.choose(asked, 20 * MB, BASELINE, MACHINE)
    named = int(re.findall(r"--memory (\d+)MB", str(caught.value))[0])
    larger = Baseline(BASELINE.footprint, BASELINE.rss + planner.VARIATION)
    smaller = Baseline(BASELINE.footprint, BASELINE.rss - planner.VARIATION)
    for measured_again in (smaller, BASELINE, larger):
        planner.choose(asked, named * MB, measured_again, MACHINE)
    with pytest.raises(FeatherbackError):
        planner.choose(asked, (named - 2) * MB, BASELINE, MACHINE)


@pytest.mark.parametrize("kilobytes", some([0, 300, 600, 900], 2))
def test_the_budget_named_survives_another_baseline_and_the_cap_stays(kilobytes: int) -> None:
    """The least budget is enough, wherever it lies between two megabytes."""
    asked, first = job(), Baseline(BASELINE.footprint, BASELINE.rss + kilobytes * 1000)
    named = planner.least_budget(planner.smallest(asked, first, MACHINE).rss)
    again = Baseline(first.footprint, first.rss + planner.VARIATION)
    least = planner.smallest(asked, again, MACHINE).rss
    assert least <= named < least + MB
    assert (planner.choose(asked, named, again, MACHINE).predicted_rss_mb or 0) * MB <= named


@pytest.mark.parametrize("method", some(METHODS.names, 2))
def test_the_least_memory_grows_with_the_job(method: str) -> None:
    small: dict[str, object] = {
        "name": "smollm2-135m", "tokens": 128, "form": Form.of(rank=4), "rule": SGD(), "compute": "bf16",
    }  # fmt: skip
    large: dict[str, object] = {
        "name": "qwen2.5-0.5b", "tokens": 1024, "form": Form.of(rank=32), "rule": AdamW(), "compute": "fp32",
    }  # fmt: skip

    def least(**changed: object) -> planner.Prediction:
        return planner.smallest(job(method=method, **small | changed), BASELINE, MACHINE)  # type: ignore[arg-type]

    usual = least()
    for key, value in large.items():
        found = [usual, least(**{key: value})]
        for what in ("rss", "footprint"):
            if (key, what) == ("name", "footprint"):
                continue  # a small model's least resident memory is streamed, through buffers of its own
            needed = [getattr(each, what) for each in found]
            assert needed == sorted(needed), (key, what)
            # The optimiser's buffers come when the weights' pages are gone, and MeBP's resident peak is at the head,
            # which knows no adapter: no more need be resident for either.
            flat = {("rule", "rss"), ("form", "rss")} if method == "mebp" else {("rule", "rss")}
            assert needed[0] < needed[-1] or (key, what) in flat


def test_the_methods_stand_in_the_papers_order() -> None:
    mezo, mesp, mebp = (planner.smallest(job(method=m), BASELINE, MACHINE) for m in ("mezo", "mesp", "mebp"))
    assert mezo.rss <= mesp.rss < mebp.rss
    assert mesp.footprint < mebp.footprint / 2


def test_depth_costs_nothing_once_paged() -> None:
    asked = job()
    deeper = replace(
        asked, blocks=[*asked.blocks] * 4, stored=[*asked.stored] * 4, accounts={}, weight_bytes=asked.weight_bytes * 4
    )
    least = [planner.smallest(j, BASELINE, MACHINE) for j in (asked, deeper)]
    assert least[0].rss == least[1].rss
    assert least[0].footprint == least[1].footprint


def test_no_plan_takes_more_than_the_machine_has() -> None:
    asked = job()
    least = planner.smallest(asked, BASELINE, MACHINE).rss
    tight = replace(MACHINE, memory=least + MB)
    for budget in (None, 10 * least):
        plan = planner.choose(asked, budget, BASELINE, tight)
        assert (plan.predicted_rss_mb or 0) * MB <= least + MB
    plan = planner.choose(asked, least, BASELINE, tight)
    assert (plan.predicted_rss_mb or 0) * MB <= least
    full = replace(MACHINE, memory=least - MB)
    for budget in (None, 10 * least, 20 * MB):  # no budget would do, so none is named
        with pytest.raises(FeatherbackError, match=r"only \d+MB are free .* need at least \d+MB; a smaller") as refusal:
            planner.choose(asked, budget, BASELINE, full)
        assert "--memory" not in str(refusal.value)
        assert f"only {(least - MB) // MB}MB" in str(refusal.value)
    with pytest.raises(FeatherbackError, match=r"does not fit in 20MB: .* --memory \d+MB"):
        planner.choose(asked, 20 * MB, BASELINE, tight)


def test_a_run_directory_in_memory_is_no_relief() -> None:
    """In that case no plan uses files, and everything that stays in the process is counted."""
    asked = job()
    in_memory = replace(asked, files=False, accounts={})
    plans = list(planner.candidates(in_memory))
    assert {(plan.checkpoints, plan.states) for plan in plans} == {("ram", "ram")}
    least, more = (planner.smallest(j, BASELINE, MACHINE) for j in (asked, in_memory))
    arrays = asked.trained_floats * asked.config.num_hidden_layers * 4
    assert more.rss >= least.rss + arrays
    with pytest.raises(FeatherbackError, match="does not fit"):
        planner.choose(in_memory, planner.least_budget(least.rss), BASELINE, MACHINE)


def test_without_a_budget_the_plan_is_frugal() -> None:
    asked = job()
    plan = planner.choose(asked, None, BASELINE, MACHINE)
    least = planner.smallest(asked, BASELINE, MACHINE)
    assert (plan.predicted_rss_mb or 0) * MB <= planner.FRUGAL * least.rss
    assert (plan.predicted_step_seconds or 0) <= least.seconds


@pytest.mark.parametrize("free", some([400, 1000, 8000], 1))
def test_without_a_budget_a_share_of_what_is_free_is_taken_for_speed(free: int) -> None:
    asked, machine = job(), replace(MACHINE, memory=free * MB)
    share = int(max(planner.SPARE * free * MB, planner.FRUGAL * planner.smallest(asked, BASELINE, machine).rss))
    plan = planner.choose(asked, None, BASELINE, machine)
    assert (plan.predicted_rss_mb or 0) * MB <= share
    assert plan == planner.choose(asked, share, BASELINE, machine)


def test_a_plan_says_what_the_least_and_the_most_memory_would_give() -> None:
    asked = job()
    plan = planner.choose(asked, 60 * MB, BASELINE, MACHINE)
    assert plan.least_mb
    assert plan.fastest_mb
    least, fastest = (planner.choose(asked, mb * MB, BASELINE, MACHINE) for mb in (plan.least_mb, plan.fastest_mb))
    assert least.predicted_step_seconds == plan.least_step_seconds
    assert fastest.predicted_step_seconds == plan.fastest_step_seconds
    more = planner.choose(asked, 2 * plan.fastest_mb * MB, BASELINE, MACHINE)
    assert more.predicted_step_seconds == plan.fastest_step_seconds
    with pytest.raises(FeatherbackError, match="does not fit"):
        planner.choose(asked, (plan.least_mb - 2) * MB, BASELINE, MACHINE)


def test_the_most_useful_memory_is_never_less_than_a_command_needs() -> None:
    plan = planner.choose(job(), 60 * MB, BASELINE, MACHINE)
    assert plan.least_mb
    assert plan.fastest_mb
    little, much = (plan.within_command(mb * MB) for mb in (plan.least_mb + 1, plan.fastest_mb + 5))
    assert (little.least_mb, little.fastest_mb) == (plan.least_mb + 1, plan.fastest_mb)
    assert (much.least_mb, much.fastest_mb) == (plan.fastest_mb + 5, plan.fastest_mb + 5)
    assert much.least_step_seconds == much.fastest_step_seconds == plan.fastest_step_seconds


@pytest.mark.parametrize(
    ("free", "weights"), some([(200 * MB, "streamed"), (10_000 * MB, "paged"), (None, "paged")], 2)
)
def test_weights_are_streamed_where_the_page_cache_cannot_hold_them(free: int | None, weights: str) -> None:
    plan = planner.choose(job(), 96 * MB, BASELINE, replace(MACHINE, memory=free))
    assert plan.weights == weights
