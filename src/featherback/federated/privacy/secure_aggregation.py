"""Secure aggregation: the server sees only the sum of the updates, with Flower's SecAgg+ (Bell et al., CCS 2020).

Each node adds masks to its adapter that cancel in the sum of all nodes. If a node dies in a round, the others hold
shares of its keys, with which its masks are removed. Values are rounded to 22 bits, and all nodes have the same weight.

SecAgg+ speaks Flower's earlier messages, without names of tensors. They are translated here, on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from logging import ERROR
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from featherback.core.options import option
from featherback.federated.messages import RefusedError, plain
from featherback.federated.privacy.base import Privacy

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy

    from featherback.federated.privacy.base import Next

SUM = 0
"""The number that stands for all nodes together."""
NAMES = "names"
"""The entry of a message's configuration that lists the names of its tensors, as JSON."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation(Privacy):
    EQUAL: ClassVar[bool] = True

    clipping_range: float = option(4.0, above=0, help="Largest magnitude of a value of the adapter.")
    threshold: float = option(0.5, above=0, most=1, help="Share of the nodes without which a round has no result.")

    def exchange(
        self, strategy: Strategy, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> Iterator[tuple[int, Message]]:
        from flwr.app import ArrayRecord as Arrays
        from flwr.app import ConfigRecord as Configs
        from flwr.app import Context, RecordDict
        from flwr.common import log
        from flwr.server import ServerConfig
        from flwr.server.compat import LegacyContext
        from flwr.server.workflow import SecAggPlusWorkflow
        from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

        messages = list(strategy.configure_train(number, arrays, config, grid))
        round_ = _Round(messages, list(arrays))
        state = RecordDict({MAIN_CONFIGS_RECORD: Configs({Key.CURRENT_ROUND: number}), MAIN_PARAMS_RECORD: Arrays()})
        context = LegacyContext(Context(0, 0, {}, state, {}), ServerConfig(1), round_, round_)
        workflow = SecAggPlusWorkflow(
            1.0, self.threshold, max_weight=1.0, clipping_range=self.clipping_range, timeout=timeout
        )
        try:
            workflow(grid, context)
        except Exception as error:  # a node may send anything, and the workflow does not check it
            log(ERROR, "Secure aggregation has failed: %s", plain(f"{type(error).__name__}: {error}"))
            return
        yield from round_.answers.items()

    def node(self, message: Message, context: Context, call_next: Next) -> Message:
        from flwr.client.mod import secaggplus_mod

        return secaggplus_mod(message, context, lambda inner, context: _answered(inner, context, call_next))


class _Round:
    """One round, as SecAgg+ sees it: a strategy that samples these nodes, and a list of them."""

    def __init__(self, messages: Sequence[Message], names: list[str]) -> None:
        self.messages, self.names = messages, names
        self.answers: dict[int, Message] = {}

    def num_available(self) -> int:
        return len(self.messages)

    def configure_fit(self, number: int, parameters: Any, manager: Any) -> list[tuple[Any, Any]]:
        from flwr.common import FitIns, ndarrays_to_parameters

        found = []
        for message in self.messages:
            arrays, config = (next(iter(each.values())) for each in _records(message))
            values = ndarrays_to_parameters([arrays[name].numpy() for name in self.names])
            config = {**config, NAMES: json.dumps(self.names)}
            found.append((SimpleNamespace(node_id=message.metadata.dst_node_id), FitIns(values, config)))
        return found

    def aggregate_fit(self, number: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        """Keep the mean of all nodes as one answer, with the mean of their measures."""
        from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.common import parameters_to_ndarrays

        measures = [fit.metrics for _, fit in results]
        total = {name: sum(float(each[name]) for each in measures) for name in measures[0]}
        mean = {name: value / len(measures) for name, value in total.items()}
        values = parameters_to_ndarrays(results[0][1].parameters)
        arrays = {name: Array(value.astype("float32")) for name, value in zip(self.names, values, strict=True)}
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(mean)})
        self.answers = {SUM: Message(content, dst_node_id=SUM, message_type="train")}
        return None, {}


def _records(message: Message) -> tuple[Any, Any]:
    return message.content.array_records, message.content.config_records


def _answered(message: Message, context: Context, call_next: Next) -> Message:
    """Translate SecAgg+'s request for training into ours, and our answer into SecAgg+'s."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat

    asked = recorddict_compat.recorddict_to_fitins(message.content, True)
    config: dict[str, Any] = dict(asked.config)
    names = json.loads(config.pop(NAMES))
    values = parameters_to_ndarrays(asked.parameters)
    arrays = ArrayRecord({name: Array(value) for name, value in zip(names, values, strict=True)})
    message.content = RecordDict({"arrays": arrays, "config": ConfigRecord(config)})
    answer = call_next(message, context)
    if answer.has_error():
        raise RefusedError(str(answer.error.reason))  # which is fit to be sent
    (trained,), (measures,) = answer.content.array_records.values(), answer.content.metric_records.values()
    parameters = ndarrays_to_parameters([trained[name].numpy() for name in names])
    done = FitRes(Status(Code.OK, ""), parameters, 1, dict(measures))
    answer.content = recorddict_compat.fitres_to_recorddict(done, False)
    return answer


PRIVACY = SecureAggregation
