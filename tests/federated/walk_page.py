"""Follow docs/federated.md to the letter, in fresh virtual environments: `make test-flower` runs this.

The package is built as a wheel, which pip finds as if it were published. The page's two laptops are two folders on this
machine, and `first.local` is `localhost`. Everything else is what the page says: a simulation, then a server and nodes
with TLS.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks
from tests.support.tiny_chat import write_messages, write_tiny_chat

PAGE = ROOT / "docs" / "federated.md"
WHEELS = ROOT / "build" / "flower" / "wheels"
PORT = 9092
SECONDS = 1200
"""Longer than any command here takes on a busy machine."""


def wheel() -> None:
    """Build the package as a wheel."""
    shutil.rmtree(WHEELS, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", WHEELS, ROOT]
    subprocess.run(list(map(str, command)), check=True)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user without settings of Flower; pip finds our wheel."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "PYTHONPATH"))}
    return {**kept, "HOME": str(home), "PIP_FIND_LINKS": str(WHEELS), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port()}


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def furnish(folder: Path) -> None:
    """Write the files that the page's reader has."""
    folder.mkdir(parents=True)
    write_tiny_chat(folder / "model.gguf")
    write_messages(folder / "notes.jsonl", 12)
    write_messages(folder / "held-out.jsonl", 4)


def run(script: str, folder: Path, known: Mapping[str, str]) -> str:
    """Run a shell script and return what it says. Raises AssertionError, with that, if a command fails."""
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=known, capture_output=True, text=True, timeout=SECONDS, input=""
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, f"{script}\nended with status {done.returncode}:\n{said[-4000:]}"
    return said


@contextmanager
def started(name: str, script: str, folder: Path, known: Mapping[str, str]) -> Iterator[None]:
    """Run a shell script beside this process, until the context ends. Its output goes to the file `name`."""
    with open(folder / name, "wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=known, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def end_all(folder: Path) -> None:
    """End the programs of Flower that have their settings below `folder`: they detach from those who start them."""
    mark = f"FLWR_HOME={folder}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)


def wait_for_server(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.5)
    raise AssertionError(f"no server at port {port}")


def history(app: Path) -> list[dict[str, object]]:
    """Return what the newest round records."""
    newest = max((app / "result").glob("round-*"))
    found: list[dict[str, object]] = json.loads((newest / "round.json").read_text())["history"]
    return found


def simulation(page: list[Block], folder: Path) -> None:
    """Follow "Try it on one machine", with a learning rate at which the tiny model of this test learns steadily."""
    furnish(folder)
    script = "\n".join(block.content for block in page)
    assert "./simulate.sh" in script
    script = script.replace(
        "./simulate.sh", "sed -i 's/^schedule = /lr = 0.003\\n&/' app/pyproject.toml\n./simulate.sh"
    )
    try:
        said = run(script, folder, environment(folder / "home"))
    finally:
        end_all(folder)
    rounds = history(folder / "fed")
    assert [len(each["nodes"]) for each in rounds] == [2] * 5, rounds  # type: ignore[arg-type]
    assert rounds[-1]["eval_loss"] < rounds[0]["eval_loss"]  # type: ignore[operator]
    assert "reports its use" not in said
    print(f"the simulation is as the page says; held-out loss {rounds[-1]['eval_loss']:.4f}")


def deployment(page: list[Block], folder: Path) -> None:
    """Follow "Two laptops"."""
    install, server, node, start = (block.content.replace("first.local", "localhost") for block in page)
    furnish(folder)
    known = environment(folder / "home")
    run(install, folder, known)
    activate = f". {folder}/fed-env/bin/activate\n"
    *before, serve = server.strip().splitlines()
    assert serve == "./server.sh"
    run(activate + "\n".join(before), folder, known)
    shop, first, second = folder / "shop", folder / "shop" / "node-1", folder / "second" / "node-2"
    shutil.copytree(shop / "node-2", second)
    for number, place in enumerate((first, second)):  # "edit the first lines of node.sh"
        data = write_messages(place / "own.jsonl", 8 + number)
        run(f"sed -i 's|^DATA=.*|DATA={data}|; s|^MODEL=.*|MODEL={folder}/model.gguf|' node.sh", place, known)
    try:
        with started("server.log", activate + serve, shop, known):
            wait_for_server(PORT)
            with (
                started("node.log", activate + node.strip(), first, {**known, "PORT": free_port()}),
                started("node.log", activate + node.strip(), second, {**known, "PORT": free_port()}),
            ):
                run(activate + start, shop, known)
    finally:
        end_all(folder)
    rounds = history(shop)
    assert [len(each["nodes"]) for each in rounds] == [2] * 5, rounds  # type: ignore[arg-type]
    print("two machines are as the page says")


def main() -> None:
    found = [block for block in blocks(PAGE) if block.language == "sh"]
    first = PAGE.read_text().split("## Two laptops")[0].count("\n")
    wheel()
    with tempfile.TemporaryDirectory(prefix="flower-") as folder:
        simulation([block for block in found if block.line < first], Path(folder) / "one")
        deployment([block for block in found if block.line > first], Path(folder) / "two")


if __name__ == "__main__":
    main()
