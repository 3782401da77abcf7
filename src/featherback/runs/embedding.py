"""Embeddings of texts within a memory budget (`featherback embed`, `Model.embed`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.data.alike import text_batch
from featherback.data.batch import ANCHOR
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError, expected
from featherback.infer.classify import Ids, TextEncoder
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.models.pooled import stored_pooling
from featherback.nn.objectives.embedding import POOLINGS, KeptEmbeddings
from featherback.runs.classifying import TextReader
from featherback.runs.decoders import UNLIMITED, Within
from featherback.runs.run_directory import RunDirectory

TOGETHER = 512
"""Tokens of texts that an encoder passes together."""


class Embedder(TextReader):
    """Embeds texts with a model, and an adapter if there is one. `pooling`: one of POOLINGS; None: the model's own."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        adapter: Adapter | Path | None = None,
        pooling: str | None = None,
        compute: str = "fp32",
        within: Within = UNLIMITED,
    ) -> None:
        self.pooling = pooling_of(model, adapter, pooling)
        self._together = model.family.is_encoder  # other models would share beginnings of texts
        kept = KeptEmbeddings(pooling=self.pooling)
        super().__init__(model, TextEncoder(model, tokenizer, False, ends=True), adapter, kept, compute, within)

    def embed(self, texts: Iterable[tuple[str, str]]) -> Iterator[NDArray[np.float32]]:
        """Yield the embedding (D,) of each text, of length 1. Each is given with its place, which errors name."""
        waiting: list[Ids] = []
        for where, text in texts:
            ids = self._encode(where, text)
            if waiting and (not self._together or sum(map(len, waiting)) + ids.size > TOGETHER):
                yield from self._embedded(waiting)
                waiting = []
            waiting.append(ids)
        if waiting:
            yield from self._embedded(waiting)

    def _embedded(self, several: list[Ids]) -> Iterator[NDArray[np.float32]]:
        tokens = max(sum(map(len, several)), TOGETHER if self._together else 0)
        found = self._open(tokens).numbers(text_batch([[(ANCHOR, ids)] for ids in several]))
        for each in found.astype(np.float64):
            yield (each / max(float(np.sqrt(each @ each)), 1e-12)).astype(np.float32)


def pooling_of(model: Model, adapter: Adapter | Path | None, asked: str | None) -> str:
    """Return how embeddings are pooled: as asked, as the run of the adapter trained them, or as the model's files say.

    Without any of these, an encoder takes the mean, and another model the last token.
    """
    if asked is not None and asked not in POOLINGS:
        raise FeatherbackError(f"{argument('pooling', asked)}: {expected(asked, POOLINGS)}")
    usual = "mean" if model.family.is_encoder else "last"
    found = asked or run_pooling(adapter if isinstance(adapter, Path) else None) or stored_pooling(model) or usual
    if found == "cls" and not model.family.is_encoder:
        raise FeatherbackError(
            f"{argument('pooling', 'cls')} reads the first token, which sees no other one in {model.family.called}. "
            f"Use {argument('pooling', 'last')}."
        )
    return found


def run_pooling(place: Path | None) -> str | None:
    """Return how the run in a directory pools embeddings; None if it is no such run."""
    if place is None:
        return None
    try:
        return RunDirectory.open(place).config.criterion.pooling
    except FeatherbackError:  # an adapter without a run
        return None
