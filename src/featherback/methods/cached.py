"""Steps of more texts than pass together: gradients of a loss in which every text is in the loss of every other.

GradCache (Gao et al., 2021). With embeddings e = f(texts, w) and a loss L(e):

    1. e, part by part, in forward passes          small: D numbers per text
    2. L and g = dL/de                             of all texts at once
    3. dL/dw = sum over parts of g_part . de_part/dw, each part passed again, with its backward pass

So the gradient is that of one large batch, for the memory of a part. Random numbers of a part are the same in both
passes. A step of one part needs no second pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from featherback.core.naming import argument
from featherback.core.noise import Draw
from featherback.data.batch import Batch
from featherback.errors import FeatherbackError
from featherback.methods.base import Method
from featherback.methods.sweep import GradientSink, WeightSink
from featherback.nn.objectives.base import Objective, PerTarget
from featherback.nn.objectives.embedding import GivenSlopes, KeptEmbeddings


def gradients(method: Method, batch: Batch, scale: float, sink: GradientSink | WeightSink, draw: Draw) -> float:
    """Return the summed loss of a batch of any size, and pass d(scale * loss)/d(parameters) to `sink`."""
    if not _is_divided(method, batch, method.objective):
        return method.gradients(batch, scale, sink, draw)
    if method.adapter is None:
        raise FeatherbackError(
            f"A step has {batch.n_tokens} tokens, but only {method.plan.tokens} pass together, and "
            f"{argument('train', 'full')} changes a weight as soon as its gradient is known. Use fewer "
            f"{argument('pairs')}, or {argument('batch_tokens', batch.n_tokens)}."
        )
    loss, slopes = method.objective(batch.supervised(), _embeddings(method, batch, method.objective, draw))
    assert isinstance(slopes.first, np.ndarray)
    done, pooling = 0, method.objective.pooling
    for part, own in _parts(method, batch, draw):
        mine = GivenSlopes(pooling=pooling or "", slopes=slopes.first[done : (done := done + part.n_sequences)])
        with method.towards(mine):
            method.gradients(part, scale, sink, own)
    return loss


def loss(method: Method, batch: Batch, objective: Objective) -> float:
    """Return the summed loss of a batch of any size."""
    if not _is_divided(method, batch, objective):
        return method.loss(batch, objective=objective)
    return objective(batch.supervised(), _embeddings(method, batch, objective, None))[0]


def _is_divided(method: Method, batch: Batch, objective: Objective) -> bool:
    return objective.pooling is not None and batch.n_tokens > method.plan.tokens


def _embeddings(method: Method, batch: Batch, objective: Objective, draw: Draw | None) -> PerTarget:
    """Return the embeddings of all texts. `draw`: random numbers as in training; None: no randomness."""
    kept = KeptEmbeddings(pooling=objective.pooling or "")
    for part, own in _parts(method, batch, draw or Draw()):
        method.loss(part, draw=None if draw is None else own, objective=kept)
    return PerTarget(np.concatenate(kept.found), np.empty(0))


def _parts(method: Method, batch: Batch, draw: Draw) -> Iterator[tuple[Batch, Draw]]:
    """Yield the parts of a batch that pass together, and the random numbers of each."""
    for first, part in batch.divided(method.plan.tokens):
        yield part, draw._replace(first_token=draw.first_token + first)
