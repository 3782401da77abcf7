"""Rollouts as tests need them: answers with rewards, and the papers' losses written in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from featherback.data.batch import IGNORE, Batch, Rollouts
from featherback.nn.objectives import OBJECTIVES
from featherback.nn.objectives.sampled import Sampled

MOST = 9
"""Most tokens of an answer."""
REWARDS = ((1.0, 0.0, 0.25, 1.0), (0.0, 0.0, 0.0, 0.0), (2.0, -1.0, 2.0, 0.5))
"""Of four answers to each of three prompts; those to the second are equal."""
SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"clip": 0.2, "clip_higher": 0.3},
    "dr_grpo": {"clip": 0.2},
    "dapo": {"clip": 0.2, "clip_higher": 0.28},
    "gspo": {"clip": 0.04, "clip_higher": 0.03},
    "rft": {},
}
Logps = Callable[[list[int]], torch.Tensor]
"""Log-probabilities of tokens[1:] given those before."""


@dataclass(frozen=True)
class Answered:
    """An answer to a prompt. `shifts`: log-probabilities at sampling minus those now."""

    prompt: list[int]
    answer: list[int]
    shifts: list[float]
    reward: float
    now: list[float] = field(default_factory=list)  # log-probabilities of the answer's tokens

    @property
    def old(self) -> list[float]:
        """Log-probabilities of the answer's tokens when it was sampled."""
        return [now + shift for now, shift in zip(self.now, self.shifts)]


def objective_of(name: str) -> Sampled:
    kind: Any = OBJECTIVES[name]
    found = kind(answers=len(REWARDS[0]), prompts=len(REWARDS), answer_tokens=MOST, **SETTINGS[name])
    assert isinstance(found, Sampled)
    return found


def answered(vocabulary: int, seed: int = 0) -> list[Answered]:
    """Return random answers of several lengths. The policy has moved: some ratios are outside the limits."""
    rng = np.random.default_rng(seed)
    found = []
    for size, rewards in zip((12, 10, 9), REWARDS):
        prompt = rng.integers(0, vocabulary, size).tolist()
        for reward in rewards:
            answer = rng.integers(0, vocabulary, int(rng.integers(2, MOST + 1))).tolist()
            found.append(Answered(prompt, answer, rng.normal(0, 0.25, len(answer)).tolist(), reward))
    return found


def batch_of(found: Sequence[Answered], objective: Sampled) -> Batch:
    """Return all answers as one batch."""
    shape = len(REWARDS), len(REWARDS[0])
    rewards, lengths = (
        np.array(each, float).reshape(shape) for each in zip(*((a.reward, len(a.answer)) for a in found))
    )
    advantages, shares = objective.judge(rewards, lengths)
    labels = [[IGNORE] * len(each.prompt) + each.answer for each in found]
    batch = Batch.from_sequences([each.prompt + each.answer for each in found], labels)
    logp = np.zeros(batch.n_tokens)
    logp[batch.targets != IGNORE] = np.concatenate([each.old for each in found])
    return Batch(
        batch.tokens, batch.targets, batch.positions, batch.cu_seqlens,
        rollouts=Rollouts(logp, advantages.ravel(), shares.ravel()),
    )  # fmt: skip


def truth_of(name: str, found: Sequence[Answered], logps: Logps) -> torch.Tensor:
    """Return the loss of all answers as the papers write it."""
    size = len(REWARDS[0])
    groups = [found[at : at + size] for at in range(0, len(found), size)]
    now = {id(each): logps(each.prompt + each.answer)[-len(each.answer) :] for each in found}
    return TRUTHS[name](groups, now, SETTINGS[name])


def _ratio(each: Answered, now: dict[int, torch.Tensor]) -> torch.Tensor:
    return torch.exp(now[id(each)] - torch.tensor(each.old, dtype=torch.float64))


def _surrogate(r: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.min(r * advantage, torch.clamp(r, 1 - low, 1 + high) * advantage)


def _rewards(group: Sequence[Answered]) -> torch.Tensor:
    return torch.tensor([each.reward for each in group], dtype=torch.float64)


def _grpo(groups: Any, now: Any, settings: Any) -> torch.Tensor:
    """Equation 3 of DeepSeekMath with beta = 0."""
    of_groups = []
    for group in groups:
        rewards = _rewards(group)
        advantages = (rewards - rewards.mean()) / (torch.std(rewards) + 1e-4)
        each = [
            _surrogate(_ratio(o, now), a, settings["clip"], settings["clip_higher"]).sum() / len(o.answer)
            for o, a in zip(group, advantages)
        ]
        of_groups.append(sum(each) / len(group))
    return -sum(of_groups) / len(groups)


def _dr_grpo(groups: Any, now: Any, settings: Any) -> torch.Tensor:
    """GRPO done right: no deviation, and a constant instead of the length."""
    total = torch.zeros((), dtype=torch.float64)
    for group in groups:
        rewards = _rewards(group)
        for o, a in zip(group, rewards - rewards.mean()):
            total = total + _surrogate(_ratio(o, now), a, settings["clip"], settings["clip"]).sum()
    return -total / (sum(map(len, groups)) * MOST)


def _dapo(groups: Any, now: Any, settings: Any) -> torch.Tensor:
    """Equation 8 of DAPO, over all tokens of the batch."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for group in groups:
        rewards = _rewards(group)
        for o, a in zip(group, (rewards - rewards.mean()) / (torch.std(rewards) + 1e-4)):
            total = total + _surrogate(_ratio(o, now), a, settings["clip"], settings["clip_higher"]).sum()
            count += len(o.answer)
    return -total / count


def _gspo(groups: Any, now: Any, settings: Any) -> torch.Tensor:
    """Equation 5 of GSPO: s = (pi(y) / pi_old(y)) ** (1 / |y|)."""
    of_groups = []
    for group in groups:
        rewards, each = _rewards(group), []
        for o, a in zip(group, (rewards - rewards.mean()) / (torch.std(rewards) + 1e-4)):
            s = torch.prod(_ratio(o, now)) ** (1 / len(o.answer))
            each.append(_surrogate(s, a, settings["clip"], settings["clip_higher"]))
        of_groups.append(sum(each) / len(group))
    return -sum(of_groups) / len(groups)


def _rft(groups: Any, now: Any, settings: Any) -> torch.Tensor:
    """The mean next-token loss over the tokens of the best answers."""
    best = [max(group, key=lambda each: each.reward) for group in groups]
    kept = [b for b, group in zip(best, groups) if b.reward > float(_rewards(group).mean())]
    return -torch.cat([now[id(each)] for each in kept]).mean()


TRUTHS: dict[str, Callable[[Any, Any, Any], torch.Tensor]] = {
    "grpo": _grpo, "dr_grpo": _dr_grpo, "dapo": _dapo, "gspo": _gspo, "rft": _rft,
}  # fmt: skip
