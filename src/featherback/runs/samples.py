"""The model's answers before and after a run (`--samples`), described in docs/watching.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np

from featherback import models
from featherback.core.terminal import Progress, quoted
from featherback.data.forms import FORMS
from featherback.data.token_file import TokenFile
from featherback.data.tokenizers.loader import check_tokenizer, load_tokenizer, tokenizer_bytes
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.budget import BudgetError
from featherback.engine.host.interrupt import StoppedError
from featherback.engine.host.machine import memory_limit
from featherback.engine.host.reading import drop_maps
from featherback.errors import FeatherbackError
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_text
from featherback.infer.passes import go_on
from featherback.infer.sampler import Sampler
from featherback.methods.memory.planner import SPARE
from featherback.models.model import Model, matrices
from featherback.runs.callback import Callback
from featherback.runs.decoders import UNLIMITED, Within, open_decoder
from featherback.runs.events import Note, Sample
from featherback.runs.initial_state import base_model
from featherback.runs.run_directory import RunDirectory

ANSWER = 48
"""Maximum tokens of an answer."""
BEGINNING = 32
"""Maximum tokens of a plain text that serve as the prompt."""


@dataclass(frozen=True)
class _Question:
    prompt: list[int]
    expected: list[int]
    is_cut: bool
    """Whether `expected` was truncated."""


def make_samples(run: RunDirectory, model: Model, callback: Callback, check: Callable[[], None]) -> None:
    """Generate, report and record the answers for --samples after a run has finished, within its memory budget.

    `model`: the run's open model. `check` is called between tokens. If it raises StoppedError, or if generation does
    not fit in the budget, the run ends without answers.
    """
    config = run.config
    if run.record.samples:  # from an earlier end of this run
        run.update(samples=[])
    if not config.samples or config.outputs or config.compares or not _can_be_read(model):
        return
    within = Within(config.budget or int(SPARE * memory_limit()), run.plan.weights, run.path)
    later = quoted("featherback", "report", run.path, "--samples", config.samples)
    try:
        for each in sample(run, config.samples, None if config.train == "full" else model, within, check):
            callback.tell(each)
    except StoppedError:
        callback.tell(Note(f"note: the answers before and after training were skipped; to make them: {later}"))
    except FeatherbackError as error:
        callback.tell(
            Note(
                f"note: the answers before and after training were skipped: {error} To make them without a memory "
                f"budget: {later}"
            )
        )


def sample(
    run: RunDirectory,
    count: int,
    model: Model | None = None,
    within: Within = UNLIMITED,
    check: Callable[[], None] | None = None,
) -> list[Sample]:
    """Answer `count` examples greedily with the model before and after the run, and record the answers in run.json.

    The examples are the first held-out ones, or else the first training examples. `model`: the base model, if it is
    open. One decoder is open at a time, the fastest that fits within the limit. Raises FeatherbackError if the model
    has no tokenizer or is missing, BudgetError if no decoder fits.
    """
    config = run.config
    if config.outputs:
        raise FeatherbackError(f"{run.path} has a head that scores texts, so there are no answers to show.")
    if config.compares:
        raise FeatherbackError(f"{run.path} was trained to embed texts, so there are no answers to show.")
    data = "eval" if "eval" in run.record.data else "train"
    questions = list(islice(_questions(TokenFile(run.tokens / f"{data}.tokens")), count))
    if not questions:
        return []
    model = model or base_model(run)
    drop_maps(matrices(model))  # free the pages that were read before
    if not within.whole:  # else the peak counts, so that a refusal names an amount for all phases
        within.budget.ask(tokenizer_bytes(model.path), "The tokenizer of the answers")
    tokenizer = load_tokenizer(model.path)
    trained = models.load(run.path) if config.train == "full" else model
    first = None if config.start is None else run.start
    last = None if config.train == "full" else run.path
    answers, capacity = [], max(len(each.prompt) for each in questions) + ANSWER
    refused: BudgetError | None = None
    with Progress("answers before and after") as progress:
        for opened, place in ((model, first), (trained, last)):
            try:
                with closing(open_decoder(opened, place, capacity, run.plan.compute, within)) as decoder:
                    asked = [] if refused else questions
                    answers.append([_answer(decoder, tokenizer, each.prompt, progress, check) for each in asked])
            except BudgetError as error:  # name an amount that is enough for both decoders
                refused = error if refused is None or error.needed > refused.needed else refused
            drop_maps(matrices(opened))
    if refused is not None:
        raise refused
    prompts = (tokenizer.decode(each.prompt, special=True) for each in questions)
    expected = (tokenizer.decode(each.expected) + "\u2026" * each.is_cut for each in questions)
    found = [Sample(*each) for each in zip(prompts, expected, *answers, strict=True)]
    run.update(samples=found)
    return found


def _can_be_read(model: Model) -> bool:
    """Return whether the model has a tokenizer, without which its answers could not be read."""
    try:
        check_tokenizer(model.path)
    except FeatherbackError:
        return False
    return True


def _questions(tokens: TokenFile) -> Iterator[_Question]:
    """Yield each example's prompt and first answer; for plain text, its beginning and continuation."""
    form = FORMS[tokens.form]
    for index in range(len(tokens)):
        if (found := form.shown(tokens, index)) is None:
            continue
        ids, trained = found
        first = int(np.argmax(trained))
        if first == 0:
            first = min(BEGINNING, len(ids) // 2)
        untrained = np.flatnonzero(~trained[first:])
        end = first + int(untrained[0]) if untrained.size else len(ids)
        if 0 < first < end:
            most = first + ANSWER
            yield _Question(ids[:first].tolist(), ids[first : min(end, most)].tolist(), end > most)


def _answer(
    decoder: Decoder, tokenizer: Tokenizer, prompt: list[int], progress: Progress, check: Callable[[], None] | None
) -> str:
    text = ""
    for piece in generate_text(decoder, tokenizer, prompt, Sampler(), ANSWER, check or go_on):
        text += piece
        if progress.is_due():
            progress.show(text[-40:])
    return text
