"""Plans for a card: within its memory, faster with more of it, and refused with the amount that is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from featherback.core.sizes import MB
from featherback.engine import backend
from featherback.engine.backend.protocol import Card
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.methods import METHODS
from featherback.methods.memory import on_card
from featherback.methods.memory.job import Job
from featherback.models.architecture.config import QWEN2_5
from tests.support.tiers import some

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def the_usual_device() -> Iterator[None]:
    with backend.restored():
        yield


def _card(megabytes: int) -> Card:
    card = backend.use("cpu-torch", megabytes * MB)
    assert card is not None
    return card


def _job(method: str = "mesp", **options: object) -> Job:
    return Job.of_shape(
        QWEN2_5["0.5B"], TensorType.Q4_0, method=METHODS[method], compute="bf16", tokens=512, sequence=512, **options
    )


def test_weights_are_streamed_where_they_do_not_fit() -> None:
    job, plans = _job(), {}
    least = on_card.smallest(job, _card(1000)) // MB + 1
    assert least < job.weight_bytes / MB
    for megabytes in (least + 20, 200, 1500):
        plans[megabytes] = plan = on_card.choose(job, _card(megabytes), 1e12)
        assert plan.predicted_vram_mb is not None
        assert plan.predicted_vram_mb <= megabytes
    ways = [plan.weights for plan in plans.values()]
    assert ways == ["streamed", "streamed", "resident"]
    seconds = [plan.predicted_step_seconds or 0 for plan in plans.values()]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("method", some(METHODS.names, 2))
def test_a_refusal_names_an_amount_that_is_enough(method: str) -> None:
    job = _job(method)
    with pytest.raises(FeatherbackError, match="needs at least") as raised:
        on_card.choose(job, _card(16))
    found = re.search(r"vram\W+(\d+)MB", str(raised.value))
    assert found is not None
    assert on_card.choose(job, _card(int(found[1])), 1e12).predicted_vram_mb is not None


def test_seconds_follow_the_measured_product() -> None:
    job, card = _job(), _card(1000)
    slow, fast = (on_card.choose(job, card, rate) for rate in (1e9, 1e10))
    assert slow.predicted_step_seconds == pytest.approx(10 * (fast.predicted_step_seconds or 0))
    assert replace(slow, predicted_step_seconds=None) == replace(fast, predicted_step_seconds=None)
