"""Trained heads, through whole models: gradients against transformers' classifiers, PEFT and autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, logsigmoid

from featherback import methods
from featherback.core.noise import Draw
from featherback.data.batch import IGNORE, Batch
from featherback.data.labelled import label_batch, scored_answers
from featherback.engine.host.paged import PagedArray
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.models.adapter import LoRA
from featherback.nn.objectives.base import PerTarget
from featherback.nn.objectives.classify import Classify
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.nn.objectives.preference import sigmoid
from featherback.nn.objectives.recorded import Recorded
from featherback.nn.objectives.reward import Reward
from featherback.nn.objectives.scored import KeptScores
from featherback.nn.score import ScoreHead
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close, assert_equal, errors
from tests.methods.test_exact_gradients import draw
from tests.support.oracle import State
from tests.support.preferences import batch_of, examples, objective_of
from tests.support.scores import adapter_with, classifier, gradients, ours, scoring_state, with_state

BOUND = 1e-4
LENGTHS, LABELS = (9, 12, 1, 16), (2, 0, 1, 2)
FAMILIES = ("llama", "qwen2", "qwen3-yarn", "gemma2", "smollm3", "phi3", "olmo2", "starcoder2")
CENTER = 0.3
MARGIN = 0.4


def texts(vocabulary: int, shared: bool = False) -> list[Any]:
    """Four texts; if `shared`, with a common beginning."""
    first = draw((11,), vocabulary, 7)[0] if shared else []
    return [np.concatenate([first, row]).astype(np.int32) for row in draw(LENGTHS, vocabulary, 0)]


def truth(twins: Twins, state: State, found: list[Any]) -> Result:
    """The mean cross-entropy, each text run by itself."""
    peft = with_state(classifier(twins.reference, 3), state)
    logits = [peft(input_ids=torch.from_numpy(each)[None].long(), use_cache=False).logits for each in found]
    return gradients(peft, cross_entropy(torch.cat(logits).double(), torch.tensor(LABELS)))


def of_labels(twins: Twins, shared: bool = False, method: str = "mesp", **plan: Any) -> tuple[Result, Result]:
    state, found = scoring_state(twins.reference, 3), texts(twins.model.config.vocab_size, shared)
    mine = ours(twins.model, state, label_batch(found, LABELS), Classify(), method, **plan)
    return mine, truth(twins, state, found)


def reward_batch(twins: Twins, share: bool) -> Batch:
    return scored_answers(batch_of(examples(twins.model.config.vocab_size), objective_of("simpo"), share))


def of_rewards(twins: Twins, share: bool = True, **plan: Any) -> tuple[Result, Result]:
    state = scoring_state(twins.reference, 1)
    mine = ours(twins.model, state, reward_batch(twins, share), Reward(center_rewards=CENTER, margin=MARGIN), **plan)
    peft = with_state(classifier(twins.reference, 1), state)
    rewards = torch.stack(
        [
            torch.cat([peft(input_ids=torch.tensor([each.prompt + answer])).logits[0] for answer in each.answers])
            for each in examples(twins.model.config.vocab_size)
        ]
    ).double()
    chosen, rejected = rewards[:, 0], rewards[:, 1]
    loss = -logsigmoid(chosen - rejected - MARGIN).mean() + CENTER * ((chosen + rejected) ** 2).mean()
    return mine, gradients(peft, loss)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_labels_are_autograds(all_twins: dict[str, Twins], name: str) -> None:
    for plan in ({}, {"chunk": 7}, {"shared": True}):
        assert_close(*of_labels(all_twins[name], **plan), BOUND)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_gradients_of_rewards_are_autograds(all_twins: dict[str, Twins], name: str) -> None:
    for plan in ({}, {"chunk": 7}, {"chunk": 1}, {"share": False}):
        if name == "llama" or not plan.get("share", name == "gemma2"):  # Gemma 2's window does not share prompts
            assert_close(*of_rewards(all_twins[name], **plan), BOUND)


def test_mebp_is_mesp(all_twins: dict[str, Twins]) -> None:
    mebp, true = of_labels(all_twins["llama"], method="mebp")
    assert_close(mebp, true, BOUND)
    assert_equal(mebp, of_labels(all_twins["llama"])[0])


def test_mezo_perturbs_the_head(all_twins: dict[str, Twins]) -> None:
    twins = all_twins["llama"]
    batch, state = label_batch(texts(twins.model.config.vocab_size), LABELS), scoring_state(twins.reference, 3)
    adapter = adapter_with(twins.model, state)
    plan = Plan.default(twins.model.config, tokens=batch.n_tokens, compute="fp32")
    method = methods.create("mezo", twins.model, adapter, plan, options=MeZOOptions(epsilon=1e-4), objective=Classify())
    found = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method.gradients(batch, 1 / batch.n_terms, found, Draw())
    method.close()
    estimate, exact = adapter.state(found), ours(twins.model, state, batch, Classify()).grads
    assert np.any(estimate["score.weight"])
    # The estimate is slope z with slope = g . z, so its product with g is slope^2, and its square is slope^2 |z|^2.
    product = sum(float(np.vdot(estimate[name], exact[name])) for name in exact)
    square, size = (sum(float(of(each)) for each in estimate.values()) for of in (lambda e: np.vdot(e, e), np.size))
    assert product / square * size == pytest.approx(1, rel=0.05)


def first_token(batch: Batch) -> Batch:
    """Fault: the first token of a text has the label."""
    targets = np.full_like(batch.targets, IGNORE)
    targets[batch.cu_seqlens[:-1]] = LABELS
    return replace(batch, targets=targets)


def padding_row(batch: Batch) -> Batch:
    """Fault: texts end in a padding token, whose row has the label."""
    rows = [np.append(batch.tokens[a:b], 0) for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:])]
    return label_batch(rows, LABELS)


@pytest.mark.parametrize("fault", [first_token, padding_row])
def test_a_planted_fault_of_the_batch_is_found(all_twins: dict[str, Twins], fault: Callable[[Batch], Batch]) -> None:
    twins = all_twins["llama"]
    state, found = scoring_state(twins.reference, 3), texts(twins.model.config.vocab_size)
    wrong = ours(twins.model, state, fault(label_batch(found, LABELS)), Classify())
    assert max(errors(wrong.grads, truth(twins, state, found).grads).values()) > 100 * BOUND


def test_a_planted_fault_of_the_sign_is_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("featherback.nn.objectives.reward.sigmoid", lambda d: sigmoid(-d))
    mine, true = of_rewards(all_twins["llama"])
    assert max(errors(mine.grads, true.grads).values()) > 100 * BOUND


def test_a_planted_fault_of_the_order_is_found(all_twins: dict[str, Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    backward = ScoreHead.backward

    def wrong(self: ScoreHead, ctx: Any, x: Any, rows: Any, slopes: Any) -> None:
        backward(self, ctx, x, rows[::-1], slopes)

    monkeypatch.setattr(ScoreHead, "backward", wrong)
    mine, true = of_labels(all_twins["llama"])
    assert max(errors(mine.grads, true.grads).values()) > 100 * BOUND


def test_a_head_reads_the_norm_without_the_divisor_of_logits(all_twins: dict[str, Twins]) -> None:
    """Granite divides logits, which its hidden states do not know."""
    twins = all_twins["granite"]
    found, state = texts(twins.model.config.vocab_size)[0], scoring_state(twins.reference, 3)
    state = {name: each * (0 if "lora_B" in name else 1) for name, each in state.items()}
    hidden = twins.reference.model(input_ids=torch.from_numpy(found)[None].long()).last_hidden_state[0, -1]
    kept = KeptScores()
    plan = Plan.default(twins.model.config, tokens=len(found), compute="fp32")
    method = methods.create("mesp", twins.model, adapter_with(twins.model, state), plan, objective=kept)
    kept.found.clear()
    method.loss(label_batch([found], [0]), objective=kept)
    method.close()
    assert twins.model.head.divisor != 1
    np.testing.assert_allclose(kept.found[0][0], state["score.weight"] @ hidden.detach().numpy(), rtol=1e-4)


def test_objective_and_head_must_fit(all_twins: dict[str, Twins]) -> None:
    model = all_twins["llama"].model
    plan = Plan.default(model.config, tokens=8, compute="fp32")
    with pytest.raises(FeatherbackError, match="needs an adapter with a trained head"):
        methods.create("mesp", model, LoRA(model), plan, objective=Classify())
    scoring = adapter_with(model, scoring_state(all_twins["llama"].reference, 3))
    with pytest.raises(FeatherbackError, match="no next-token loss"):
        methods.create("mesp", model, scoring, plan, objective=NEXT_TOKEN)


def test_measures_are_those_of_scikit_learn() -> None:
    """Accuracy and macro-F1 over several batches; the labels 0, 2, 1, 3 of a fifth never occur."""
    recorded = Recorded(inner=Classify())
    actual, predicted = np.array([0, 2, 2, 1, 0, 2, 3]), np.array([0, 2, 1, 1, 2, 2, 2])
    for part in (slice(0, 4), slice(4, 7)):
        batch = label_batch([np.array([1], np.int32)] * len(actual[part]), actual[part])
        recorded(batch.supervised(), PerTarget(np.eye(5)[predicted[part]], np.empty(0)))
    f1 = [2 * 1 / (1 + 2), 2 * 1 / (2 + 1), 2 * 2 / (4 + 3), 0.0]  # by hand, as f1_score(average="macro")
    assert recorded.take() == pytest.approx({"accuracy": 4 / 7, "macro_f1": np.mean(f1)})
    assert recorded.take() == {}
