"""Objectives on rollouts, through whole models: loss and gradients against the papers' equations under autograd.

Packed answers share their prompt; the truth runs each behind its own. `tests/methods/trl.py` compares the same with
TRL's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax

from featherback.data import prefixes
from featherback.data.batch import Batch, Rollouts
from featherback.nn.objectives import OBJECTIVES, dapo, grpo, gspo
from featherback.nn.objectives.base import PerTarget
from featherback.nn.objectives.sampled import Sampled
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close
from tests.methods.test_preferences import ours, truth
from tests.support.oracle import State, random_adapter, with_adapter
from tests.support.rollouts import SETTINGS, Answered, answered, batch_of, objective_of, truth_of

BOUND = 1e-4
NAMES = tuple(SETTINGS)


def test_each_objective_on_rollouts_has_a_truth() -> None:
    assert {name for name in OBJECTIVES.names if issubclass(OBJECTIVES[name], Sampled)} == set(NAMES)


def sampled(twins: Twins, state: State) -> list[Answered]:
    """Return answers with their log-probabilities now."""
    peft, found = with_adapter(twins.reference, state, 16), []
    for each in answered(twins.model.config.vocab_size):
        tokens = each.prompt + each.answer
        with torch.no_grad():
            logits = peft(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1].double()
        now = log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[-len(each.answer) :, 0]
        found.append(replace(each, now=now.tolist()))
    peft.unload()
    return found


def both(twins: Twins, name: str, method: str = "mesp", **plan: Any) -> tuple[Result, Result]:
    state = random_adapter(twins.reference, 4, seed=1)
    found, objective = sampled(twins, state), objective_of(name)
    mine = ours(twins, state, batch_of(found, objective), objective, method, **plan)
    return mine, truth(twins, state, lambda logps: truth_of(name, found, logps))


@pytest.mark.parametrize(("method", "chunk"), [("mesp", None), ("mesp", 7), ("mebp", None)])
@pytest.mark.parametrize("objective", NAMES)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_loss_and_gradients(
    all_twins: dict[str, Twins], family: str, objective: str, method: str, chunk: int | None
) -> None:
    assert_close(*both(all_twins[family], objective, method, chunk=chunk), BOUND)


def test_some_gradients_are_cut_on_either_side(all_twins: dict[str, Twins]) -> None:
    """Otherwise the comparison above would say nothing about the limits."""
    twins = all_twins["llama"]
    found = sampled(twins, random_adapter(twins.reference, 4, seed=1))
    for name in ("grpo", "gspo"):
        objective = objective_of(name)
        assert isinstance(objective, grpo.GRPO)
        targets = batch_of(found, objective).supervised()
        logp = PerTarget(np.concatenate([each.now for each in found]), np.empty(0))
        ratios, advantages, inside = objective._ratios(targets, logp)
        for sign in (-1, 1):
            assert np.any(~inside & (sign * advantages > 0) & (sign * (ratios - 1) > 0)), (name, sign)


def test_skipped_answers_add_nothing(all_twins: dict[str, Twins]) -> None:
    """A step leaves out answers whose advantage is 0; the sum is divided by the number of all."""
    twins, objective = all_twins["llama"], objective_of("grpo")
    state = random_adapter(twins.reference, 4, seed=1)
    found = sampled(twins, state)
    whole = batch_of(found, objective)
    assert whole.rollouts is not None
    kept = [at for at, each in enumerate(whole.rollouts.advantages) if each]
    assert len(kept) < len(found)
    part = _selected(whole, kept)
    mine, all_of_them = ours(twins, state, part, objective), ours(twins, state, whole, objective)
    share = len(kept) / len(found)
    scaled = Result(mine.loss * share, {name: share * each for name, each in mine.grads.items()})
    assert_close(scaled, all_of_them, BOUND)


def _selected(batch: Batch, kept: Sequence[int]) -> Batch:
    rows = np.concatenate([np.arange(*batch.cu_seqlens[at : at + 2]) for at in kept])
    sizes, known = np.diff(batch.cu_seqlens)[list(kept)], batch.rollouts
    assert known is not None
    return Batch(
        batch.tokens[rows], batch.targets[rows], batch.positions[rows], np.cumsum([0, *sizes], dtype=np.int32),
        rollouts=Rollouts(known.logp[rows], known.advantages[list(kept)], known.shares[list(kept)]),
    )  # fmt: skip


FAULTS = {
    "the deviation is of the population": "grpo",
    "answers are not normalised": "grpo",
    "the upper limit is the lower one": "dapo",
    "gradients are not cut": "grpo",
    "gradients are cut for the wrong sign": "grpo",
    "the ratio is that of a token": "gspo",
    "the ratio is a sum over the answer": "gspo",
    "log-probabilities of sampling stay where they were": "grpo",
}


def plant(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "the deviation is of the population":
        apart = lambda self, r: (r - r.mean(1, keepdims=True)) / (r.std(1, keepdims=True) + grpo.SMALL)  # noqa: E731
        monkeypatch.setattr(grpo.GRPO, "advantages", apart)
    elif fault == "answers are not normalised":
        monkeypatch.setattr(grpo.GRPO, "weights", dapo.DAPO.weights)
    elif fault == "the upper limit is the lower one":
        monkeypatch.setattr(grpo.GRPO, "_limits", property(lambda self: (1 - self.clip, 1 + self.clip)))
    elif fault.startswith("gradients are"):
        ratios = grpo.GRPO._ratios

        def planted(self: Any, targets: Any, logp: Any) -> Any:
            r, advantages, inside = ratios(self, targets, logp)
            if fault == "gradients are not cut":
                return r, advantages, inside | True
            return r, advantages, np.where(advantages < 0, r <= 1.3, r >= 0.8)

        monkeypatch.setattr(grpo.GRPO, "_ratios", planted)
    elif fault == "the ratio is that of a token":
        monkeypatch.setattr(gspo.GSPO, "log_ratios", grpo.GRPO.log_ratios)
    elif fault == "the ratio is a sum over the answer":
        each = gspo.GSPO.log_ratios
        monkeypatch.setattr(gspo.GSPO, "log_ratios", lambda self, t, logp: 2 * each(self, t, logp))
    else:
        assert fault == "log-probabilities of sampling stay where they were"
        monkeypatch.setattr(Rollouts, "at", lambda self, rows: replace(self, logp=self.logp[: len(rows)]))
        assert prefixes.share_prefixes  # answers to one prompt share it, which moves rows


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    plant(monkeypatch, fault)
    mine, known = both(all_twins["llama"], FAULTS[fault])
    with pytest.raises(AssertionError):
        assert_close(mine, known, 10 * BOUND)
