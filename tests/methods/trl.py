"""Objectives on preferences and rollouts against TRL's own code, which `make test-authors` fetches: loss and gradients.

TRL pads the batch and runs answers as separate rows of transformers with PEFT, in float32. We run the packed answers.
Its trainers are not built: their methods are called with what they read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from featherback.data.labelled import scored_answers
from featherback.nn.objectives.reward import Reward
from tests.methods.conftest import Twins
from tests.methods.support import Result, assert_close
from tests.methods.test_preferences import BOUND, ours
from tests.methods.test_rollouts import sampled
from tests.support import rollouts, scores
from tests.support.oracle import PEFT_PREFIX, State, random_adapter, with_adapter
from tests.support.preferences import CASES, LABELS, REFERENCE, Compared, batch_of, examples, labelled, objective_of

FOLDER = Path(__file__).parents[2] / "build" / "authors"
PAD = 0
Loss = Callable[[Any, Sequence[Compared], dict[str, Any]], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def packages() -> Any:
    """Make TRL importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield


def same(value: Any) -> Any:
    return value


def trainer(**values: Any) -> SimpleNamespace:
    """Return what the methods of TRL's trainers read of themselves."""
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=same, gather_for_metrics=same, reduce=lambda x, reduction: x, num_processes=1
    )
    return SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=accelerator, aux_loss_enabled=False, ld_alpha=None,
        precompute_ref_logps=True, f_divergence_type="reverse_kl", use_weighting=False, args=None,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1, is_encoder_decoder=False,
        padding_value=PAD, pad_token_id=PAD, **values,
    )  # fmt: skip


