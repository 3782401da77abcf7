"""Send nodes their work, and ask again where a node died: a round keeps its result if a node starts again in time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import INFO
from typing import TYPE_CHECKING

from featherback.federated.messages import REFUSED

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

RETRIES = 2
"""How often the work of nodes that died is sent again within a round."""


def ask(grid: Grid, messages: Iterable[Message], timeout: float) -> dict[int, Message]:
    """Send the messages, whose contents are equal, and return the answers of at most `timeout` seconds, by node.

    If nodes die, the work goes again to them, or to as many others that have not had it, such as a node that was
    started again under a new name. A node that refuses is not asked again, nor one that is only slow.
    """
    from flwr.app import Message
    from flwr.common import log

    sent, deadline = list(messages), time.monotonic() + timeout
    if not sent:
        return {}
    asked = {each.metadata.dst_node_id for each in sent}
    answers = _by_node(sent, grid.send_and_receive(sent, timeout=timeout))
    for _ in range(RETRIES):
        dead = {node for node, answer in answers.items() if _is_dead(answer)}
        missing = len(sent) - sum(node not in dead for node in asked)
        free = [node for node in grid.get_node_ids() if node in dead or node not in asked][:missing]
        left = deadline - time.monotonic()
        if not dead or not free or left <= 0:
            break
        log(INFO, "%d nodes have died; %d are asked again", len(dead), len(free))
        again = [Message(sent[0].content, node, sent[0].metadata.message_type) for node in free]
        asked |= set(free)
        answers |= _by_node(again, grid.send_and_receive(again, timeout=left))
    return answers


def _by_node(sent: list[Message], answers: Iterable[Message]) -> dict[int, Message]:
    """Return answers by the node that was asked: if it is gone, the server answers in its place."""
    nodes = {each.metadata.message_id: each.metadata.dst_node_id for each in sent}
    return {nodes[answer.metadata.reply_to_message_id]: answer for answer in answers}


def _is_dead(answer: Message) -> bool:
    return answer.has_error() and answer.error.code != REFUSED
