"""What a model answers before and after a run, for people to look at: docs/watching.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from featherback import kernels, models
from featherback.adapters import formats
from featherback.adapters.lora import LoRA
from featherback.data.token_file import TokenFile
from featherback.data.tokenizer import Tokenizer
from featherback.data.tokenizer_loader import check_tokenizer, load_tokenizer
from featherback.errors import FeatherbackError
from featherback.inference.decoder import Decoder
from featherback.inference.generate import generate_text
from featherback.inference.sampler import Sampler
from featherback.models.model import Model
from featherback.terminal import Progress
from featherback.training.events import Sample
from featherback.training.run_directory import RunDirectory

ANSWER = 48
"""Most tokens of an answer."""
BEGINNING = 32
"""Most tokens that are given of a text, of which all are trained."""
_MB = 10**6


@dataclass(frozen=True)
class _Asked:
    prompt: list[int]
    expected: list[int]


def sample(run: RunDirectory, count: int, most: int | None = None) -> list[Sample]:
    """`count` examples with what the run's model says to them as it was and as it is, greedily; recorded in run.json.

    They are the first that are held out, or else of those trained on. None for a model without a tokenizer, whose
    answers nobody could read. FeatherbackError if this process would hold more than `most` bytes.
    """
    config = run.config
    if not (count and _can_be_read(config.model)):
        return []
    data = "eval" if "eval" in run.record["data"] else "train"
    asked = list(islice(_asked(TokenFile(run.tokens / f"{data}.tokens")), count))
    model = models.load(config.model, config.quantize)
    tokenizer = load_tokenizer(model.path)
    compute = run.plan_of(model.blocks).compute
    with Progress("answers before and after") as progress:
        start = formats.load(model, run.start) if config.start is not None else None
        before = _answers(model, start, compute, tokenizer, asked, most, progress)
        if config.train == "full":
            model, start = models.load(run.path), None
        else:
            start = formats.load(model, run.path)
        after = _answers(model, start, compute, tokenizer, asked, most, progress)
    texts = [
        [tokenizer.decode(each.prompt, special=True) for each in asked],
        [tokenizer.decode(each.expected) for each in asked],
        before,
        after,
    ]
    found = [Sample(*each) for each in zip(*texts, strict=True)]
    run.update(samples=[each.values() for each in found])
    return found


def _can_be_read(model: str | Path) -> bool:
    try:
        check_tokenizer(model)
    except FeatherbackError:
        return False
    return True


def _asked(tokens: TokenFile) -> Iterator[_Asked]:
    """Of each example what comes before its first trained tokens, and those; of a text its beginning, and more."""
    for index in range(len(tokens)):
        ids, trained = tokens.seq(index)
        first = int(np.argmax(trained))
        if first == 0:
            first = min(BEGINNING, len(ids) // 2)
        untrained = np.flatnonzero(~trained[first:])
        end = first + int(untrained[0]) if untrained.size else len(ids)
        if 0 < first < end:
            yield _Asked(ids[:first].tolist(), ids[first : min(end, first + ANSWER)].tolist())


def _answers(
    model: Model,
    adapter: LoRA | None,
    compute: str,
    tokenizer: Tokenizer,
    asked: list[_Asked],
    most: int | None,
    progress: Progress,
) -> list[str]:
    decoder = Decoder(model, adapter, max(len(each.prompt) for each in asked) + ANSWER, compute)
    needed = kernels.memory_now()[1] + decoder.nbytes
    if most is not None and needed > most:
        raise FeatherbackError(f"they take {needed / _MB:.0f} MB, the run has {most / _MB:.0f}.")
    answers = []
    for each in asked:
        text = ""
        for piece in generate_text(decoder, tokenizer, each.prompt, Sampler(), ANSWER):
            text += piece
            if progress.is_due():
                progress.show(text[-40:])
        answers.append(text)
    return answers
