"""Starts, stops and resumes runs, each a `featherback train` of its own that outlives the page and its server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from featherback.core import private
from featherback.core.files import read_json, write_json
from featherback.core.system import processes
from featherback.errors import FeatherbackError
from featherback.runs.checkpoint import latest_step
from featherback.runs.run_directory import RUN_FILE
from featherback.web.refusal import RefusedError
from featherback.web.studio.commands import Command, environment, error_in, path_word
from featherback.web.studio.workspace import LOGS, Workspace

_TAIL = 20_000  # bytes of a log that are shown
_MOST_START = 10_000


class Starts:
    """The commands that train, by the name of their run. What is needed to find them again is in files."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._children: dict[int, subprocess.Popen[bytes]] = {}  # of this server, which must wait for them

    def start(self, name: str, command: Command) -> None:
        """Start a command that trains the run `name`. Raises RefusedError if another run is being trained."""
        if (other := self.running()) is not None:
            raise RefusedError(f"The run {other} is being trained. Stop it first, or wait for its end.", 409)
        for each in (name, *filter(self.failure, self.names())):
            self._forget(each)
        log = self._path(name, "log")
        with private.create_anew(log) as output:
            process = subprocess.Popen(
                command.arguments,
                cwd=self._workspace.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                **processes.APART,
            )
        self._children[process.pid] = process
        about = {"name": name, "pid": process.pid, "began": _began(process.pid), "command": command.shown}
        write_json(self._path(name, "json"), about)

    def stop(self, name: str) -> None:
        """Ask a run to save and stop, as Ctrl-C does. Raises RefusedError if its process was not started from here.

        Only the first request sends a signal: a second signal would end the run without saving its last step.
        """
        about = self._about(name)
        if about is None or not self._is_alive(about):
            raise RefusedError(f"No process started from this page trains {name}.", 409)
        if not about.get("is_stopping"):
            processes.interrupt(about["pid"])
            write_json(self._path(name, "json"), {**about, "is_stopping": True})

    def running(self) -> str | None:
        """Return the run that is being trained, if there is one."""
        starting = (name for name in self.names() if self.is_alive(name))
        locked = (name for name in self._workspace.runs() if _is_locked(self._workspace, name))
        return next(starting, None) or next(locked, None)

    def names(self) -> list[str]:
        """Return the names of runs that were started from the page, the newest first, without those deleted since."""
        files = sorted((self._workspace.own / LOGS).glob("*.json"), key=lambda path: -path.stat().st_mtime)
        return [
            path.stem
            for path in files
            if self._has_run(path.stem) or self.is_alive(path.stem) or self.failure(path.stem)
        ]

    def is_alive(self, name: str) -> bool:
        """Whether the process that was started for a run is still there."""
        about = self._about(name)
        return about is not None and self._is_alive(about)

    def is_stopping(self, name: str) -> bool:
        """Whether the process of a run was asked to save and stop, and is still there."""
        about = self._about(name)
        return about is not None and about.get("is_stopping") is True and self._is_alive(about)

    def output(self, name: str) -> str:
        """Return the end of what the command of a run has printed; empty if it was not started from here."""
        try:
            with self._path(name, "log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def failure(self, name: str) -> str | None:
        """Return the error with which the command of a run ended before there was a run; None if it did not."""
        if self._has_run(name) or self.is_alive(name):
            return None
        return error_in(self.output(name))

    def _has_run(self, name: str) -> bool:
        return (self._workspace.folder / name / RUN_FILE).exists()

    def _forget(self, name: str) -> None:
        """Delete what is recorded about a start."""
        for end in ("json", "log"):
            self._path(name, end).unlink(missing_ok=True)

    def _path(self, name: str, end: str) -> Path:
        return self._workspace.own / LOGS / f"{name.replace('/', '~')}.{end}"

    def _about(self, name: str) -> dict[str, Any] | None:
        try:
            about = read_json(self._path(name, "json"), _MOST_START)
        except (OSError, FeatherbackError):
            return None
        return about if isinstance(about, dict) and isinstance(about.get("pid"), int) else None

    def _is_alive(self, about: dict[str, Any]) -> bool:
        child = self._children.get(about["pid"])
        if child is not None:
            return child.poll() is None
        return about.get("began") is not None and _began(about["pid"]) == about["began"]


def resume_command(workspace: Workspace, name: str) -> Command:
    """Return the command that resumes a run. Raises RefusedError if it has nothing to resume from."""
    run = workspace.run(name)
    if not latest_step(run.path) and run.record.status == "finished":
        raise RefusedError(f"{name} has finished. To train its result further, start a new run.", 409)
    return Command.of("train", "--out", path_word(name), "--resume")


def _is_locked(workspace: Workspace, name: str) -> bool:
    try:
        return workspace.run(name).is_locked
    except FeatherbackError:
        return False


def _began(pid: int) -> str | None:
    """Return when a process began, so that another one with its number is not taken for it; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return None
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
