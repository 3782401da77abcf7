"""The ServerApp of a federation: rounds of Flower's strategies, with checks of what nodes send, saved and resumed."""

from __future__ import annotations

import json
import math
import time
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.common import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from featherback import models
from featherback.errors import FeatherbackError
from featherback.federated import messages, rounds
from featherback.federated.asking import ask
from featherback.federated.identity import identity_of
from featherback.federated.messages import Tensors
from featherback.federated.pieces import Pieces
from featherback.federated.privacy import OPTIONS as PRIVACY_OPTIONS
from featherback.federated.settings import Federation
from featherback.federated.strategies import OPTIONS as STRATEGY_OPTIONS
from featherback.federated.strategies.base import FIT
from featherback.federated.updates import MOST_TOKENS, Referee, Update, examine, limited, problem_of
from featherback.federated.waiting import WaitingRoom
from featherback.models.hub.locate import locate

MOST_NOISE = 1.0
"""Noise in the mean, in units of the largest update, above which the log warns."""
ATTEMPTS = 3
"""How often a round is tried if no node has sent a usable update."""


def server_app() -> ServerApp:
    """Return the app that runs on the server. Its options are those of the run configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        messages.warn_of_telemetry()
        try:
            federation = Federation.of(context.run_config)
            with rounds.locked(Path(federation.out)):
                Server(federation).run(grid)
        except FeatherbackError as error:
            log(ERROR, "error: %s", error)  # in one line, before the traceback by which Flower reports a failed run
            raise

    return app


class Answers(NamedTuple):
    """The answers of a round. `good` enter the mean; `measures` are theirs by node; `reasons`: why others do not."""

    good: list[Message]
    measures: dict[int, dict[str, float]]
    reasons: dict[int, str]


class Server:
    """A federation on the server: the newest adapter, and what is known of the rounds before."""

    def __init__(self, federation: Federation) -> None:
        """Begin a federation, or continue the one in the folder `out`. Raises FeatherbackError if it does not fit."""
        self.federation, self.out = federation, Path(federation.out)
        self.privacy = PRIVACY_OPTIONS.make(federation.privacy, federation.privacy_options)
        self.chosen = STRATEGY_OPTIONS.make(federation.strategy, federation.strategy_options)
        model = models.load(locate(federation.model))
        identity = identity_of(model)
        self.config = federation.config(model)
        self.adapter = rounds.adapter_on_disk(model, self.config, self.out)
        if (place := rounds.newest(self.out)) is None:
            self.last = rounds.Round.first(identity)
            self.last.save(self.out, self.adapter)
        else:
            self.last = rounds.load(place, identity)
            rounds.load_adapter(place, self.adapter)
            log(INFO, "Continuing after round %d, from %s", self.last.number, place)
        self.pieces = Pieces(self.adapter.shapes())
        self.most_tokens = federation.most_tokens(self.config, model) or MOST_TOKENS
        fits = self.chosen.TASK == FIT  # otherwise the server decides on each batch, and the mean is exact
        largest_weight = federation.largest_weight if fits else None
        self.referee = Referee(federation.largest_update, largest_weight, self.last.norms)
        common = {
            "fraction_train": federation.share,
            "fraction_evaluate": 1.0,
            "min_train_nodes": federation.min_nodes,
            "min_evaluate_nodes": 1,
            "min_available_nodes": federation.min_nodes,
            "weighted_by_key": messages.ONE if self.privacy.EQUAL else messages.TOKENS,
        }
        self.plain = self.chosen.build(model, self.config, common)
        self.chosen.restore(self.plain, self.last.state)
        self.strategy: Strategy = self.privacy.wrap(self.plain)

    def run(self, grid: Grid) -> None:
        """Run the rounds that are missing. Raises FeatherbackError if a round has no result after ATTEMPTS."""
        federation = self.federation
        failed = 0
        self._warn_of_noise()
        while self.last.number < federation.rounds:
            number = self.last.number + 1
            log(INFO, "[ROUND %d/%d]", number, federation.rounds)
            entry = self._round(grid, number)
            if entry is None:
                failed += 1
                if failed == ATTEMPTS:
                    raise FeatherbackError(
                        f"Round {number} had no usable update in {ATTEMPTS} attempts. The log above names the reasons; "
                        f"start the run again to continue after round {self.last.number}."
                    )
                continue
            failed = 0
            self.last.number = number
            ends = number == federation.rounds
            if ends or number % federation.evaluate_every == 0:
                entry |= self._evaluate(grid, number)
            self.last.history.append(entry)
            if ends or number % federation.save_every == 0:
                self.last.norms, self.last.state = self.referee.norms, self.chosen.state(self.plain)
                log(INFO, "Saved %s", self.last.save(self.out, self.adapter))
        log(INFO, "The adapter of round %d is in %s", self.last.number, rounds.folder(self.out, self.last.number))

    def _round(self, grid: Grid, number: int) -> dict[str, Any] | None:
        """Train a round and take over its result; return its entry of the history, or None if it has no result."""
        start = time.monotonic()
        with WaitingRoom(self.out) as room:
            answers = self._usable(grid, number, room)
            if not answers.good:
                return None
            self.privacy.before_mean(self.strategy, len(answers.good))
            mean, measures = self.strategy.aggregate_train(number, answers.good)
        if mean is None:
            return None
        self.adapter.load_state(self.pieces.unpack(dict(Tensors(mean))))
        return {
            "round": number,
            "seconds": time.monotonic() - start,
            "loss": None if measures is None else measures["loss"],
            "nodes": {str(node): each for node, each in answers.measures.items()},
            "rejected": {str(node): reason for node, reason in answers.reasons.items()},
        }

    def _warn_of_noise(self) -> None:
        """Say so if the noise of differential privacy is larger than what nodes learn."""
        values, nodes = sum(map(math.prod, self.pieces.shapes.values())), self.federation.min_nodes
        if (noise := self.privacy.noise(values, nodes)) > MOST_NOISE:
            log(
                WARNING,
                "With %d nodes, the noise of a round is %.3g times as large as the largest update (clipping-norm), so "
                "the adapter will not learn. Use more nodes, a smaller adapter (rank, targets), or less noise.",
                nodes,
                noise,
            )

    def _asked(self) -> ConfigRecord:
        """Return what every message of the federation says. Flower adds the round's number."""
        return ConfigRecord(
            {
                messages.TASK: self.chosen.TASK,
                messages.IDENTITY: json.dumps(self.last.identity),
                messages.FEDERATION: self.last.federation,
            }
        )

    def _usable(self, grid: Grid, number: int, room: WaitingRoom) -> Answers:
        """Send the nodes the work of a round, and return the answers that enter the mean. Log why others do not."""
        reasons: dict[int, str] = {}
        updates: list[Update] = []
        good: dict[int, Message] = {}
        packed = self._packed()
        before = Tensors(packed)
        start = before if self.chosen.TASK == FIT else None
        limit = self.federation.timeout
        for node, message in self.privacy.exchange(self.strategy, number, packed, self._asked(), grid, limit):
            if message.has_error():
                reasons[node] = f"it failed: {messages.plain(message.error.reason)}"
                continue
            try:
                update = examine(
                    node,
                    messages.tensors_of(message),
                    messages.measures_of(message),
                    self.pieces.shapes,
                    start,
                    self.most_tokens,
                )
            except FeatherbackError as error:
                reasons[node] = messages.plain(error)
                continue
            updates.append(update)
            if update.problem is None:
                kept = room.keep(messages.tensors_of(message), list(self.pieces.shapes))
                message.content = messages.needed(kept, update.measures)
                good[node] = message
            del message  # an adapter takes as much memory as all of the rest
        verdict = self.referee.judge(updates, self._floor(before))
        reasons |= verdict.reasons
        for node, reason in reasons.items():
            log(WARNING, "The update of node %d is rejected: %s", node, reason)
        measured = {each.node: dict(each.measures) for each in updates if each.node not in reasons}
        if not self.privacy.EQUAL:
            for node, weight in verdict.weights.items():
                self._weigh(node, good[node], measured[node], weight)
        return Answers([good[node] for node in measured], measured, reasons)

    def _weigh(self, node: int, message: Message, measures: dict[str, float], weight: float) -> None:
        """Give an answer its weight in the mean, and record it if it is not what the node claims."""
        if weight < (claimed := measures[messages.TOKENS]):
            log(WARNING, "Node %d claims %d tokens, which count as %d (largest-weight)", node, claimed, weight)
            measures["weight"] = weight
            (record,) = message.content.metric_records.values()
            record[messages.TOKENS] = weight

    def _floor(self, before: Tensors) -> float:
        """Return a norm that is not absurd: that of the adapter, or the one to which gradients are clipped."""
        if self.chosen.TASK != FIT:
            return self.config.clip_norm or 1.0
        return math.sqrt(sum(float(np.vdot(each, each)) for each in before.values()))

    def _evaluate(self, grid: Grid, number: int) -> dict[str, Any]:
        """Return the held-out loss over all nodes that have held-out data, as an entry of the history."""
        asked = self.strategy.configure_evaluate(number, self._packed(), self._asked(), grid)
        found: dict[int, tuple[float, float]] = {}
        for node, message in ask(grid, asked, self.federation.timeout):
            if message.has_error():
                log(WARNING, "Node %d has not evaluated: %s", node, messages.plain(message.error.reason))
                continue
            try:
                measures = messages.measures_of(message)
            except FeatherbackError as error:
                log(WARNING, "The held-out loss of node %d is ignored: %s", node, error)
                continue
            count, loss = measures.get(messages.TOKENS, 0), measures.get(messages.EVAL_LOSS, math.nan)
            if count and (problem := problem_of(count, loss, MOST_TOKENS, least=0.0)):
                log(WARNING, "The held-out loss of node %d is ignored: %s", node, problem)
            elif count:  # otherwise the node has no held-out data
                found[node] = count, loss
        if not found:
            return {}
        weights = limited({node: count for node, (count, _) in found.items()}, self.federation.largest_weight)
        tokens = sum(weights.values())
        mean = sum(weights[node] * loss for node, (_, loss) in found.items()) / tokens
        log(INFO, "Held-out loss after round %d: %.4f, over %d tokens", number, mean, tokens)
        each = {str(node): {messages.TOKENS: count, messages.LOSS: loss} for node, (count, loss) in found.items()}
        return {"eval_loss": mean, "eval_tokens": int(tokens), "eval_nodes": each}

    def _packed(self) -> ArrayRecord:
        """Return the adapter as messages hold it."""
        return messages.record_of(self.pieces.pack(self.adapter.state()))
