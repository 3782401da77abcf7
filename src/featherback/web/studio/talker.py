"""A process that answers with a run's model, without and with its adapter. Its argument is the run's directory.

It reads one JSON object per line, and writes one per line:

{"ask": {SIDE: [MESSAGE, ...], ...}, "temperature": 0.7, "seed": 1}     answer these conversations, all at once
{"stop": true}                                                          end the answers
{"piece": TEXT, "side": SIDE}                                           a part of an answer
{"end": REASON, "side": SIDE, "tokens": N}                              an answer has ended
{"error": SENTENCE}, with a side if it concerns one answer              something failed

SIDE is "original" or "trained". Both read the same weights, within the memory of one budget.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from threading import Lock, Thread
from typing import Any

from featherback.core.failure import sentence
from featherback.core.naming import as_flags
from featherback.core.terminal import DEBUG
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine import kernels
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.infer import ANSWER_TOKENS, CONTEXT, TOP_P
from featherback.infer.batching import Batcher, Request, Ticket
from featherback.infer.prompt import encode_prompt
from featherback.infer.sampler import Sampler
from featherback.models.adapter import Adapter
from featherback.runs.compute import resolve_compute
from featherback.runs.decoders import Within, open_batcher
from featherback.runs.initial_state import base_model
from featherback.runs.panels.run import AUTO
from featherback.runs.run_directory import RunDirectory

ORIGINAL, TRAINED = "original", "trained"
_LONGEST = 4_000_000  # characters of a line that is read


class Talker:
    """Answers one question at a time, on both sides at once."""

    def __init__(self, run: RunDirectory) -> None:
        """Raises FeatherbackError if the model is not the one that the run was trained on, or does not fit."""
        config = run.config
        self._model = base_model(run)
        self._tokenizer = load_tokenizer(self._model.path)
        kernels.set_threads(config.threads or kernels.default_threads())
        self._adapter = formats.load(self._model, run.path)
        within = Within(config.memory, whole=True)
        self._batcher: Batcher = open_batcher(self._model, CONTEXT, resolve_compute(AUTO, run.path), within)
        self._writing = Lock()
        self._tickets: list[Ticket] = []

    def ask(self, asked: Mapping[str, Any]) -> None:
        """Begin to answer. Raises FeatherbackError if a conversation does not fit."""
        self.stop()
        requests = {side: self._request(side, messages, asked) for side, messages in asked["ask"].items()}
        for side, request in requests.items():
            ticket = self._batcher.submit(request)
            self._tickets.append(ticket)
            Thread(target=self._tell, args=(side, ticket), daemon=True).start()

    def stop(self) -> None:
        """End the answers."""
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets = []

    def close(self) -> None:
        """End everything, and free the memory."""
        self._batcher.close()

    def say(self, **line: Any) -> None:
        """Write a line."""
        with self._writing:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    def _request(self, side: str, messages: list[dict[str, str]], asked: Mapping[str, Any]) -> Request:
        adapter: Adapter | None = self._adapter if side == TRAINED else None
        tokenizer = self._tokenizer
        prompt = messages if tokenizer.is_chat else messages[-1]["content"]  # a base model continues the text
        ids = encode_prompt(tokenizer, prompt)
        room = self._batcher.capacity - len(ids)
        if room < 1:
            raise FeatherbackError(
                f"The conversation is {len(ids)} tokens long, but the context holds {self._batcher.capacity}. Start a "
                "new conversation."
            )
        sampler = Sampler(asked["temperature"], TOP_P, 0, asked["seed"])
        return Request(ids, sampler, min(ANSWER_TOKENS, room), tokenizer.end_ids, adapter, side)

    def _tell(self, side: str, ticket: Ticket) -> None:
        """Write an answer as it comes."""
        stream = self._tokenizer.stream()
        try:
            for emitted in ticket:
                if piece := stream.push(emitted.token):
                    self.say(side=side, piece=piece)
            if rest := stream.flush():
                self.say(side=side, piece=rest)
            self.say(side=side, end=ticket.finish_reason, tokens=ticket.usage.completion_tokens)
        except Exception as error:
            self.say(side=side, error=_sentence(error))


def _sentence(error: Exception) -> str:
    if DEBUG in os.environ:
        import traceback

        traceback.print_exception(error)
    return sentence(error) or f"Unexpected {type(error).__name__}: {error}. This is a bug in Featherback."


def main(arguments: list[str]) -> int:
    """Answer until the input ends."""
    talker: Talker | None = None
    with as_flags():
        try:
            talker = Talker(RunDirectory.open(arguments[0]))
            talker.say(ready=True)
            while line := sys.stdin.readline(_LONGEST):
                asked = json.loads(line)
                try:
                    talker.stop() if asked.get("stop") else talker.ask(asked)
                except FeatherbackError as error:
                    talker.say(error=_sentence(error))
        except Exception as error:
            print(json.dumps({"error": _sentence(error)}), flush=True)  # noqa: T201 - JSON, which holds no controls
            return 2
        finally:
            if talker is not None:
                talker.close()
    return 0
