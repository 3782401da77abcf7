"""A federation in one process: Flower's grid, but messages go straight to the nodes' apps."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import featherback as fb
from featherback.federated.client import client_app
from featherback.federated.server import Server
from featherback.federated.settings import Federation
from tests.support.tiny_chat import write_messages, write_tiny_chat

Answer = Callable[[Message], Message | None]
TRAIN = {"train.rank": 4, "train.lr": 5e-3, "train.steps": 2, "train.compute": "fp32"}
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


class Node:
    """A node with its own folder, data and app."""

    def __init__(self, number: int, place: Path, config: Mapping[str, Any], run_config: Mapping[str, Any]) -> None:
        self.number = number
        state = RecordDict()
        self.context = Context(1, number, {"work": str(place / f"work-{number}"), **config}, state, dict(run_config))
        self.app = client_app()
        self.asked: list[Message] = []

    def answer(self, message: Message) -> Message | None:
        """Return the app's answer to a message. Tests replace this to misbehave."""
        self.asked.append(message)
        return self.app(message, self.context)


class InProcess(Grid):
    """A grid whose nodes answer at once."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.ids, self.answers = count(), dict[str, Message]()
        self.nodes = {node.number: node for node in nodes}

    def set_run(self, run: Any) -> None:
        raise AssertionError

    @property
    def run(self) -> Any:
        raise AssertionError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise AssertionError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages, names = list(messages), []
        for each in messages:
            names.append(f"{next(self.ids)}")
            each.metadata.__dict__["_message_id"] = names[-1]
        for name, each in zip(names, messages, strict=True):
            answer = self.nodes[each.metadata.dst_node_id].answer(_copied(each))
            if answer is not None:
                self.answers[name] = _copied(answer)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.answers.pop(name) for name in list(message_ids) if name in self.answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def _copied(message: Message) -> Message:
    """Return the message as it arrives: its content goes through the bytes that Flower sends."""
    if message.has_error():
        return message
    content = message.content
    children = {each.object_id: each for each in _descendants(content)}
    copy = RecordDict.inflate(content.deflate(), {key: _reborn(each, children) for key, each in _children(content)})
    return Message(copy, metadata=message.metadata)


def _children(found: Any) -> list[tuple[str, Any]]:
    return list((found.children or {}).items())


def _descendants(found: Any) -> list[Any]:
    return [found, *(each for _, child in _children(found) for each in _descendants(child))]


def _reborn(found: Any, children: Any) -> Any:
    return type(found).inflate(found.deflate(), {key: _reborn(each, children) for key, each in _children(found)})


def run_here(words: list[Any], log: Path) -> subprocess.CompletedProcess[str]:
    """Run `featherback train` or `evaluate` in this process, which saves starting half a dozen."""
    command = list(map(str, words))
    named = {
        name: [value for flag, value in pairwise(command) if flag == f"--{name}"]
        for name in ("data", "out", "from", "config", "adapter", "compute")
    }
    if command[0] == "train":
        options = json.loads(Path(*named["config"]).read_text())
        fb.train(command[1], named["data"], *named["out"], start=named["from"][0], threads=1, progress=False, **options)
        return subprocess.CompletedProcess(command, 0, "", "")
    found = fb.evaluate(command[1], named["data"], adapter=named["adapter"][0], compute=named["compute"][0], threads=1)
    return subprocess.CompletedProcess(command, 0, json.dumps({"loss": found.loss, "tokens": found.tokens}), "")


class Place:
    """A folder with a tiny model and data for nodes."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self.model = write_tiny_chat(folder / "tiny.gguf")
        self.data = [write_messages(folder / f"data-{number}.jsonl", 6 + 4 * number) for number in range(nodes)]
        self.eval_data = write_messages(folder / "held-out.jsonl", 8)

    def run_config(self, **options: Any) -> dict[str, Any]:
        return {"model": str(self.model), "out": str(self.folder / "out"), "rounds": 2, **TRAIN, **options}

    def nodes(self, run_config: Mapping[str, Any], **config: Any) -> list[Node]:
        own = {"model": str(self.model), "threads": 1, "eval-data": str(self.eval_data), **config}
        return [
            Node(number + 11, self.folder, {**own, "data": str(data)}, run_config)
            for number, data in enumerate(self.data)
        ]

    def run(self, **options: Any) -> tuple[Server, InProcess]:
        """Run a federation to its end."""
        config = self.run_config(**options)
        grid = InProcess(self.nodes(config))
        server = Server(Federation.of(config))
        server.run(grid)
        return server, grid

    def forget(self) -> None:
        """Delete what the server and the nodes have made."""
        for path in (self.folder / "out", *self.folder.glob("work-*")):
            shutil.rmtree(path, ignore_errors=True)


def failing(code: int, reason: str) -> Answer:
    """An answer that is Flower's error."""
    return lambda message: Message(Error(code, reason), reply_to=message)
