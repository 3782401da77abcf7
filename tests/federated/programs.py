"""A federation of real programs of Flower on this machine, with TLS, at free ports: what `federate init` writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from featherback.federated import scripts, template
from tests.federated.in_process import Place
from tests.federated.walk_page import end_all, free_port, wait_for_server


class Program(NamedTuple):
    """A running program. `words`: its command line."""

    number: int
    words: str

    def kill(self) -> None:
        """Kill the program and everything that it has started."""
        for each in [*children(self.number), self.number]:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def programs(*texts: str) -> list[Program]:
    """The running programs whose command lines hold all these texts."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(text in words for text in texts):
                found.append(Program(int(entry.name), words))
    return found


def children(number: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for entry in Path(f"/proc/{number}/task/{number}/children").read_text().split():
            found += [*children(int(entry)), int(entry)]
    return found


class Real:
    """The programs of a federation in the folder of an app."""

    def __init__(self, app: Path, place: Place, gate: str, server: str) -> None:
        self.app, self.place, self.gate, self.server = app, place, gate, server
        self.started = dict[str, subprocess.Popen[bytes]]()
        self.ports = [free_port() for _ in place.data]
        self.known = {**environment(), "MEMORY": "200MB", "FEATHERBACK_THREADS": "1"}

    def start(self, name: str, *words: str, **known: str) -> subprocess.Popen[bytes]:
        with open(self.app / f"{name}.log", "ab") as log:
            found = subprocess.Popen(
                words, cwd=self.app, env={**self.known, **known}, stdout=log, stderr=log, start_new_session=True
            )
        self.started[name] = found
        return found

    def start_server(self) -> None:
        self.start("server", "./server.sh")
        wait_for_server(int(self.gate))

    def start_nodes(self) -> None:
        for number, (port, data) in enumerate(zip(self.ports, self.place.data, strict=True), 1):
            own = {"PORT": port, "DATA": str(data), "EVAL_DATA": str(self.place.eval_data)}
            self.start(f"node-{port}", f"./node-{number}/node.sh", "localhost", **own)

    def close(self) -> None:
        for each in self.started.values():
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
        end_all(self.app)


def write_app(place: Place, rounds: int, train: Mapping[str, Any]) -> tuple[Path, str, str]:
    """Write the app, with these options, its certificates and two nodes. Return it and both ports of the server."""
    app = place.folder / "app"
    template.write(app, str(place.model), 2, "200MB", [], None, "localhost")
    file = app / "app" / "pyproject.toml"
    text = file.read_text().replace("rounds = 5", f"rounds = {rounds}").replace("timeout = 3600.0", "timeout = 900.0")
    own = "".join(f"{name.removeprefix('train.')} = {json.dumps(value)}\n" for name, value in train.items())
    file.write_text(text.replace('schedule = "constant"\n', f'schedule = "constant"\n{own}'))
    gate, server = free_port(), free_port()  # another server may run on this machine
    ports = {str(scripts.PORT): gate, str(scripts.CONTROL_PORT): server}
    for name in ("server.sh", "node.sh", "flower/config.toml"):
        script = app / name
        script.write_text(re.sub("|".join(ports), lambda found: ports[found[0]], script.read_text()))
    for words in (["./certificates.sh", "localhost"], ["./nodes.sh", "2"]):
        subprocess.run(words, cwd=app, check=True, capture_output=True, env=environment())
    return app, gate, server


def environment() -> dict[str, str]:
    """Return the environment in which the scripts find the programs of this Python."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
