"""Objectives on preferences, through whole models: gradients against transformers, PEFT and autograd.

Packed pairs share their prompt; the truth runs each answer behind its own prompt. `tests/methods/trl.py` compares the
same with TRL's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax

from featherback.data.batch import Batch
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.nn.objectives import preference
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.dpo import DPO
from featherback.nn.objectives.ipo import IPO
from featherback.nn.objectives.kto import KTO
from featherback.nn.objectives.orpo import ORPO
from featherback.nn.objectives.robust_dpo import RobustDPO
from featherback.nn.objectives.simpo import SimPO
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, errors, with_plan
from tests.support.oracle import PEFT_PREFIX, State, random_adapter, with_adapter
from tests.support.preferences import CASES, batch_of, examples, labelled, objective_of, truth_of
from tests.support.tiers import some

BOUND = 1e-4


def truth(twins: Twins, state: State, loss: Callable[[Callable[[list[int]], torch.Tensor]], torch.Tensor]) -> Result:
    """Return a loss of log-probabilities, and its gradients by the adapter."""
    peft = with_adapter(twins.reference, state, 16)

    def logps(tokens: list[int]) -> torch.Tensor:
        logits = peft(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1].double()
        return log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]

    value = loss(logps)
    value.backward()
    grads = {n.removeprefix(PEFT_PREFIX).replace(".default.", "."): p.grad for n, p in peft.named_parameters()}
    found = {name: grad.numpy().copy() for name, grad in grads.items() if grad is not None}
    peft.unload()
    return Result(value.item(), found)


def ours(twins: Twins, state: State, batch: Batch, objective: Objective, method: str = "mesp", **plan: Any) -> Result:
    chosen = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
    chosen = replace(chosen, mlp_tile=256, vocab_tile=48, **plan)
    return with_plan(twins.model, state, batch, chosen, method, objective=objective)


def both(twins: Twins, case: str, share: bool = True, method: str = "mesp", **plan: Any) -> tuple[Result, Result]:
    """Return our result and the truth."""
    found = examples(twins.model.config.vocab_size, labelled(case))
    state, objective = random_adapter(twins.reference, 4, seed=1), objective_of(case)
    mine = ours(twins, state, batch_of(found, objective, share), objective, method, **plan)
    return mine, truth(twins, state, lambda logps: truth_of(case, found, logps))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("plan", [{}, {"chunk": 7}, {"chunk": 1}], ids=str)
def test_gradients_are_autograds(all_twins: dict[str, Twins], case: str, plan: dict[str, Any]) -> None:
    mine, true = both(all_twins["llama"], case, **plan)
    assert_close(mine, true, BOUND)


@pytest.mark.parametrize("case", ["dpo", "orpo", "kto"])
@pytest.mark.parametrize(
    "name", some(["gemma3-wide-window", "qwen3-yarn", "granite", "qwen2", "smollm3", "olmo2", "phi3"], 3)
)
def test_in_other_families(all_twins: dict[str, Twins], name: str, case: str) -> None:
    for plan in ({}, {"chunk": 16}):
        mine, true = both(all_twins[name], case, **plan)
        assert_close(mine, true, BOUND)


@pytest.mark.parametrize("case", ["dpo", "orpo", "kto"])
@pytest.mark.parametrize("name", ["lfm2", "mistral-window", "gemma2", "llama"])
def test_pairs_that_do_not_share_their_prompt(all_twins: dict[str, Twins], name: str, case: str) -> None:
    mine, true = both(all_twins[name], case, share=False)
    assert_close(mine, true, BOUND)


def test_mebp_is_mesp(all_twins: dict[str, Twins]) -> None:
    mine, true = both(all_twins["llama"], "rpo", method="mebp")
    assert_close(mine, true, BOUND)


def test_a_model_that_cannot_share_prompts_rejects_packed_pairs(all_twins: dict[str, Twins]) -> None:
    with pytest.raises(FeatherbackError, match="Prepare the data again"):
        both(all_twins["lfm2"], "dpo")


def swapped(batch: Batch) -> Batch:
    """Fault: the reference's log-probabilities of chosen and rejected answers are swapped."""
    assert batch.answers is not None
    known = batch.answers.reference.reshape(-1, 2)[:, ::-1].reshape(-1)
    return replace(batch, answers=replace(batch.answers, reference=known))


