"""The ClientApp of a federation: a node's answers to the server. What leaves the machine is what `_reply` packs."""

from __future__ import annotations

import json
from collections.abc import Callable
from logging import ERROR
from typing import Any

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import log

from featherback.errors import FeatherbackError
from featherback.federated import fit, messages
from featherback.federated.identity import check_same
from featherback.federated.pieces import Pieces
from featherback.federated.privacy import OPTIONS as PRIVACY_OPTIONS
from featherback.federated.settings import Federation, Node
from featherback.federated.strategies.base import FIT, GRADIENT, Arrays

Work = Callable[[Federation, Node, Any, fit.Job, Arrays], fit.Result]
FAILED = "The node could not do its work; its own log says why."
_TASKS: dict[str, Work] = {FIT: fit.fit, GRADIENT: fit.gradient}


def client_app() -> ClientApp:
    """Return the app that runs on each node. Its options are those of the run and of the node."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        def work(message: Message, context: Context) -> Message:
            task = str(messages.config_of(message)[messages.TASK])
            return _answered(message, context, _TASKS[task])

        def protected() -> Message:
            federation = Federation.of(context.run_config)
            privacy = PRIVACY_OPTIONS.make(federation.privacy, federation.privacy_options)
            return privacy.node(message, context, work)

        return _guarded(message, protected)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answered(message, context, fit.evaluate)

    return app


def _answered(message: Message, context: Context, work: Work) -> Message:
    """Do the work that a message asks for, and answer it."""
    messages.warn_of_telemetry()

    def done() -> Message:
        config = messages.config_of(message)
        federation, node = Federation.of(context.run_config), Node.of(context.node_config, context.run_config)
        model = fit.open_model(node)
        check_same(model, json.loads(str(config[messages.IDENTITY])))
        job = fit.Job(
            messages.checked_name(str(config[messages.FEDERATION])),
            int(config["server-round"]),
            float(config.get("proximal-mu", 0.0)),
        )
        pieces = fit.pieces(federation, node, model, job)
        arrays = pieces.unpack(messages.arrays_of(message))
        return Message(_content(work(federation, node, model, job, arrays), pieces), reply_to=message)

    return _guarded(message, done)


def _guarded(message: Message, do: Callable[[], Message]) -> Message:
    """Return the answer of `do`, or that it has failed. The reason stays in this node's log: it may quote data."""
    try:
        return do()
    except messages.RefusedError as error:
        log(ERROR, "%s", error)
        return Message(Error(messages.REFUSED, str(error)), reply_to=message)
    except Exception as error:
        log(ERROR, "The work has failed: %s", error, exc_info=not isinstance(error, FeatherbackError))
        return Message(Error(messages.REFUSED, FAILED), reply_to=message)


def _content(result: fit.Result, pieces: Pieces) -> RecordDict:
    """Pack everything that leaves the node: tensors, the number of supervised tokens, and measures."""
    content = RecordDict({"metrics": MetricRecord({messages.TOKENS: result.tokens, **result.measures})})
    if result.arrays:
        content["arrays"] = messages.record_of(pieces.pack(result.arrays))
    return content
