"""Send nodes their work, and ask again where a node died: a round keeps its result if a node starts again in time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from logging import INFO, WARNING
from typing import TYPE_CHECKING

from featherback.federated.messages import REFUSED

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

RETRIES = 2
"""How often the work of nodes that died is sent again within a round."""
SECONDS = 1.0
"""Time between two looks for answers."""


def ask(grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[tuple[int, Message]]:
    """Send the messages, whose contents are equal, and yield each node and its answer, for at most `timeout` seconds.

    Answers come one by one, so that the caller need not hold them all. If nodes die, the work goes again to them, or to
    as many others that have not had it, such as a node that was started again under a new name. A node that refuses is
    not asked again, nor one that is only slow.
    """
    from flwr.app import Message
    from flwr.common import log

    sent, deadline = list(messages), time.monotonic() + timeout
    if not sent:
        return
    asked, dead, now = set[int](), dict[int, Message](), sent
    for attempt in range(RETRIES + 1):
        asked |= {each.metadata.dst_node_id for each in now}
        for node, answer in _exchanged(grid, now, deadline):
            dead.pop(node, None)
            if _is_dead(answer):
                dead[node] = answer
            else:
                yield node, answer
            del answer  # it may be large, and the next one is coming
        missing = len(sent) - sum(node not in dead for node in asked)
        free = [node for node in grid.get_node_ids() if node in dead or node not in asked][:missing]
        if not dead or not free or attempt == RETRIES or time.monotonic() >= deadline:
            break
        log(INFO, "%d nodes have died; %d are asked again", len(dead), len(free))
        now = [Message(sent[0].content, node, sent[0].metadata.message_type) for node in free]
    yield from dead.items()


def _exchanged(grid: Grid, messages: list[Message], deadline: float) -> Iterator[tuple[int, Message]]:
    """Send messages and yield each node that was asked, and the answer: its own, or the server's if it is gone."""
    from flwr.common import log

    nodes = {
        name: message.metadata.dst_node_id
        for name, message in zip(grid.push_messages(messages), messages, strict=False)
        if name
    }
    if len(nodes) < len(messages):
        log(
            WARNING,
            "%d messages could not be sent; they may be larger than the server allows",
            len(messages) - len(nodes),
        )
    while nodes:
        for name in list(nodes):
            for answer in grid.pull_messages([name]):
                yield nodes.pop(name), answer
                del answer
        left = deadline - time.monotonic()
        if left <= 0:
            return
        if nodes:
            time.sleep(min(SECONDS, left))


def _is_dead(answer: Message) -> bool:
    return answer.has_error() and answer.error.code != REFUSED