def fused(peft: Any) -> Callable[..., Any]:
    """Return a model with TRL's head, which computes log-probabilities of labels instead of logits."""

    def run(input_ids: Any, attention_mask: Any, labels: Any, **_: Any) -> Any:
        logits = peft(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits[:, :-1]
        wanted = labels[:, 1:]
        found = log_softmax(logits, -1).gather(2, wanted.clamp(min=0)[..., None])[..., 0]
        zeros = torch.zeros_like(found)
        kept = torch.where(wanted == -100, zeros, found)
        return SimpleNamespace(log_probs=kept, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())

    return run


def of_dpo(peft: Any, found: Sequence[Compared], settings: dict[str, Any]) -> torch.Tensor:
    from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer

    rows = [
        {"prompt_ids": each.prompt, "chosen_ids": each.answers[0], "rejected_ids": each.answers[1],
         "ref_chosen_logps": known[0], "ref_rejected_logps": known[1]}
        for each, known in zip(found, REFERENCE)
    ]  # fmt: skip
    inputs = DataCollatorForPreference(pad_token_id=PAD)(rows)
    given = {"loss_types": ["sigmoid"], "loss_weights": [1.0], "label_smoothing": 0.0, **settings}
    return DPOTrainer._compute_loss(trainer(**given), fused(peft), inputs, False)


def one_by_one(peft: Any, found: Sequence[Compared], settings: dict[str, Any]) -> torch.Tensor:
    """TRL's DPO ignores label smoothing, and AOT applies it. For a single pair, both are the same loss."""
    total = torch.zeros(())
    for at in range(len(found)):
        turned, known = [*found[at:], *found[:at]][:1], REFERENCE[at]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.methods.trl.REFERENCE", (known,))
            total = total + of_dpo(peft, turned, settings)
    return total / len(found)


def of_kto(peft: Any, found: Sequence[Compared], settings: dict[str, Any]) -> torch.Tensor:
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer

    rows = [
        {"prompt_ids": each.prompt, "completion_ids": each.answers[0], "KL_completion_ids": each.answers[1],
         "label": label, "ref_logps": known[0], "ref_KL_logps": known[1]}
        for each, label, known in zip(found, LABELS, REFERENCE)
    ]  # fmt: skip
    inputs = DataCollatorForUnpairedPreference(pad_token_id=PAD)(rows)
    self = trainer(calculate_KL=True, loss_type="kto", **settings)
    self._compute_kl_logps = lambda model, batch: KTOTrainer._compute_kl_logps(self, model, batch)
    return KTOTrainer._compute_loss(self, fused(peft), inputs, False)


def padded(found: Sequence[Compared]) -> dict[str, torch.Tensor]:
    """Return the batch of ORPO's and CPO's trainers."""
    batch: dict[str, torch.Tensor] = {}
    for k, name in enumerate(("chosen", "rejected")):
        rows = [each.prompt + each.answers[k] for each in found]
        width = max(map(len, rows))
        shape = (len(rows), width)
        ids, seen, labels = torch.full(shape, PAD), torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
        for i, (row, each) in enumerate(zip(rows, found)):
            ids[i, : len(row)], seen[i, : len(row)] = torch.tensor(row), 1
            labels[i, len(each.prompt) : len(row)] = torch.tensor(each.answers[k])
        batch |= {f"{name}_input_ids": ids, f"{name}_attention_mask": seen, f"{name}_labels": labels}
    return batch


def of_whole_trainer(kind: Any, loss: str, peft: Any, found: Sequence[Compared], settings: dict[str, Any]) -> Any:
    self = trainer(**settings)
    for name in ("concatenated_inputs", "get_batch_logps"):
        setattr(self, name, getattr(kind, name))
    for name in ("concatenated_forward", loss):
        setattr(self, name, getattr(kind, name).__get__(self))

    def run(ids: Any, attention_mask: Any, use_cache: bool) -> Any:
        return peft(input_ids=ids, attention_mask=attention_mask, use_cache=use_cache)

    return kind.get_batch_loss_metrics(self, run, padded(found))[0]


def of_orpo(peft: Any, found: Sequence[Compared], settings: dict[str, Any]) -> torch.Tensor:
    from trl.experimental.orpo import ORPOTrainer

    return of_whole_trainer(ORPOTrainer, "odds_ratio_loss", peft, found, settings)


def of_cpo(peft: Any, found: Sequence[Compared], settings: dict[str, Any]) -> torch.Tensor:
    from trl.experimental.cpo import CPOTrainer

    given = {"loss_type": "simpo", "cpo_alpha": 0.0, "alpha": 0.0, **settings}
    return of_whole_trainer(CPOTrainer, "cpo_loss", peft, found, given)


THEIRS: dict[str, tuple[Loss, dict[str, Any]]] = {
    "dpo": (of_dpo, {}),
    "cdpo": (one_by_one, {"loss_types": ["aot_unpaired"]}),
    "rpo": (of_dpo, {"loss_types": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7]}),
    "robust_dpo": (of_dpo, {"loss_types": ["robust"]}),
    "ipo": (of_dpo, {"loss_types": ["ipo"]}),
    "simpo": (of_cpo, {}),
    "orpo": (of_orpo, {}),
    "kto": (of_kto, {}),
}


def theirs(twins: Twins, state: State, case: str, found: Sequence[Compared]) -> Result:
    loss, more = THEIRS[case]
    peft = with_adapter(twins.reference, state, 16)
    value = loss(peft, found, {**vars(objective_of(case)), **more})
    value.backward()
    grads = {n.removeprefix(PEFT_PREFIX).replace(".default.", "."): p.grad for n, p in peft.named_parameters()}
    kept = {name: grad.numpy().copy() for name, grad in grads.items() if grad is not None}
    peft.unload()
    return Result(value.item(), kept)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_loss_and_gradients_are_trls(all_twins: dict[str, Twins], name: str, case: str, chunk: int | None) -> None:
    twins = all_twins[name]
    found = examples(twins.model.config.vocab_size, labelled(case))
    state, objective = random_adapter(twins.reference, 4, seed=1), objective_of(case)
    mine = ours(twins, state, batch_of(found, objective), objective, chunk=chunk)
    assert_close(mine, theirs(twins, state, case, found), BOUND)


