"""Turn a prompt into streamed text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.infer.lookup import Lookup
from featherback.infer.passes import Check, go_on
from featherback.infer.sampler import Sampler
from featherback.models.finite import check_weights
from featherback.models.model import Model

if TYPE_CHECKING:
    from featherback.data.tokenizers.tokenizer import Tokenizer


def generate_tokens(
    decoder: Decoder,
    prompt: Sequence[int],
    sampler: Callable[[NDArray[np.float32]], int],
    max_tokens: int,
    end_ids: Collection[int] = (),
    check: Check = go_on,
) -> Iterator[int]:
    """Yield the tokens after `prompt` until an end token (not yielded), `max_tokens`, or a full cache.

    Tokens of the prompt that are already in the cache are not computed again. `check` is called before every token and
    may raise. Raises FeatherbackError if the logits are not finite.
    """
    sure = decoder.tokens[: len(decoder.tokens) - decoder.unsure]  # so that guesses change nothing of the next prompt
    known = decoder.rewind(common(sure, prompt[:-1]))  # the last token must pass again, for its logits
    logits = decoder.forward(prompt[known:], check=check)
    lookup = Lookup(decoder, prompt)
    for count in range(1, max_tokens + 1):
        check_logits(logits, decoder.model)
        token = sampler(logits)
        if token in end_ids:
            return
        yield token
        if count == max_tokens or len(prompt) + count > decoder.capacity:
            return
        logits = lookup.forward(token, check)


def generate_text(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    sampler: Sampler,
    max_tokens: int,
    check: Check = go_on,
) -> Iterator[str]:
    """Yield the text after `prompt`, piece by piece as characters become complete, until an end token of the model."""
    stream = tokenizer.stream()
    for token in generate_tokens(decoder, prompt, sampler, max_tokens, tokenizer.end_ids, check):
        if piece := stream.push(token):
            yield piece
    if rest := stream.flush():
        yield rest


def check_logits(logits: NDArray[np.float32], model: Model) -> None:
    """Raise FeatherbackError if logits (vocab,) are not finite, saying whether model or adapter is at fault."""
    if not np.isfinite(logits.max()):  # max() is NaN if any logit is
        check_weights(model)
        raise FeatherbackError(
            "The logits are not finite (NaN or infinite). The adapter does not fit the model, or its training "
            "diverged: train again with a lower learning rate."
        )


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
