"""Group relative policy optimisation (Shao et al., 2024, arXiv 2402.03300), without a KL term.

The advantage of an answer is its reward minus the mean over the answers to its prompt, divided by their standard
deviation. The variants `dr_grpo`, `dapo` and `gspo` are subclasses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from featherback.core.options import option
from featherback.data.batch import Targets
from featherback.nn.objectives.base import Measured, Measures, Numbers, PerTarget
from featherback.nn.objectives.sampled import Sampled, rollouts_of

SMALL = 1e-4
"""Added to the standard deviation of rewards, as in TRL."""


@dataclass(frozen=True, kw_only=True)
class GRPO(Sampled):
    """- sum over answers of weight * sum over tokens of min(r A, clip(r, 1 - clip, 1 + clip_higher) A).

    r is the ratio of a token's probabilities: now, and when it was sampled. A is the answer's advantage.
    """

    clip: float = option(
        0.2, above=0, below=1, help="How far a probability may fall below that of sampling before its gradient is cut."
    )
    clip_higher: float | None = option(
        None, above=0, shown_default="--clip", help="How far a probability may rise before its gradient is cut."
    )

    def __call__(self, targets: Targets, logp: PerTarget) -> tuple[float, PerTarget]:
        found = rollouts_of(targets)
        ratios, advantages, inside = self._ratios(targets, logp)
        shares = found.shares[targets.sequences]
        low, high = self._limits
        surrogate = np.minimum(ratios * advantages, np.clip(ratios, low, high) * advantages)
        slopes = np.where(inside, -shares * advantages * ratios, 0.0)
        return -float(np.sum(shares * surrogate)), PerTarget(slopes, np.empty(0))

    def judge(self, rewards: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
        return self.advantages(rewards), self.weights(lengths)

    def advantages(self, rewards: Numbers) -> Numbers:
        """Return the advantage of each answer (P, G)."""
        apart: Numbers = rewards - rewards.mean(axis=1, keepdims=True)
        return apart / (rewards.std(axis=1, ddof=1, keepdims=True) + SMALL)

    def weights(self, lengths: Numbers) -> Numbers:
        """Return the weight of each token of each answer (P, G): here, every answer counts the same."""
        return 1 / np.maximum(lengths, 1)

    def measures(self, targets: Targets, logp: PerTarget) -> Measures:
        _, _, inside = self._ratios(targets, logp)
        return {"clipped": Measured(float(np.count_nonzero(~inside)), len(inside))}

    def log_ratios(self, targets: Targets, logp: PerTarget) -> Numbers:
        """Return the logarithm of the ratio of each row (n,)."""
        found: Numbers = logp.first - rollouts_of(targets).logp
        return found

    @property
    def _limits(self) -> tuple[float, float]:
        return 1 - self.clip, 1 + (self.clip if self.clip_higher is None else self.clip_higher)

    def _ratios(self, targets: Targets, logp: PerTarget) -> tuple[Numbers, Numbers, np.ndarray]:
        """Return the ratio and the advantage of each row (n,), and whether its gradient is not cut."""
        ratios = np.exp(self.log_ratios(targets, logp))
        advantages = rollouts_of(targets).advantages[targets.sequences]
        low, high = self._limits
        return ratios, advantages, np.where(advantages > 0, ratios <= high, ratios >= low)


OBJECTIVE = GRPO
