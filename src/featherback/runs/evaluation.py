"""The loss on held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from featherback import methods
from featherback.data.batch import Batch
from featherback.data.packing import Batching
from featherback.data.source import Source
from featherback.data.token_file import TokenFile
from featherback.engine.host.maps import MapWatch
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.finite import check_weights
from featherback.models.model import Model
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.runs.given import TITLE, Examples
from featherback.runs.lengths import as_tokens
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.stream import every_batch

if TYPE_CHECKING:
    from featherback.data.report import PrepareReport


class HasLoss(Protocol):
    """The part of a method that evaluation uses."""

    def loss(self, batch: Batch, *, objective: Objective = NEXT_TOKEN) -> float:
        """Return the summed loss of the batch's supervised tokens, or of its examples, in nats."""


@dataclass(frozen=True)
class Evaluation:
    """The mean loss of a model over all supervised tokens of the data."""

    loss: float
    """Nats per token."""
    tokens: int
    """Number of supervised tokens: the assistant's answers, completions, or all tokens of plain text."""
    report: PrepareReport | None = None
    """How the data were prepared: counts of `examples`, `truncated`, `dropped` and `skipped`. None for token lists."""

    @property
    def perplexity(self) -> float:
        """exp(loss); infinity if that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def evaluate(
    method: HasLoss,
    tokens: TokenFile,
    seq_len: int,
    batch_tokens: int | None = None,
    between: Callable[[], None] = lambda: None,
    objective: Objective = NEXT_TOKEN,
) -> Evaluation:
    """Return the mean loss over a token file; it may be NaN. `between` is called after each batch.

    `seq_len`: maximum tokens of a sequence. `batch_tokens`: tokens into which a batch is packed, `seq_len` if None.
    Raises FeatherbackError if no token is supervised.
    """
    total, count = 0.0, 0
    for batch in every_batch(tokens, Batching(seq_len, batch_tokens)):
        if batch.n_targets:
            total += method.loss(batch, objective=objective)
            count += batch.n_terms
        between()
    tokens.drop_pages()
    if not count:
        raise FeatherbackError(f"{tokens.path} has no supervised tokens, so there is nothing to evaluate.")
    return Evaluation(total / count, count)


def evaluate_file(
    model: Model,
    data: Source | str,
    adapter: Adapter | None = None,
    seq_len: int | None = None,
    compute: str = "bf16",
    cut: bool = False,
    examples: Examples | None = None,
) -> Evaluation:
    """Tokenise `data` as training would, in a separate process, and measure `model` with `adapter` on it.

    `examples`: examples from Python, instead of files. `seq_len`: None for the length that the data need. `cut`:
    truncate longer examples instead of rejecting them.
    """
    source = Source.of(data)
    with as_tokens(model, source, seq_len, cut, examples) as (tokens, report):
        size = max(seq_len or SEQUENCE, tokens.max_length)
        plan = Plan.default(model.config, tokens=size, compute=compute)
        with MapWatch(model.files, model.close) as maps:
            method = methods.create("mesp", model, adapter, plan)
            result = evaluate(method, tokens, size, between=maps.check)
    if not math.isfinite(result.loss):
        check_weights(model)
        raise FeatherbackError(
            f"The loss on {source.name or TITLE} is not finite: the adapter does not fit the model, or its training "
            f"diverged."
        )
    return replace(result, report=report)
