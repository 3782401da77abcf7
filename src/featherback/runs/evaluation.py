"""The loss on held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from featherback.data.packing import Batching
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.methods import cached
from featherback.methods.base import Method
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.runs.stream import every_batch

if TYPE_CHECKING:
    from featherback.data.report import PrepareReport


@dataclass(frozen=True)
class Graded:
    """An answer that the model wrote to a prompt, and what each reward gave it, by the reward as it is written."""

    prompt: str
    text: str
    right: str | None
    """The right answer, if the data have one."""
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Evaluation:
    """The mean loss of a model over all supervised tokens of the data."""

    loss: float
    """Nats per token."""
    tokens: int
    """Number of supervised tokens: the assistant's answers, completions, or all tokens of plain text."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """For an adapter with a trained head: `accuracy` and `macro_f1`, or the rewards of answers. Its loss is per text,
    and `tokens` counts texts, or pairs of answers."""
    counted: str = "tokens"
    """What `tokens` counts."""
    answers: Sequence[Graded] = field(default=(), repr=False)
    """The answers that the model wrote, in the order of the data, if rewards judged them."""
    report: PrepareReport | None = field(default=None, repr=False)
    """How the data were prepared: counts of `examples`, `truncated`, `dropped` and `skipped`. None for token lists."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinity if that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def evaluate(
    method: Method,
    tokens: TokenFile,
    seq_len: int,
    batch_tokens: int | None = None,
    between: Callable[[], None] = lambda: None,
    objective: Objective = NEXT_TOKEN,
    examples: int | None = None,
) -> Evaluation:
    """Return the mean loss over a token file; it may be NaN. `between` is called after each batch.

    `seq_len`: maximum tokens of a sequence. `batch_tokens`: tokens into which a batch is packed, `seq_len` if None.
    `examples`: examples of a batch, whatever their tokens; None: it is packed. Raises FeatherbackError if no token is
    supervised.
    """
    total, count = 0.0, 0
    for batch in every_batch(tokens, Batching(seq_len, batch_tokens, examples)):
        if batch.n_targets:
            total += cached.loss(method, batch, objective)
            count += batch.n_terms
        tokens.drop_pages()
        between()
    if not count:
        raise FeatherbackError(f"{tokens.path} has no supervised tokens, so there is nothing to evaluate.")
    return Evaluation(total / count, count)
