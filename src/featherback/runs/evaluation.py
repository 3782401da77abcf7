"""The loss on held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
    from featherback.nn.objectives.recorded import Recorded


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
    measures: Mapping[str, float] = field(default_factory=dict)
    """For an adapter with a trained head: `accuracy` and `macro_f1`, or the rewards of answers. Its loss is per text,
    and `tokens` counts texts, or pairs of answers."""
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
    source, recorded = Source.of(data), None
    if adapter is not None and adapter.outputs:
        recorded, source = _of_head(adapter, source, seq_len)
    objective = recorded or NEXT_TOKEN
    with as_tokens(model, source, seq_len, cut, examples) as (tokens, report):
        if recorded is not None and adapter is not None:
            tokens = _in_form(tokens, recorded, adapter)
        size = max(seq_len or SEQUENCE, tokens.max_length)
        plan = Plan.default(model.config, tokens=size, compute=compute)
        with MapWatch(model.files, model.close) as maps:
            method = methods.create("mesp", model, adapter, plan, objective=objective)
            if recorded is not None:
                recorded.take()  # forget the measures of the dry run that counted memory
            result = evaluate(method, tokens, size, between=maps.check, objective=objective)
    if not math.isfinite(result.loss):
        check_weights(model)
        raise FeatherbackError(
            f"The loss on {source.name or TITLE} is not finite: the adapter does not fit the model, or its training "
            f"diverged."
        )
    measures = {} if recorded is None else recorded.take()
    return replace(result, measures=measures, report=report)


# These imports are made where they are needed, because the training process imports this module.


def _of_head(adapter: Adapter, source: Source, seq_len: int | None) -> tuple[Recorded, Source]:
    """Return the objective of an adapter with a trained head, and the data as it needs them."""
    from featherback.nn.objectives import OBJECTIVES
    from featherback.nn.objectives.recorded import Recorded
    from featherback.runs.config import head_objective, shares_prompts

    found = Recorded(inner=OBJECTIVES[head_objective(adapter.outputs)]())
    shares = shares_prompts(adapter.model, seq_len or adapter.model.config.max_position_embeddings)
    return found, replace(source, form=found.data_form, shares_prompts=shares)


def _in_form(tokens: TokenFile, objective: Objective, adapter: Adapter) -> TokenFile:
    """Return a token file that makes batches of labelled texts, or of pairs of answers."""
    from featherback.data.forms import CLASSES
    from featherback.data.labelled import LabelledFile
    from featherback.data.marked import MarkedFile

    labelled = objective.data_form == CLASSES
    return LabelledFile(tokens.path, adapter.outputs) if labelled else MarkedFile(tokens.path, scored=True)
