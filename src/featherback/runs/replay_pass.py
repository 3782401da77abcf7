"""Lets a model write general examples of its own before it is trained (`--replay auto`).

An answer depends on the seed and its number only. So a run that is killed meanwhile writes the same answers again.
"""

from __future__ import annotations

from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.naming import argument
from featherback.core.terminal import print_error
from featherback.data.prompts import PromptFile
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.errors import FeatherbackError
from featherback.runs.pass_loop import resumable
from featherback.runs.replay import ASKED, AUTO, GENERAL, arrange, is_mixed, wanted_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from featherback.infer.decoder import Decoder
    from featherback.runs.run_directory import RunDirectory
    from featherback.runs.tools import OpenedModel

ANSWER, LEAST = 128, 8
"""The most tokens of an answer, and the least for which there must be room."""
MOST = 256
"""The most answers. More data repeat them."""
_STREAM = 0x7265706C
"""Keeps the random numbers of these answers apart from others of the same seed."""


def is_needed(run: RunDirectory) -> bool:
    """Return whether a run's model has yet to write general examples."""
    return run.config.replay == AUTO and not is_mixed(run)


def write_examples(run: RunDirectory, open_model: OpenedModel, note: Callable[[str], None] = print_error) -> None:
    """Let the base model answer general prompts, and add the answers to the training examples."""
    from featherback.core.terminal import Progress
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine.host.maps import MapWatch
    from featherback.runs.decoders import Within, open_decoder

    config = run.config
    with resumable(run, note):
        config.use_machine()
        model = open_model(config.model, config.quantize)
        room = PromptFile(run.tokens / ASKED)
        prompts = [each for i in range(len(room)) if (each := room.prompt(i).tolist())]
        prompts = [each for each in prompts if len(each) + LEAST <= config.sequence]
        if not prompts:
            raise FeatherbackError(
                f"{argument('replay', AUTO)} needs room for a prompt and an answer, and the sequence length is "
                f"{config.sequence} tokens. Use a larger {argument('seq_len')}."
            )
        left = wanted_tokens(TokenFile(run.tokens / "train.tokens"), config.replay_share)
        ends = load_tokenizer(model.path).end_ids
        within = Within(config.budget, run.plan.weights, run.path, whole=True)
        capacity = min(config.sequence, max(map(len, prompts)) + ANSWER)
        with (
            MapWatch(model.maps, model.close) as maps, Progress("general examples") as shown,
            closing(open_decoder(model, None, capacity, run.plan.compute, within)) as decoder,
            TokenFileWriter(run.tokens / GENERAL) as writer,
        ):  # fmt: skip
            for prompt, answer in _answers(decoder, prompts, config.seed, config.sequence, ends):
                maps.check()
                writer.add(prompt + answer, np.arange(len(prompt) + len(answer)) >= len(prompt))
                left -= len(prompt) + len(answer)
                if shown.is_due():
                    shown.show(f"{writer.n_sequences} written, {max(0, left)} tokens left")
                if left <= 0 or writer.n_sequences == MOST:
                    break
        arrange(run)


def _answers(
    decoder: Decoder, prompts: list[list[int]], seed: int, sequence: int, ends: Collection[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield prompts, again and again, each with an answer that is drawn at temperature 1, with its end token."""
    from featherback.infer.generate import generate_tokens
    from featherback.infer.rollouts import Draws

    for number in count():
        prompt = prompts[number % len(prompts)]
        answer, most = list[int](), min(ANSWER, sequence - len(prompt))
        for token in generate_tokens(decoder, prompt, Draws((seed, _STREAM, number)), most):
            answer.append(token)
            if token in ends:
                break
        yield prompt, answer
