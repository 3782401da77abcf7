"""What server and nodes write to each other, in Flower's records."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from featherback.core.terminal import print_error
from featherback.errors import FeatherbackError
from featherback.federated.strategies.base import Arrays

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

TASK, IDENTITY, FEDERATION = "task", "identity", "federation"
"""Entries of the configuration that the server sends: what to do, for which model (JSON), and in which federation."""
TOKENS, ONE, LOSS, EVAL_LOSS = "tokens", "one", "loss", "eval_loss"
"""Measures: the tokens of an answer, or 1, which weigh it; its mean loss in training; its held-out loss."""
MEASURES = (TOKENS, LOSS, EVAL_LOSS, "steps", "seconds", "peak_rss_mb")
"""All measures that a node sends."""
MOST = 1e30
"""No measure is larger, so sums of them are finite."""
LONGEST = 300
"""Letters of a node's text that are logged."""
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


class Tensors(Mapping[str, npt.NDArray[Any]]):
    """The tensors of a record by name, each read when it is asked for. Raises FeatherbackError if one is damaged."""

    def __init__(self, record: ArrayRecord) -> None:
        self._record = record

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        try:
            found = self._record[name].numpy()
        except Exception as error:  # the bytes are another machine's, and NumPy's parser may fail in any way
            raise FeatherbackError(f"The tensor {name} cannot be read: {error}.") from None
        if not isinstance(found, np.ndarray):  # NumPy also reads archives
            raise FeatherbackError(f"The tensor {name} cannot be read: it is not an array.")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


def tensors_of(message: Message) -> Tensors:
    """Return the tensors in a message. Raises FeatherbackError if they are not one set."""
    if len(message.content.array_records) != 1:
        raise FeatherbackError("The message does not hold one set of tensors.")
    (record,) = message.content.array_records.values()
    return Tensors(record)


def arrays_of(message: Message) -> Arrays:
    """Return the tensors in a message, all at once. Raises FeatherbackError if they cannot be read."""
    return dict(tensors_of(message))


def record_of(tensors: Iterable[tuple[str, npt.NDArray[Any]]]) -> ArrayRecord:
    """Return a record that holds these tensors."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(each) for name, each in tensors})


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
    """Return the measures in a message that we know, so that a node cannot fill the history with others.

    Raises FeatherbackError if one of them is not a number, or infinite.
    """
    if len(message.content.metric_records) != 1:
        raise FeatherbackError("The message does not hold one set of measures.")
    (record,) = message.content.metric_records.values()
    found = {name: record[name] for name in MEASURES if name in record}
    for name, value in found.items():
        if not isinstance(value, (int, float)) or not abs(value) < MOST:
            raise FeatherbackError(f"The measure {name} is {plain(value)}, which is not a finite number.")
    return found


def plain(text: object) -> str:
    """Return what a node has sent as one short line without control characters, fit for a log."""
    line = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 2 * LONGEST])
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def needed(tensors: ArrayRecord, measures: Mapping[str, float]) -> RecordDict:
    """Return what the mean needs of an answer, and no more, so that no node can confuse a strategy."""
    from flwr.app import MetricRecord, RecordDict

    kept = MetricRecord({TOKENS: measures[TOKENS], LOSS: measures[LOSS], ONE: 1.0})
    return RecordDict({"arrays": tensors, "metrics": kept})
