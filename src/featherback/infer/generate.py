"""From a prompt to streamed text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.infer.sampler import Sampler
from featherback.models.finite import check_weights

if TYPE_CHECKING:
    from featherback.data.tokenizers.tokenizer import Tokenizer


def generate_tokens(
    decoder: Decoder,
    prompt: Sequence[int],
    sampler: Sampler,
    max_tokens: int,
    end_ids: Collection[int] = (),
    check: Callable[[], None] | None = None,
) -> Iterator[int]:
    """The tokens after `prompt`, one by one: until an end token (kept back), `max_tokens`, or a full cache.

    What the cache already holds of the prompt is not computed again. `check` is called before every pass, and may
    raise. FeatherbackError if what comes out is no number.
    """
    known = decoder.rewind(_common(decoder.tokens, prompt[:-1]))  # at least one token must pass, for its logits
    logits = decoder.forward(prompt[known:], check=check)
    for count in range(1, max_tokens + 1):
        _check(logits, decoder)
        token = sampler(logits)
        if token in end_ids:
            return
        yield token
        if count == max_tokens or len(decoder.tokens) == decoder.capacity:
            return
        logits = decoder.forward([token], check=check)


def generate_text(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    sampler: Sampler,
    max_tokens: int,
    check: Callable[[], None] | None = None,
) -> Iterator[str]:
    """The text after `prompt`, piece by piece as it becomes certain, until one of the model's end tokens."""
    stream = tokenizer.stream()
    for token in generate_tokens(decoder, prompt, sampler, max_tokens, tokenizer.end_ids, check):
        if piece := stream.push(token):
            yield piece
    if rest := stream.flush():
        yield rest


def _check(logits: NDArray[np.float32], decoder: Decoder) -> None:
    """FeatherbackError, saying whose fault it is, if logits (vocab,) are not finite."""
    if not np.isfinite(logits.max()):  # NaN is the largest of all
        check_weights(decoder.model)
        raise FeatherbackError(
            "What the model computes is not finite: the adapter does not fit, or its training diverged."
        )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
