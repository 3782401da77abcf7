"""Answers that a model writes in a training run: their tokens, their log-probabilities, and what they may depend on."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from featherback import methods, models
from featherback.data.batch import IGNORE, Batch, Targets
from featherback.infer import rollouts
from featherback.infer.rollouts import Asked, Desk, Draws, Written, layout_of
from featherback.infer.scheduler import Scheduler
from featherback.methods.base import ForwardOnly
from featherback.methods.memory.plan import Plan, Weights
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.nn.objectives.base import PerTarget
from featherback.nn.objectives.next_token import NextToken
from tests.support.tiny_chat import write_tiny_chat

BOUND = 1e-4
END = 258
MOST = 12
PROMPTS = [np.random.default_rng(p).integers(0, 200, 9 + 14 * p).tolist() for p in range(3)]
ASKED = [Asked(prompt, (7, 1, 3, place, index)) for place, prompt in enumerate(PROMPTS) for index in range(4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return models.load(write_tiny_chat(tmp_path_factory.mktemp("model") / "chat.gguf"))


@pytest.fixture(scope="module")
def adapter(model: Model) -> LoRA:
    made, rng = LoRA(model, 4, 16.0, "all"), np.random.default_rng(0)
    made.load_state({name: rng.normal(0, 0.1, each.shape).astype(np.float32) for name, each in made.state().items()})
    return made


def desk(model: Model, adapter: LoRA, slots: int = 5, weights: Weights = "resident", compute: str = "fp32") -> Desk:
    plan = replace(Plan.default(model.config, tokens=64, compute=compute), weights=weights)
    return Desk(model, adapter, len(PROMPTS[-1]) + MOST, compute, layout_of(plan), slots)


def written(at: Desk, asked: Sequence[Asked] = ASKED, ends: Sequence[int] = (END,)) -> list[Written]:
    return at.write(asked, MOST, ends, lambda: None)


class Kept(NextToken):
    """Keeps the log-probabilities of a pass."""

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        found.append((targets.sequences, logp.first))
        return super().__call__(targets, logp)


found: list[Any] = []


def of_a_pass(model: Model, adapter: LoRA, answers: Sequence[Written]) -> list[NDArray[np.float64]]:
    """Return the log-probabilities of the tokens of answers by a forward pass of training."""
    labels = [[IGNORE] * len(asked.prompt) + each.tokens for asked, each in zip(ASKED, answers)]
    batch = Batch.from_sequences([[*asked.prompt, *each.tokens] for asked, each in zip(ASKED, answers)], labels)
    plan = Plan.default(model.config, tokens=batch.n_tokens, compute="fp32")
    method = methods.create_of(ForwardOnly, model, adapter, plan)
    found.clear()
    method.loss(batch, objective=Kept())
    method.close()
    owners, logp = (np.concatenate(each) for each in zip(*found[-1:]))
    return [logp[owners == at] for at in range(len(answers))]


def most_apart(model: Model, adapter: LoRA, answers: Sequence[Written]) -> float:
    passed = of_a_pass(model, adapter, answers)
    return max(float(np.abs(mine - each.logps).max()) for mine, each in zip(passed, answers))


def test_log_probabilities_are_those_of_a_later_pass(model: Model, adapter: LoRA) -> None:
    assert most_apart(model, adapter, written(desk(model, adapter))) < BOUND


def test_log_probabilities_without_the_adapter_are_found_to_differ(model: Model, adapter: LoRA) -> None:
    assert most_apart(model, adapter, written(replace(desk(model, adapter), adapter=None))) > 100 * BOUND


@pytest.mark.parametrize("slots", [1, 3, 12])
def test_answers_do_not_depend_on_what_else_is_written(model: Model, adapter: LoRA, slots: int) -> None:
    answers, order = written(desk(model, adapter)), np.random.default_rng(1).permutation(len(ASKED))
    assert len({tuple(each.tokens) for each in answers}) > len(PROMPTS)
    others = written(desk(model, adapter, slots), [ASKED[at] for at in order])
    assert [others[int(np.flatnonzero(order == at)[0])] for at in range(len(ASKED))] == answers


def test_equal_keys_that_are_used_for_all_answers_are_found(model: Model, adapter: LoRA) -> None:
    """The check above finds random numbers that depend on the order: here, those of the process."""
    rng = np.random.default_rng(0)

    def drawn(key: Any, n: int, first: int = 0) -> NDArray[np.uint64]:
        return rng.integers(0, 2**63, n).astype(np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollouts, "bits", drawn)
        assert written(desk(model, adapter)) != written(desk(model, adapter))


@pytest.mark.parametrize("weights", ["paged", "by_matrix", "streamed"])
def test_small_layouts_write_the_same_up_to_rounding(model: Model, adapter: LoRA, weights: Weights) -> None:
    answers = written(desk(model, adapter, weights=weights))
    assert most_apart(model, adapter, answers) < BOUND


def test_an_answer_has_its_end_token_and_nothing_after_it(model: Model, adapter: LoRA) -> None:
    ends = sorted({each.tokens[2] for each in written(desk(model, adapter))})
    answers = written(desk(model, adapter), ends=ends)
    assert any(each.ended for each in answers)
    for each in answers:
        assert each.ended == (each.tokens[-1] in ends)
        assert not set(each.tokens[:-1]) & set(ends)
        assert len(each.logps) == len(each.tokens)
        assert each.ended or len(each.tokens) == MOST
    assert most_apart(model, adapter, answers) < BOUND


def test_greedy_answers_are_the_likeliest(model: Model, adapter: LoRA) -> None:
    greedy = written(desk(model, adapter), [Asked(prompt, None) for prompt in PROMPTS])
    best = [max(each.logps[0] for each in written(desk(model, adapter))[4 * p : 4 * p + 4]) for p in range(3)]
    assert all(each.logps[0] >= top for each, top in zip(greedy, best))


def test_tokens_are_drawn_by_their_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.25, 1e-30, 0.15, 0.1], np.float32)) + np.float32(3)
    draws = Draws((1, 2))
    counts = np.bincount([draws(logits) for _ in range(4000)], minlength=5) / 4000
    np.testing.assert_allclose(counts, [0.5, 0.25, 0, 0.15, 0.1], atol=0.03)
    assert [Draws((1, 2))(logits) for _ in range(3)] == [Draws((1, 2))(logits)] * 3


def test_writing_stays_within_its_memory(model: Model, adapter: LoRA, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer waits for memory while a slot is free, and what changes with answers never takes more."""
    used, at = list[int](), desk(model, adapter)
    step = Scheduler.step

    def watched(self: Scheduler) -> Any:
        used.append(self._used)
        return step(self)

    monkeypatch.setattr(Scheduler, "step", watched)
    written(at)
    assert max(used) <= at.memory
    starved = desk(model, adapter)
    starved.__dict__["memory"] = at.memory - at._adapter_bytes
    assert len(written(starved)) == len(ASKED)
    assert max(used[len(used) // 2 :]) <= starved.memory  # fewer at once, not more memory


def test_a_check_that_raises_ends_writing(model: Model, adapter: LoRA) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        desk(model, adapter).write(ASKED, MOST, (END,), check)
    assert written(desk(model, adapter))


def test_more_answers_at_once_take_more_memory(model: Model, adapter: LoRA) -> None:
    sizes = [desk(model, adapter, slots).private_bytes for slots in (1, 4, 16)]
    assert sizes == sorted(set(sizes))


def test_nothing_of_the_writing_stays_in_memory(model: Model, adapter: LoRA, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step writes with a scheduler of its own, and the adapter outlives them all."""
    made, start = list[weakref.ref[Scheduler]](), Scheduler.__init__

    def watched(self: Scheduler, *given: Any, **named: Any) -> None:
        made.append(weakref.ref(self))
        start(self, *given, **named)

    monkeypatch.setattr(Scheduler, "__init__", watched)
    for _ in range(2):
        written(desk(model, adapter))
    assert [each() for each in made] == [None, None]