def one_of_two(batch: Batch) -> Batch:
    """Fault: the last row of a prompt has only one target."""
    return replace(batch, further=None)


def of_its_row(batch: Batch) -> Batch:
    """Fault: the second target of a row counts for the first one's answer."""
    assert batch.further is not None
    return replace(batch, further=replace(batch.further, sequences=None))


def not_restarting(batch: Batch) -> Batch:
    """Fault: the rejected answer's positions go on behind the chosen one."""
    positions = batch.positions.copy()
    for start, stop in zip(batch.cu_seqlens[2::3], batch.cu_seqlens[3::3]):
        positions[start:stop] += positions[start - 1] + 1 - positions[start]
    return replace(batch, positions=positions)


BATCHES = {each.__name__: each for each in (swapped, one_of_two, of_its_row, not_restarting)}


@pytest.mark.parametrize("fault", BATCHES)
def test_a_fault_of_the_batch_is_found(all_twins: dict[str, Twins], fault: str) -> None:
    twins = all_twins["llama"]
    found, objective = examples(twins.model.config.vocab_size), objective_of("dpo")
    state, batch = random_adapter(twins.reference, 4, seed=1), batch_of(found, objective)
    true = truth(twins, state, lambda logps: truth_of("dpo", found, logps))
    assert_close(ours(twins, state, batch, objective), true, BOUND)
    wrong = ours(twins, state, BATCHES[fault](batch), objective)
    assert max(errors(wrong.grads, true.grads).values()) > 100 * BOUND


def without_lengths(patch: pytest.MonkeyPatch) -> None:
    """Fault: log-probabilities are not divided by the answers' lengths."""
    sums = preference.sums_of
    patch.setattr(preference, "sums_of", lambda *given: (sums(*given)[0], np.ones_like(sums(*given)[1])))


def same_sign(patch: pytest.MonkeyPatch) -> None:
    """Fault: the gradient of rejected answers has the sign of chosen ones."""
    for kind in (DPO, RobustDPO, IPO, SimPO, ORPO):
        compare = kind.compare

        def wrong(self: Any, *scores: Any, compare: Any = compare) -> Any:
            losses, chosen, rejected = compare(self, *scores)
            return losses, chosen, -rejected

        patch.setattr(kind, "compare", wrong)
    select = np.select
    patch.setattr(
        "featherback.nn.objectives.kto.np.select", lambda conditions, values: np.abs(select(conditions, values))
    )


def without_smoothing(patch: pytest.MonkeyPatch) -> None:
    """Fault: label smoothing is ignored."""
    for kind in (DPO, RobustDPO, SimPO):
        compare = kind.compare
        patch.setattr(
            kind, "compare", lambda self, *scores, compare=compare: compare(replace(self, label_smoothing=0.0), *scores)
        )


def without_likelihood(patch: pytest.MonkeyPatch) -> None:
    """Fault: the next-token loss of chosen answers is left out."""
    for kind in (DPO, ORPO):
        patch.setattr(kind, "likelihood_weight", 0.0)


def without_reference(patch: pytest.MonkeyPatch) -> None:
    """Fault: the reference is not subtracted."""
    for kind in (DPO, RobustDPO, IPO):
        patch.setattr(kind, "needs_reference", False)
    patch.setattr(KTO, "_scores", lambda self, targets, logp: preference.sums_of(targets, logp)[0])


def without_mismatched(patch: pytest.MonkeyPatch) -> None:
    """Fault: KTO takes z as zero."""
    patch.setattr("featherback.nn.objectives.kto.MISMATCHED", 9)


FAULTS = {
    without_lengths: ("ipo", "simpo", "orpo"),
    same_sign: ("dpo", "robust_dpo", "ipo", "simpo", "orpo", "kto"),
    without_smoothing: ("cdpo", "robust_dpo", "simpo"),
    without_likelihood: ("rpo", "orpo"),
    without_reference: ("dpo", "robust_dpo", "ipo", "kto"),
    without_mismatched: ("kto",),
}


@pytest.mark.parametrize(("plant", "case"), [(plant.__name__, case) for plant, all in FAULTS.items() for case in all])
def test_a_fault_of_an_objective_is_found(
    all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch, plant: str, case: str
) -> None:
    next(each for each in FAULTS if each.__name__ == plant)(monkeypatch)
    mine, true = both(all_twins["llama"], case)
    assert max(errors(mine.grads, true.grads).values()) > 100 * BOUND
