"""Chat templates rendered in a process of their own, within bounds; see `template_process`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from featherback.errors import FeatherbackError

MOST_CHARACTERS = 1 << 20
"""Of a template; the longest known one has 30,000."""

Conversation = tuple[Sequence[Mapping[str, str]], bool]
"""Messages, and whether the text is to end where the assistant answers."""


class RenderingError(FeatherbackError):
    """The template will not render a conversation, or cannot."""


class Renderer:
    """The process. It starts with the first rendering, and ends with this object or its process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._complaints: IO[str] | None = None
        self._loaded: tuple[str, Mapping[str, str]] | None = None

    def render(
        self, template: str, names: Mapping[str, str], source: str, conversations: Sequence[Conversation]
    ) -> list[str | RenderingError]:
        """Each conversation as text, or why there is none.

        `names`: what the template may refer to besides the messages. `source`: where it comes from, for errors.
        FeatherbackError if the template is wrong in itself, or takes more time or memory than any needs.
        """
        if self._loaded != (template, names):
            if len(template) > MOST_CHARACTERS:
                raise FeatherbackError(
                    f"{source} has {len(template)} characters; the most that is read is {MOST_CHARACTERS}."
                )
            reply = self._ask(source, {"template": template, "names": names})
            if "error" in reply:
                raise _failure(source, *reply["error"])
            self._loaded = template, dict(names)
        answers = self._ask(source, {"conversations": conversations})["answers"]
        return [answer if isinstance(answer, str) else _failure(source, *answer) for answer in answers]

    def _ask(self, source: str, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it ended; so does its output
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        reply = process.stdout.readline()
        if not reply:
            raise self._ended(source)
        return dict(json.loads(reply))

    def _start(self) -> subprocess.Popen[str]:
        complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as the process
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "featherback.data.template_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="ascii",
        )
        self._complaints = complaints
        weakref.finalize(self, _stop, process, complaints)
        return process

    def _ended(self, source: str) -> FeatherbackError:
        """Why the process is no more. The next rendering starts another."""
        assert self._process is not None
        assert self._complaints is not None
        status = self._process.wait()
        self._complaints.seek(0)
        complaint = self._complaints.read().strip()
        _stop(self._process, self._complaints)
        self._process = self._complaints = self._loaded = None
        if status == -signal.SIGPROF:
            return _failure(source, "time", "")
        if "MemoryError" in complaint:
            return _failure(source, "memory", "")
        reason = complaint.splitlines()[-1] if complaint else f"its process ended with status {status}"
        return _failure(source, "failed", reason)


def _stop(process: subprocess.Popen[str], complaints: IO[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, complaints):
        if stream is not None:
            with suppress(OSError):  # what it was still to be sent
                stream.close()


def _failure(source: str, kind: str, detail: str) -> RenderingError:
    said = " ".join(detail.split())
    return RenderingError(
        {
            "syntax": f"{source} has an error {said}.",
            "refused": f"{source} refuses this conversation: {said}",
            "failed": f"{source} fails on this conversation: {said}",
            "memory": f"{source} needs more memory than any conversation takes; it is not used.",
            "time": f"{source} takes more time than any conversation needs; it is not used.",
            "output": f"{source} writes more text than any conversation holds; it is not used.",
        }[kind]
    )
