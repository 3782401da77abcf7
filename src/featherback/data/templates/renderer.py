"""Render chat templates in a separate, limited process (see `process.py`).

Requests can be sent ahead. The process renders them while the caller does other work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any

from featherback.core.system import pipes, signals
from featherback.data.templates import SECONDS
from featherback.errors import FeatherbackError

MOST_CHARACTERS = 1 << 20
"""Maximum length of a template in characters. The longest known one has 30,000."""

Conversation = tuple[Sequence[Mapping[str, Any]], bool]
"""Messages, and whether to add the generation prompt."""

Tools = Sequence[Mapping[str, Any]]
"""The value of `tools` in a template."""

RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))
"""Variables of a template that no request may set by name."""

Answers = list["str | RenderingError"]
"""For each conversation, its text or the error."""

Begins = list["int | None"]
"""For each answer, the length of the prompt that asks for it; None if the conversation does not begin with it."""

_PATIENCE = 3  # processes that one template may crash before it is given up
LOADING = 0  # number of the request that reloads a template; other requests count from 1


class RenderingError(FeatherbackError):
    """The template rejects a conversation or fails on it."""


@dataclass(frozen=True)
class _Request:
    number: int
    line: bytes
    source: str


class Renderer:
    """Owns the rendering process, which starts with the first request and ends with this object or its owner.

    Answers arrive in the order of the requests. If a request crashes the process, `take` raises its error, and the
    requests after it are sent to a new process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: pipes.Talk | None = None
        self._complaints: IO[str] | None = None
        self._loaded: tuple[str, Mapping[str, str]] | None = None
        self._loading = b""  # the request that loads the template
        self._count = 0
        self._unanswered: deque[_Request] = deque()  # waiting for an answer
        self._replies: dict[int, dict[str, Any] | FeatherbackError] = {}  # answers that were not taken yet
        self._unread = bytearray()
        self._ends = 0  # processes that the loaded template has crashed
        self._given_up: tuple[tuple[str, Mapping[str, str]], FeatherbackError] | None = None

    def start(self) -> None:
        """Start the process, without a model's template."""
        self.render("", {}, "The chat template", [])

    def render(
        self,
        template: str,
        names: Mapping[str, str],
        source: str,
        conversations: Sequence[Conversation],
        tools: Tools | None = None,
    ) -> Answers:
        """Render conversations. The result has a text or an error for each.

        `names`: variables of the template besides the messages. `source`: name of the template in errors. `tools`: the
        tools of all conversations. Raises FeatherbackError if the template itself is faulty or exceeds the limits of
        time and memory.
        """
        return self.take(self.ask(template, names, source, conversations, tools), source)

    def ask(
        self,
        template: str,
        names: Mapping[str, str],
        source: str,
        conversations: Sequence[Conversation],
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
        begins: Sequence[int] = (),
        moment: datetime | None = None,
    ) -> int:
        """Start to render. Returns a number with which `take` can be called once to get the answers.

        `variables`: more variables of the template. `begins`: indices of answers in the first conversation, whose
        prompts are compared with it. `moment`: the date and time that the template may write; None for now.
        """
        if self._given_up is not None and self._given_up[0] == (template, names):
            raise self._given_up[1]
        if self._loaded != (template, names):
            if len(template) > MOST_CHARACTERS:
                raise FeatherbackError(
                    f"{source} has {len(template)} characters; at most {MOST_CHARACTERS} are allowed."
                )
            self._loading = _line({"template": template, "names": names})
            reply = self._reply(self._send(self._loading, source))
            if "error" in reply:
                raise _failure(source, *reply["error"])
            self._loaded, self._ends = (template, dict(names)), 0
        request = {
            "conversations": conversations,
            "tools": tools,
            "variables": variables or {},
            "begins": begins,
            "moment": (moment or datetime.now()).isoformat(),
        }
        try:
            line = _line(request)
        except RecursionError:
            raise _failure(source, "failed", "it is nested too deeply") from None
        return self._send(line, source)

    def take(self, number: int, source: str) -> Answers:
        """Wait for the answers. Raises the same errors as `render`."""
        return self.take_with_begins(number, source)[0]

    def take_with_begins(self, number: int, source: str) -> tuple[Answers, Begins]:
        """Wait for the answers, and for what was asked for with `begins`. Raises the same errors as `render`."""
        reply = self._reply(number)
        answers = [answer if isinstance(answer, str) else _failure(source, *answer) for answer in reply["answers"]]
        return answers, reply["begins"]

    def _send(self, line: bytes, source: str) -> int:
        self._count += 1
        self._unanswered.append(_Request(self._count, line, source))
        (self._talk or self._start()).send(line)
        return self._count

    def _reply(self, number: int) -> dict[str, Any]:
        while number not in self._replies:
            self._read((self._talk or self._start()).receive())
        reply = self._replies.pop(number)
        if isinstance(reply, FeatherbackError):
            raise reply
        return reply

    def _read(self, piece: bytes) -> None:
        if not piece:
            self._end()
            return
        *lines, rest = piece.split(b"\n")
        for line in lines:
            self._unread += line
            number, source = (request := self._unanswered.popleft()).number, request.source
            del request  # frees its line, which may be long
            reply = json.loads(self._unread)
            self._unread.clear()
            if number != LOADING:
                self._replies[number] = reply
            elif "error" in reply:
                self._fail(_failure(source, *reply["error"]))
                self._drop()
                return
        self._unread += rest

    def _start(self) -> pipes.Talk:
        complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as the process
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "featherback.data.templates.process"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
        self._talk, self._complaints = pipes.Talk(process), complaints
        weakref.finalize(self, _stop, process, complaints)
        return self._talk

    def _end(self) -> None:
        """Handle the end of the process: fail the current request, and send the others to a new process."""
        assert self._process is not None
        assert self._complaints is not None
        failed = self._unanswered.popleft()
        reason = self._ended(self._process, self._complaints, failed.source)
        self._ends += 1
        if self._ends == _PATIENCE and self._loaded is not None:
            self._given_up = self._loaded, reason
        if failed.number != LOADING:
            self._replies[failed.number] = reason
        if failed.number == LOADING or self._ends == _PATIENCE:
            self._fail(reason)
        self._drop()
        if not self._unanswered:
            self._loaded = None
            return
        self._unanswered.appendleft(_Request(LOADING, self._loading, failed.source))
        talk = self._start()
        for request in self._unanswered:
            talk.send(request.line)

    def _fail(self, reason: FeatherbackError) -> None:
        """Fail all waiting requests, because a new process could not load the template either."""
        self._replies |= {request.number: reason for request in self._unanswered}
        self._unanswered.clear()
        self._loaded = None

    def _drop(self) -> None:
        assert self._process is not None
        assert self._complaints is not None
        _stop(self._process, self._complaints)
        self._process = self._talk = self._complaints = None
        self._unread.clear()

    def _ended(self, process: subprocess.Popen[bytes], complaints: IO[str], source: str) -> FeatherbackError:
        """Return the error for the end of the process."""
        status = process.wait()
        complaints.seek(0)
        complaint = complaints.read().strip()
        if status == signals.TOO_LONG:
            return _failure(source, "time", "")
        if "MemoryError" in complaint:
            return _failure(source, "memory", "")
        reason = complaint.splitlines()[-1] if complaint else f"its process ended with status {status}"
        return _failure(source, "failed", reason)


def _line(request: Mapping[str, Any]) -> bytes:
    return b"%b\n" % json.dumps(request).encode("ascii")


def _stop(process: subprocess.Popen[bytes], complaints: IO[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, complaints):
        if stream is not None:
            with suppress(OSError):  # it has unsent data
                stream.close()


def _failure(source: str, kind: str, detail: str) -> RenderingError:
    said = " ".join(detail.split())
    return RenderingError(
        {
            "syntax": f"{source} has an error {said}.",
            "refused": f"{source} rejects this conversation: {said}",
            "failed": f"{source} fails on this conversation: {said}",
            "memory": f"{source} needs too much memory for a conversation and was stopped.",
            "time": f"{source} needs more than {SECONDS:g} s of CPU time for a conversation and was stopped.",
            "output": f"{source} writes too much text for a conversation and was stopped.",
        }[kind]
    )
