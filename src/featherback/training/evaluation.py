"""The loss on held-out data."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from featherback import methods
from featherback.adapters.lora import LoRA
from featherback.data.batch import Batch
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.host.maps import MapWatch
from featherback.memory.plan import Plan
from featherback.models.model import Model
from featherback.terminal import Preparing
from featherback.training.guard import check_weights
from featherback.training.stream import every_batch

if TYPE_CHECKING:
    from featherback.data.report import PrepareReport


class HasLoss(Protocol):
    """The part of a method that evaluation needs."""

    def loss(self, batch: Batch) -> float:
        """The summed loss of the batch's supervised tokens, in nats."""


@dataclass(frozen=True)
class Evaluation:
    """A mean over all supervised tokens."""

    loss: float  # nats per token
    tokens: int  # supervised ones

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is beyond floating point."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def evaluate(
    method: HasLoss,
    tokens: TokenFile,
    seq_len: int,
    batch_size: int = 1,
    between: Callable[[], None] = lambda: None,
) -> Evaluation:
    """The mean loss over a token file, which may be NaN; `between` is called after each batch.

    FeatherbackError if no token is supervised.
    """
    total, count = 0.0, 0
    for batch in every_batch(tokens, seq_len, batch_size):
        if batch.n_targets:
            total += method.loss(batch)
            count += batch.n_targets
        between()
    tokens.drop_pages()
    if not count:
        raise FeatherbackError(f"{tokens.path} has no supervised token to evaluate.")
    return Evaluation(total / count, count)


def evaluate_file(
    model: Model, data: str, adapter: LoRA | None = None, seq_len: int = 256, compute: str = "bf16"
) -> tuple[Evaluation, PrepareReport]:
    """Tokenise `data` as training would, in a process of its own, and measure `model` with `adapter`.

    With what was measured: what became of the data (examples cut, examples left out).
    """
    from featherback.data.launch import prepare_in_subprocess  # not in the training process

    longest = model.config.max_position_embeddings
    if seq_len > longest:
        raise FeatherbackError(
            f"--seq-len {seq_len} is beyond the {longest} tokens that {model.path} was made for."
        )
    plan = Plan.default(model.config, tokens=seq_len, compute=compute)
    with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
        path = Path(folder) / "eval.tokens"
        with Preparing(data) as shown:
            report = prepare_in_subprocess(model.path, data, path, seq_len, shown.update)
        tokens = TokenFile(path)
        tokens.check(model.config.vocab_size)
        with MapWatch(model.files, model.close) as maps:
            method = methods.create("mesp", model, adapter, plan)
            result = evaluate(method, tokens, seq_len, between=maps.check)
    if not math.isfinite(result.loss):
        check_weights(model)
        raise FeatherbackError(
            f"The loss on {data} is not finite: the adapter does not fit, or its training diverged."
        )
    return result, report
