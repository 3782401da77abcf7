"""Conversations with a trained model and its original, in a process that ends when the memory is needed elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from featherback.core.system import processes
from featherback.infer import TEMPERATURE
from featherback.runs.outcome import chat_command
from featherback.runs.run_directory import RunDirectory
from featherback.runs.worker_process import worker_environment
from featherback.web.refusal import RefusedError
from featherback.web.studio.commands import Command, environment, path_word, python
from featherback.web.studio.talker import ORIGINAL, TRAINED

_LONGEST_LINE = 4_000_000
_MOST_MESSAGES, _MOST_TEXT = 1000, 100_000
_ENDED = b'{"error": "The process that answers has ended. Ask again, or close other programs if memory is short."}\n'
_ROLES = ("system", "user", "assistant")
_PATIENCE = 5  # seconds in which the process must end by itself


class Talks:
    """The process that answers for one run at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._about: tuple[Path, int] | None = None  # the run that the process answers for, and its adapter's stamp
        self._answering = asyncio.Lock()

    async def answers(self, run: RunDirectory, asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield the lines of `talker` for these conversations, until both answers have ended."""
        if self._answering.locked():
            raise RefusedError("Another answer is being written. Stop it first.", 409)
        async with self._answering:
            process = await self._opened(run)
            assert process.stdin is not None
            assert process.stdout is not None
            left, ended = len(asked["ask"]), False
            try:
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                await process.stdin.drain()
                while left:
                    line = await process.stdout.readline()
                    ended = not line
                    found = json.loads(line or _ENDED)
                    if "error" in found and "side" not in found:
                        left = 0
                    elif "end" in found or "error" in found:
                        left -= 1
                    yield line or _ENDED
            finally:
                if left or ended or process.returncode is not None:  # the page has gone, or the process has ended
                    await self.close()

    async def stop(self) -> None:
        """End the answers; what they say so far stays."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(b'{"stop": true}\n')

    async def close(self) -> None:
        """End the process, and free its memory."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _PATIENCE)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()

    async def _opened(self, run: RunDirectory) -> asyncio.subprocess.Process:
        """Return the process that answers for a run; another one is closed. Raises RefusedError if it cannot begin."""
        about = run.path, _stamp(run)
        if self._process is not None and self._process.returncode is None and about == self._about:
            return self._process
        await self.close()
        process = await asyncio.create_subprocess_exec(
            *python("from featherback.web.studio.talker import main; sys.exit(main(sys.argv[1:]))"),
            str(run.path),
            cwd=self._folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment(**worker_environment()),
            **processes.APART,
            limit=_LONGEST_LINE,
        )
        assert process.stdout is not None
        self._process, self._about = process, about
        line = await process.stdout.readline()
        found = json.loads(line or _ENDED)
        if "error" in found:
            await self.close()
            raise RefusedError(found["error"], 422)
        return process


def _stamp(run: RunDirectory) -> int:
    """Return a number that changes with the run's adapter. Raises RefusedError if it has none."""
    config = run.config
    files = [path for path in run.path.iterdir() if path.name.startswith("adapter_model")]
    if config.train != "lora" or config.outputs or not files:
        raise RefusedError(f"{run.path.name} has no adapter to talk to yet.", 409)
    return max(path.stat().st_mtime_ns for path in files)


def chat_shown(run: RunDirectory, name: str) -> str:
    """Return the command that talks with a run in a terminal, within the run's budget."""
    command = Command(tuple(chat_command(run.record, path_word(name))[1:]))
    budget = run.config.budget
    return (command if budget is None else command.with_words("--memory", f"{budget // 10**6}MB")).shown


def asked_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Check a request for answers. Raises RefusedError, naming what is wrong."""
    asked, temperature, seed = body.get("ask"), body.get("temperature", TEMPERATURE), body.get("seed", 0)
    if not isinstance(asked, dict) or not asked or not asked.keys() <= {ORIGINAL, TRAINED}:
        raise RefusedError(f"`ask` must be an object of the conversations {ORIGINAL} and {TRAINED}.", param="ask")
    for messages in asked.values():
        if (
            not isinstance(messages, list)
            or not 0 < len(messages) <= _MOST_MESSAGES
            or not all(map(_is_message, messages))
        ):
            raise RefusedError("A conversation must be a list of messages with a role and a content.", param="ask")
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature <= 10:
        raise RefusedError(f"`temperature` is {temperature!r}; it must be from 0 to 10.", param="temperature")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise RefusedError(f"`seed` is {seed!r}; it must be a whole number from 0.", param="seed")
    return {"ask": asked, "temperature": temperature, "seed": seed}


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and message["role"] in _ROLES
        and isinstance(message["content"], str)
        and len(message["content"]) <= _MOST_TEXT
    )
