"""What server and nodes write to each other, in Flower's records."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from featherback.core.terminal import print_error
from featherback.errors import FeatherbackError
from featherback.federated.strategies.base import Arrays

if TYPE_CHECKING:
    from flwr.app import ConfigRecord, Message

TASK, IDENTITY, FEDERATION = "task", "identity", "federation"
"""Entries of the configuration that the server sends: what to do, for which model (JSON), and in which federation."""
TOKENS, ONE, LOSS = "tokens", "one", "loss"
"""Measures: the supervised tokens of an answer, or 1, which weigh it; and its mean loss."""
REFUSED = 100
"""The code of a node's answer that says why it does not do the work. Smaller codes are Flower's: the node has died."""
_NAME = re.compile(r"[0-9a-f]{16}")
_TELEMETRY = "FLWR_TELEMETRY_ENABLED"


class RefusedError(FeatherbackError):
    """A node does not do the work. The message may leave the node: it quotes no data and names no file."""


def config_of(message: Message) -> ConfigRecord:
    """Return the only configuration in a message."""
    (config,) = message.content.config_records.values()
    return config


def arrays_of(message: Message) -> Arrays:
    """Return the tensors in a message. Raises FeatherbackError if they cannot be read."""
    if len(message.content.array_records) != 1:
        raise FeatherbackError("The message does not hold one set of tensors.")
    (record,) = message.content.array_records.values()
    try:
        return {name: np.asarray(array.numpy()) for name, array in record.items()}
    except (TypeError, ValueError, EOFError) as error:
        raise FeatherbackError(f"The message's tensors cannot be read: {error}.") from None


def checked_name(federation: str) -> str:
    """Return a federation's name, which becomes the name of a folder. Raises FeatherbackError for any other text."""
    if not _NAME.fullmatch(federation):
        raise FeatherbackError(f"The server's federation is called {federation!r}; expected 16 hexadecimal digits.")
    return federation


def warn_of_telemetry() -> None:
    """Say so if Flower reports its use to its makers."""
    if os.environ.get(_TELEMETRY, "1") == "1":
        print_error(f"note: Flower reports its use to its makers; to stop that, set {_TELEMETRY}=0")


def measures_of(message: Message) -> dict[str, float]:
    """Return the numbers in a message. Raises FeatherbackError if they cannot be read."""
    if len(message.content.metric_records) != 1:
        raise FeatherbackError("The message does not hold one set of measures.")
    (record,) = message.content.metric_records.values()
    if any(not isinstance(value, (int, float)) for value in record.values()):
        raise FeatherbackError("A measure in the message is not a number.")
    return dict(record)


def keep_needed(message: Message, names: Iterable[str], measures: Mapping[str, float]) -> None:
    """Leave only what the mean needs, with tensors in the order of `names`, so that no node can confuse a strategy."""
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

    (record,) = message.content.array_records.values()
    needed = MetricRecord({TOKENS: measures[TOKENS], LOSS: measures[LOSS], ONE: 1.0})
    message.content = RecordDict({"arrays": ArrayRecord({name: record[name] for name in names}), "metrics": needed})
