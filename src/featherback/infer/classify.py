"""Labels of texts, or rewards of answers, from an adapter with a trained head."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from featherback import methods
from featherback.core.naming import argument
from featherback.data.labelled import label_batch
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.prompt import Prompt
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.nn.objectives.classify import log_softmax
from featherback.nn.objectives.scored import KeptScores


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


def classified(
    model: Model,
    tokenizer: Tokenizer,
    adapter: Adapter,
    texts: Iterable[Prompt],
    chat: bool = False,
    compute: str = "bf16",
) -> Iterator[Classified]:
    """Yield the scores of one text after another. Raises FeatherbackError for a text that is empty or too long.

    `chat`: a text is a user's message in the chat template. Lists of messages always are in it.
    """
    if not adapter.outputs:
        raise FeatherbackError(
            f"The adapter has no trained head, so it gives no labels; train one with "
            f"{argument('objective', 'classify')}."
        )
    for text in texts:
        yield _named(adapter.outputs, _scores(model, adapter, _encoded(model, tokenizer, text, chat), compute))


def _encoded(model: Model, tokenizer: Tokenizer, text: Prompt, chat: bool) -> Any:
    """Return the token ids of a text (n,), as the preparation of training data encodes it."""
    if isinstance(text, str) and not (chat and tokenizer.is_chat):
        ids = tokenizer.encode_array(text, bos=True) if text else np.empty(0, np.int32)
    else:
        template = ChatTemplate(tokenizer)
        turns = [{"role": "user", "content": text}] if isinstance(text, str) else [*text]
        ids, _ = template.encode_arrays(template.training(turns))
    if not ids.size:
        raise FeatherbackError("A text to classify is empty.")
    if ids.size > (most := model.config.max_position_embeddings):
        raise FeatherbackError(f"A text has {ids.size} tokens, and the model supports at most {most}. Shorten it.")
    return ids.astype(np.int32)


def _scores(model: Model, adapter: Adapter, ids: Any, compute: str) -> Any:
    """Return the scores (K,) of token ids (n,)."""
    kept = KeptScores()
    method = methods.create(
        "mesp", model, adapter, Plan.default(model.config, tokens=ids.size, compute=compute), objective=kept
    )
    try:
        kept.found.clear()
        method.loss(label_batch([ids], [0]), objective=kept)
    finally:
        method.close()
    return kept.found[0][0]


def _named(outputs: Sequence[str], scores: Any) -> Classified:
    named = {name: float(score) for name, score in zip(outputs, scores)}
    if len(outputs) == 1:
        return Classified(named)
    probabilities = {name: float(p) for name, p in zip(outputs, np.exp(log_softmax(scores[None])[0]))}
    label = max(probabilities, key=probabilities.__getitem__)
    return Classified(named, label, probabilities[label], probabilities)
