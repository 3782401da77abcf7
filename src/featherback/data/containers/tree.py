"""Conversations with an assistant, as its program exports them: trees, because questions are edited and asked again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from featherback.data.containers.base import Record
from featherback.data.containers.json_array import Array
from featherback.data.containers.talk import LeftOut, answered, joined
from featherback.data.example import Bad
from featherback.data.inputs import Input

Turn = tuple[str, str]
"""Role and text of a message."""


class Conversations(Array):
    """A format of an array of conversations."""

    suffixes = ()
    nothing = "because no question has an answer"

    def fits(self, begin: bytes) -> bool:
        return self.recognises_content(begin)

    @abstractmethod
    def turns(self, row: Mapping[str, Any]) -> Iterator[Turn | LeftOut]:
        """Yield the messages of a conversation in order."""

    def records(self, element: Record | Bad, data: Input) -> Iterator[Record | Bad]:
        if isinstance(element, Bad):
            yield element
            return
        said: list[Turn] = []
        for turn in self.turns(element.values):
            if isinstance(turn, LeftOut):
                data.left_out[turn] += 1
            elif turn[1].strip():
                said.append((turn[0], turn[1].strip()))
        if used := said[answered([role == "assistant" for role, _ in said], data.left_out)]:
            yield Record(element.where, {"messages": joined(used, "\n\n")})


def path_to(leaf: object, nodes: Mapping[Any, Mapping[str, Any]], parent: str) -> list[Mapping[str, Any]]:
    """Return the nodes from the root to a leaf. `parent`: the key that names the node before."""
    path, seen = list[Mapping[str, Any]](), set[object]()
    while isinstance(leaf, str) and leaf in nodes and leaf not in seen:
        seen.add(leaf)
        path.append(nodes[leaf])
        leaf = nodes[leaf].get(parent)
    return path[::-1]
