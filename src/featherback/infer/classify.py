"""Labels of texts, or rewards of answers, from an adapter with a trained head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback import methods
from featherback.core.naming import argument
from featherback.data.batch import Batch
from featherback.data.labelled import label_batch
from featherback.data.templates.chat import TRAINING_MOMENT, ChatTemplate
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.prompt import Prompt
from featherback.methods.base import ForwardOnly
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.nn.objectives.base import Numbers
from featherback.nn.objectives.classify import log_softmax
from featherback.nn.objectives.embedding import KeptEmbeddings
from featherback.nn.objectives.scored import KeptScores

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Classified:
    """The scores of a text. A reward model gives a single one, and neither labels nor probabilities."""

    scores: Mapping[str, float]
    """Label -> score, before the softmax; for a reward model {"reward": score}."""
    label: str | None = None
    """The most likely label."""
    probability: float | None = None
    """Its probability."""
    probabilities: Mapping[str, float] | None = None
    """Label -> probability."""


class Scorer:
    """Gives texts the numbers that `kept` keeps, by default the scores of a trained head.

    The texts of a pass have at most `capacity` tokens.
    """

    def __init__(
        self,
        model: Model,
        adapter: Adapter | None,
        plan: Plan,
        folder: Path | None = None,
        kept: KeptScores | KeptEmbeddings | None = None,
    ) -> None:
        """`folder`: where the plan's files are created."""
        self.capacity = plan.tokens
        self._kept = kept or KeptScores()
        self._method = methods.create_of(ForwardOnly, model, adapter, plan, folder, objective=self._kept)

    def scores(self, ids: Ids) -> Numbers:
        """Return the scores (K,) of token ids (n,)."""
        return self.numbers(label_batch([ids], [0]))[0]

    def numbers(self, batch: Batch) -> Numbers:
        """Return the numbers (S, K) of the texts of a batch."""
        self._kept.found.clear()
        self._method.loss(batch, objective=self._kept)
        return self._kept.found[0]

    def close(self) -> None:
        """Free the memory and close the files."""
        self._method.close()
        del self._method


class TextEncoder:
    """Turns texts into token ids, as the preparation of training data does.

    `chat`: a text is a user's message in the chat template. Lists of messages always are in it. `ends`: a text ends
    with the end token.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, chat: bool, ends: bool = False) -> None:
        self._most, self._tokenizer, self._chat = model.config.max_position_embeddings, tokenizer, chat
        self._end = [tokenizer.eos_id] if ends and tokenizer.eos_id is not None else []

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer, moment=TRAINING_MOMENT)

    def start(self) -> None:
        """Start the process of the chat template, if every text needs it."""
        if self._chat and self._tokenizer.is_chat:
            self._template.start()

    def encode(self, text: Prompt) -> Ids:
        """Return the token ids (n,), int32. Raises FeatherbackError if the text is empty or too long."""
        if isinstance(text, str) and not (self._chat and self._tokenizer.is_chat):
            ids = self._tokenizer.encode_array(text, bos=True) if text else np.empty(0, np.int32)
        else:
            turns = [{"role": "user", "content": text}] if isinstance(text, str) else [*text]
            ids, _ = self._template.encode_arrays(self._template.training(turns))
        if not ids.size:
            raise FeatherbackError("the text is empty.")
        ids = np.append(ids.astype(np.int32), np.array(self._end, np.int32))
        if ids.size > self._most:
            raise FeatherbackError(
                f"the text has {ids.size} tokens, and the model supports at most {self._most}. Shorten it."
            )
        return ids


def check_head(outputs: Sequence[str]) -> None:
    """Raise FeatherbackError if an adapter with these scores has no trained head."""
    if not outputs:
        raise FeatherbackError(
            f"The adapter has no trained head, so it gives no labels; train one with "
            f"{argument('objective', 'classify')}."
        )


def named_scores(outputs: Sequence[str], scores: Numbers) -> Classified:
    """Return the scores (K,) with their names, and the most likely label."""
    named = {name: float(score) for name, score in zip(outputs, scores)}
    if len(outputs) == 1:
        return Classified(named)
    probabilities = {name: float(p) for name, p in zip(outputs, np.exp(log_softmax(scores[None])[0]))}
    label = max(probabilities, key=probabilities.__getitem__)
    return Classified(named, label, probabilities[label], probabilities)