def test_rewards_are_those_of_trl(all_twins: dict[str, Twins]) -> None:
    from trl.trainer.reward_trainer import DataCollatorForPreference, RewardTrainer

    twins = all_twins["llama"]
    found = examples(twins.model.config.vocab_size)
    found = [replace(each, answers=tuple([*a[:-1], PAD + 1] for a in each.answers)) for each in found]  # no last PAD
    state, batch = scores.scoring_state(twins.reference, 1), batch_of(found, objective_of("simpo"))
    rows = [dict(zip(("chosen_ids", "rejected_ids"), (each.prompt + a for a in each.answers))) for each in found]
    for weight, margin in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.7)):
        model = scores.classifier(twins.reference, 1)
        model.config.pad_token_id = PAD
        peft, args = scores.with_state(model, state), SimpleNamespace(center_rewards_coefficient=weight or None)
        given = DataCollatorForPreference(pad_token_id=PAD)([{**row, "margin": margin} for row in rows])
        theirs = RewardTrainer.compute_loss(SimpleNamespace(**{**vars(trainer()), "args": args}), peft, given)
        mine = scores.ours(twins.model, state, scored_answers(batch), Reward(center_rewards=weight, margin=margin))
        assert_close(mine, scores.gradients(peft, theirs), BOUND)


OF_GRPO: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "importance_sampling_level": "token"},
    "dr_grpo": {"loss_type": "dr_grpo", "importance_sampling_level": "token"},
    "dapo": {"loss_type": "dapo", "importance_sampling_level": "token"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}


def of_grpo(peft: Any, found: Sequence[rollouts.Answered], advantages: torch.Tensor, name: str) -> torch.Tensor:
    from trl.trainer.grpo_trainer import GRPOTrainer

    def padded(rows: Sequence[Sequence[float]], left: bool = False) -> torch.Tensor:
        width = max(map(len, rows))
        lists = [[PAD] * (width - len(row)) * left + [*row] + [PAD] * (width - len(row)) * (not left) for row in rows]
        return torch.tensor(lists)

    def logps(model: Any, ids: torch.Tensor, mask: torch.Tensor, count: int, **_: Any) -> Any:
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = model(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False).logits[:, :-1]
        found = log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0][:, -count:]
        return found, torch.zeros_like(found), None

    settings = rollouts.SETTINGS[name]
    args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
    self = trainer(
        **OF_GRPO[name], top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=0.0, use_vllm=False,
        epsilon_low=settings["clip"], epsilon_high=settings.get("clip_higher", settings["clip"]),
        max_completion_length=rollouts.MOST, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
    )  # fmt: skip
    self.args = args
    self._get_per_token_logps_and_entropies = logps
    answers, prompts = [each.answer for each in found], [each.prompt for each in found]
    seen = {name: padded([[1] * len(row) for row in rows], left=name == "prompt") for name, rows in
            (("prompt", prompts), ("completion", answers))}  # fmt: skip
    inputs = {
        "prompt_ids": padded(prompts, left=True), "prompt_mask": seen["prompt"], "completion_ids": padded(answers),
        "completion_mask": seen["completion"], "advantages": advantages,
        "old_per_token_logps": padded([each.old for each in found]),
        "num_items_in_batch": torch.tensor(float(sum(map(len, answers)))),
    }  # fmt: skip
    found_loss: torch.Tensor = GRPOTrainer._compute_loss(self, peft, inputs)
    return found_loss


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("case", OF_GRPO)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_rollouts_are_trls(all_twins: dict[str, Twins], name: str, case: str, chunk: int | None) -> None:
    twins, objective = all_twins[name], rollouts.objective_of(case)
    state = random_adapter(twins.reference, 4, seed=1)
    found = sampled(twins, state)
    rewards = torch.tensor(rollouts.REWARDS)
    apart = rewards - rewards.mean(1, keepdim=True)
    advantages = apart if case == "dr_grpo" else apart / (rewards.std(1, keepdim=True) + 1e-4)  # as TRL computes them
    peft = with_adapter(twins.reference, state, 16)
    value = of_grpo(peft, found, advantages.flatten(), case)
    value.backward()
    grads = {n.removeprefix(PEFT_PREFIX).replace(".default.", "."): p.grad for n, p in peft.named_parameters()}
    theirs = Result(value.item(), {name: grad.numpy().copy() for name, grad in grads.items() if grad is not None})
    peft.unload()
    assert_close(ours(twins, state, rollouts.batch_of(found, objective), objective, chunk=chunk), theirs, BOUND)
