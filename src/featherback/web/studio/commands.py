"""The commands that the page starts and shows."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from featherback.core.system import processes
from featherback.core.terminal import quoted
from featherback.web.refusal import RefusedError

_ERROR = re.compile(r"^error: (.*)", re.MULTILINE)
_LONGEST = 64_000_000  # bytes of output that are read
_UNUSABLE = 422  # HTTP's status for a request that is well-formed but cannot be followed


@dataclass(frozen=True)
class Command:
    """A `featherback` command: its words, without the program's name."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, *words: object) -> Command:
        return cls(tuple(map(str, words)))

    @property
    def shown(self) -> str:
        """The command as a person types it."""
        return quoted("featherback", *self.words)

    @property
    def arguments(self) -> list[str]:
        """The command as the system starts it."""
        return [*python("from featherback.cli import main; main()"), *self.words]

    def with_words(self, *words: object) -> Command:
        """Return the command with further words."""
        return Command((*self.words, *map(str, words)))


def python(code: str) -> list[str]:
    """Return the words that run Python code with the modules of this Python.

    The working directory, which `python -m` searches first, may be a stranger's with a json.py in it.
    """
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); {code}"]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of commands: the programs that they start do not search the working directory either."""
    return {**os.environ, **more, "PYTHONSAFEPATH": "1"}


def path_word(path: str) -> str:
    """Return a path as a word that cannot be read as an option."""
    return f"./{path}" if path.startswith("-") else path


def error_in(output: str) -> str | None:
    """Return the last error in the output of a command, without "error: "; None if there is none."""
    found = _ERROR.findall(output)
    return found[-1] if found else None


class Runner:
    """Runs commands to their end, in one folder. A new command of a kind ends the one before it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, asyncio.subprocess.Process] = {}

    async def output_of(self, kind: str, command: Command) -> str:
        """Return what a command prints on standard output. Raises RefusedError, with its message, if it fails."""
        await self.stop(kind)
        process = await asyncio.create_subprocess_exec(
            *command.arguments,
            cwd=self._folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            **processes.APART,
            limit=_LONGEST,
        )
        self._running[kind] = process
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            processes.kill_all(process.pid)
            raise
        finally:
            is_replaced = self._running.get(kind) is not process
            if not is_replaced:
                del self._running[kind]
        if process.returncode == 0:
            return out.decode("utf-8", "replace")
        if is_replaced:
            raise RefusedError("A newer request has replaced this one.", 409, code="replaced")
        said = err.decode("utf-8", "replace")
        raise RefusedError(error_in(said) or f"The command failed: {said[-500:]}", _UNUSABLE, code="command_failed")

    async def stop(self, kind: str) -> None:
        """End the command of this kind, if one runs."""
        if (process := self._running.pop(kind, None)) is not None and process.returncode is None:
            processes.kill_all(process.pid)
            await process.wait()
