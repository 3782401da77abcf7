"""Options of the optimisation: gradient method, steps, update rule and learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from featherback import methods, optim
from featherback.core.options import Panel, choice, option
from featherback.errors import FeatherbackError
from featherback.nn import objectives
from featherback.nn.objectives.base import Objective
from featherback.runs import parse

NEXT_TOKEN = "next_token"
"""The default objective, and the only one in early versions."""
DEFAULT_EPOCHS = 3
MOST_EPOCHS = 10_000  # all batches are counted before the first step
CLIP = 1.0
"""Default maximum norm of an adapter's gradient."""


@dataclass(frozen=True, kw_only=True)
class OptimisationOptions(Panel):
    title = "Optimisation"

    method: str = choice(
        "mesp", help="Gradient method. mesp and mebp are exact; the others approximate.", own=methods.OPTIONS
    )
    method_options: Mapping[str, Any] = field(default_factory=dict)  # once checked: all options of the method
    objective: str = choice(
        NEXT_TOKEN,
        help="Training loss. smoothed: next_token with label smoothing. classify: labels of whole texts. reward: a "
        "score of whole answers. contrastive: embeddings of texts that belong together. "
        "The others learn from preferences: pairs of a better and a worse answer, or answers "
        "with a label (kto). The held-out loss is next_token, or the objective's own for labels and preferences.",
        own=objectives.OPTIONS,
    )
    objective_options: Mapping[str, Any] = field(default_factory=dict)  # once checked: all options of the objective
    accumulate: int = option(
        1,
        help="Gradient accumulation: batches per optimizer step.",
        least=1,
        aliases=("--gradient-accumulation-steps",),
    )
    steps: int | None = option(
        None,
        help="Optimizer steps. Replaces --epochs.",
        least=1,
        free_on_resume=True,
        aliases=("--max-steps", "--iters"),
    )
    epochs: float | None = option(
        None,
        help="Passes over the data. 0.5 trains on half of the data.",
        brief="Passes over your examples",
        aliases=("--num-epochs", "--num-train-epochs"),
        above=0,
        most=MOST_EPOCHS,
        instead_of="steps",
        free_on_resume=True,
        shown_default=str(DEFAULT_EPOCHS),
    )
    learning_rate: float | None = option(
        None,
        help="Peak learning rate. The default also depends on --optimizer and --train.",
        brief="Learning rate",
        above=0,
        flags=("--lr",),
        shown_default="by model size",
        aliases=("--learning-rate",),
    )
    loraplus_ratio: float = option(
        1.0,
        help="LoRA+: the learning rate of B is --lr times this number, and the learning rate of A is --lr. The authors "
        "of LoRA+ use 16. The default --lr is divided by the square root of this number.",
        above=0,
        only_for="lora",
    )
    optimizer: str = choice("adamw", help="Update rule.", own=optim.OPTIONS)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # once checked: all options of the optimizer
    schedule: str = option("cosine", help="Learning rate schedule after the warm-up.", choices=tuple(optim.SCHEDULES))
    warmup: float = option(
        0,
        help="Warm-up: steps over which the learning rate rises to its peak. Below 1: a share of all steps.",
        aliases=("--warmup-steps",),
        parse=parse.warmup,
        least=0,
        metavar="STEPS|SHARE",
    )
    keep: str = option(
        "better",
        help="Which adapter to keep. better: the average of the adapters of all steps, or the last adapter if that is "
        "better. last: always the last adapter.",
        choices=("better", "last"),
        only_for="lora",
    )
    proximal: float = option(
        0.0,
        help="Pull the adapter towards the one it starts from: add half of this number times the squared distance to "
        "the training loss, as FedProx does. 0: no pull.",
        only_for="lora",
        least=0,
    )
    max_grad_norm: float | None = option(
        None,
        help="Clip the gradient to this norm. 0: never. With --train full, clipping needs a second backward pass.",
        least=0,
        shown_default=f"{CLIP:g}; 0 with --train full",
    )

    @property
    def criterion(self) -> Objective:
        """The training loss, with its options."""
        return objectives.OPTIONS.make(self.objective, self.objective_options)

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after the warm-up. Raises FeatherbackError if the run's record has none."""
        if self.learning_rate is None:
            raise FeatherbackError("The run's configuration has no learning rate: it is damaged.")
        return self.learning_rate

    def warmup_steps(self, steps: int) -> int:
        """Number of warm-up steps in a run of `steps` steps."""
        return int(self.warmup) if self.warmup >= 1 else round(self.warmup * steps)
