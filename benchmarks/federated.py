"""Federations of real programs of Flower on this machine, against one machine that has all of the data.

    build/flower/env/bin/python -m benchmarks.federated              held-out loss and memory: four nodes, five rounds
    build/flower/env/bin/python -m benchmarks.federated --privacy    held-out loss with each protection and noise
    build/flower/env/bin/python -m benchmarks.federated --steps 20   steps of `gradients` with 1, 2 and 4 nodes
    build/flower/env/bin/python -m benchmarks.federated --scaling    time of rounds of `fedavg` with 1, 2 and 4 nodes
    build/flower/env/bin/python -m benchmarks.federated --server     memory of the server: the nodes do not train

`make test-flower` makes this environment. The data are made up (`benchmarks/tone.py`): 200 requests, divided so that
each topic is on one node, and 40 held-out requests on all topics, none of which is trained on. Rows are written to
benchmarks/federated.json. All nodes are on one machine: to see what more machines would bring, give it as many cores as
all nodes have threads, FEATHERBACK_THREADS each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

from benchmarks.results import Result
from benchmarks.tone import TOPICS, requests
from featherback.core.sizes import MB
from featherback.federated import scripts, template
from featherback.models.hub.locate import locate

FILE = Path(__file__).with_suffix(".json")
MEASURES = ("src/featherback/federated", "src/featherback/runs", "src/featherback/nn", "benchmarks/federated.py")
COUNT, HELD_OUT = 200, "held-out.jsonl"
MODEL = "smollm2-135m"
SYNTHETIC = '''\
"""A node that does not train: it returns the adapter, a little changed."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    (record,) = message.content.array_records.values()
    arrays = {name: Array(each.numpy() + np.float32(1e-3)) for name, each in record.items()}
    measures = MetricRecord({"tokens": 1000, "loss": 1.0})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": measures}), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"tokens": 0})}), reply_to=message)
'''
PROTECTIONS: dict[str, tuple[str, dict[str, float]]] = {
    "secure-aggregation": ("secure-aggregation", {}),
    **{
        f"{name}, {what} {value:g}": (name, {f"{name}.{what}": value, "largest-update": 1e9})
        for name, what, values in (
            ("central-dp", "noise-multiplier", (3e-4, 3e-3)),
            ("local-dp", "epsilon", (5e4, 5e3)),
        )
        for value in values
    },
}
"""Name of a row -> the protection and its options."""
PROGRAMS = (
    "federated.gate",
    "flower-superlink",
    "flwr-serverapp",
    "flower-supernode",
    "flower-superexec",
    "flwr-clientapp",
)


class Programs:
    """The server and the nodes of an app, and the most memory that each of Flower's programs has held."""

    def __init__(self, app: Path, nodes: int, memory: str) -> None:
        self.app, self.peaks = app, dict.fromkeys(PROGRAMS, 0.0)
        self._started: list[subprocess.Popen[bytes]] = []
        self._over = Event()
        self._watch = Thread(target=self._measure)
        self.known = {**environment(), "MEMORY": memory}
        self._start("./server.sh")
        _wait_for(scripts.PORT)
        for node in range(nodes):
            own = {"DATA": str(app / "data" / f"node-{node}.jsonl"), "PORT": str(_free_port())}
            self._start(
                f"./node-{node + 1}/node.sh",
                "localhost",
                **own,
                **({"EVAL_DATA": str(app / HELD_OUT)} if node == 0 else {}),
            )
        self._watch.start()

    def run(self, out: str, **options: Any) -> dict[str, Any]:
        """Run the app with these options, and return what its newest round records."""
        given = {"out": str(self.app / out), **options}
        written = " ".join(f"{name}={json.dumps(value)}" for name, value in given.items())
        script = '. ./flower.env; exec flwr run app deployment --stream --run-config "$0"'
        subprocess.run(["sh", "-c", script, written], cwd=self.app, env=self.known, check=True, stdout=sys.stderr)
        newest = max((self.app / out).glob("round-*"))
        found: dict[str, Any] = json.loads((newest / "round.json").read_text())
        return found

    def rounded(self) -> dict[str, float]:
        """Return the peaks, in MB."""
        return {name: round(peak, 1) for name, peak in self.peaks.items()}

    def end(self) -> None:
        self._over.set()
        if self._watch.is_alive():
            self._watch.join()
        mark = f"FLWR_HOME={self.app}".encode()
        for each in self._started:
            os.killpg(each.pid, signal.SIGKILL)
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    def _start(self, *words: str, **known: str) -> None:
        with open(self.app / "programs.log", "ab") as log:
            self._started.append(
                subprocess.Popen(
                    words, cwd=self.app, env={**self.known, **known}, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _measure(self) -> None:
        """Read the resident peaks of Flower's programs twice a second."""
        mark = f"FLWR_HOME={self.app}".encode()
        while not self._over.wait(0.5):
            for entry in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    program = (entry / "cmdline").read_bytes().split(b"\0")[1:4]  # after the name of Python
                    name = next((name for name in PROGRAMS if name.encode() in b"".join(program)), None)
                    if name is None or mark not in (entry / "environ").read_bytes():
                        continue
                    peak = re.search(r"VmHWM:\s+(\d+) kB", (entry / "status").read_text())
                    self.peaks[name] = max(self.peaks[name], int(peak[1]) * 1024 / MB if peak else 0.0)


def environment() -> dict[str, str]:
    """Return the environment in which the scripts of a federation find the programs of this Python."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def parts_of(nodes: int) -> list[bytes]:
    """Return the data of each node."""
    share = len(TOPICS) // nodes
    return [requests(range(node * share, (node + 1) * share), COUNT // nodes, node) for node in range(nodes)]


def held_out(nodes: int) -> bytes:
    """Return 40 requests on all topics that no node has."""
    trained = set(b"".join(parts_of(nodes)).splitlines(keepends=True))
    unseen = [line for line in requests(range(len(TOPICS)), 80, 99).splitlines(keepends=True) if line not in trained]
    return b"".join(unseen[:40])


@contextmanager
def federation(
    nodes: int, memory: str, options: dict[str, Any], client: str | None = None, model: str = MODEL
) -> Iterator[Programs]:
    """Start a server and nodes, each with the requests on its own topics. `client`: the nodes' program, if not ours."""
    parts = parts_of(nodes)
    with tempfile.TemporaryDirectory(prefix="federated-") as folder:
        app = Path(folder) / "app"
        template.write(app, str(locate(model)), nodes, memory, parts, None, "localhost")
        (app / HELD_OUT).write_bytes(held_out(nodes))
        file = app / "app" / "pyproject.toml"
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        text = re.sub(r"^min-nodes = \d+", f"min-nodes = {nodes}", file.read_text(), flags=re.MULTILINE)
        file.write_text(text.replace("config.train]\n", f"config.train]\n{lines}"))
        if client is not None:
            (app / "app" / "federation" / "client_app.py").write_text(client)
        for words in (["./certificates.sh", "localhost"], ["./nodes.sh", str(nodes)]):
            subprocess.run(words, cwd=app, check=True, capture_output=True, env=environment())
        programs = Programs(app, nodes, memory)
        try:
            yield programs
        finally:
            programs.end()


def union(nodes: int, epochs: float) -> float:
    """Return the held-out loss of one run with all of the data."""
    with tempfile.TemporaryDirectory(prefix="union-") as folder:
        Path(folder, "data.jsonl").write_bytes(b"".join(parts_of(nodes)))
        Path(folder, HELD_OUT).write_bytes(held_out(nodes))
        data = ["--data", f"{folder}/data.jsonl", "--eval-data", f"{folder}/{HELD_OUT}", "--out", f"{folder}/run"]
        command = [sys.executable, "-m", "featherback", "train", str(locate(MODEL)), *data]
        options = ["--epochs", str(epochs), "--samples", "0"]
        subprocess.run([*command, *options], check=True, stdout=sys.stderr)
        summary = json.loads(Path(folder, "run", "run.json").read_text())["summary"]
        return float(summary["best_eval_loss"])


def learned(programs: Programs, out: str, **options: Any) -> dict[str, Any]:
    """Return the held-out loss of a federation, and the memory of its training processes."""
    history = programs.run(out, **options)["history"]
    nodes = [node for each in history for node in each["nodes"].values()]
    return {
        "eval_loss": [round(each["eval_loss"], 4) for each in history],
        "training_peak_rss_mb": max(node.get("peak_rss_mb", 0.0) for node in nodes),
        "seconds": round(sum(each["seconds"] for each in history)),
    }


def main() -> None:
    """Measure, and write the rows to benchmarks/federated.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=1.0, help="Passes over each node's data in a round.")
    parser.add_argument("--lr", type=float, help="Learning rate of the nodes. Default: the usual one.")
    parser.add_argument("--memory", default="60MB", help="Memory budget of each node.")
    parser.add_argument("--privacy", action="store_true", help="Measure each protection instead.")
    parser.add_argument("--steps", type=int, default=0, help="Measure this many steps of `gradients` instead.")
    parser.add_argument("--accumulate", type=int, default=1, help="Batches of each node in a step of `gradients`.")
    parser.add_argument("--scaling", action="store_true", help="Measure the time of rounds of `fedavg` instead.")
    parser.add_argument("--server", action="store_true", help="Measure the memory of the server instead.")
    parser.add_argument("--model", default=MODEL, help="Model of --steps and --scaling, which measure time alone.")
    given = parser.parse_args()
    result = Result.begin("federated", "build/flower/env/bin/python -m benchmarks.federated", MEASURES)
    if FILE.exists() and (earlier := Result.read(FILE)).continues(result):
        result = earlier
    if given.server:
        rows = memory_of_server(given.nodes, given.rounds)
    elif given.steps:
        rows = steps_of_gradients(given.steps, given.memory, given.accumulate, given.model)
    elif given.scaling:
        rows = times_of_rounds(given.rounds, given.epochs, given.memory, given.model)
    elif given.privacy:
        rows = losses_with_protections(given.nodes, given.rounds, given.epochs, given.memory)
    else:
        rows = held_out_losses(given.nodes, given.rounds, given.epochs, given.lr, given.memory)
    for name, row in rows:
        print(name, json.dumps(row), flush=True)
        result.rows[name] = row
        result.write(FILE)


def steps_of_gradients(steps: int, memory: str, accumulate: int, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time of a round of `gradients`, with batches of 8 requests on each node: all of it, and the gradient alone."""
    for count in (1, 2, 4):
        given = {"batch-size": 8, "seq-len": 64, "accumulate": accumulate}
        with federation(count, memory, given, model=model) as programs:
            options = {"strategy": "gradients", "rounds": steps, "evaluate-every": steps, "save-every": steps}
            record = programs.run("result", **options)
            adapter = (programs.app / "result" / "round-000000" / "adapter_model.safetensors").stat().st_size
            history, whole, slowest = _times(record["history"])
            row = {
                "step_seconds": round(whole, 3),
                "gradient_seconds": round(slowest, 3),
                "gradient_peak_rss_mb": max(node["peak_rss_mb"] for each in history for node in each["nodes"].values()),
                "steps": steps,
                "bytes_per_node_and_step": 2 * adapter,
                "clientapp_peak_rss_mb": programs.rounded()["flwr-clientapp"],
            }
            yield f"gradients, {count} nodes" + (f", accumulate {accumulate}" if accumulate > 1 else ""), row


def times_of_rounds(rounds: int, epochs: float, memory: str, model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time of a round in which the nodes together pass over all requests, and that of the slowest node alone."""
    for count in (1, 2, 4):
        with federation(count, memory, {"epochs": epochs}, model=model) as programs:
            _, whole, slowest = _times(programs.run("result", rounds=rounds, **{"evaluate-every": rounds})["history"])
            row = {
                "round_seconds": round(whole, 1),
                "training_seconds": round(slowest, 1),
                "rounds": rounds,
                "epochs": epochs,
            }
            yield f"fedavg, {count} nodes", row


def _times(history: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], float, float]:
    """Return the rounds but the first, which also prepares the data, and two medians: their seconds, and those of the
    slowest node.
    """
    later = history[1:]
    slowest = [max(node["seconds"] for node in each["nodes"].values()) for each in later]
    return later, median(each["seconds"] for each in later), median(slowest)


def memory_of_server(nodes: int, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Peaks of Flower's programs in rounds in which nodes send adapters, but do not train."""
    for strategy in ("fedavg", "fedadam", "gradients"):
        with federation(nodes, "60MB", {}, SYNTHETIC) as programs:
            programs.run("result", rounds=rounds, strategy=strategy)
        yield f"server, {strategy}, peak RSS in MB", programs.rounded()


def held_out_losses(
    nodes: int, rounds: int, epochs: float, lr: float | None, memory: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Held-out losses of a federation, and of one machine with all of the data and as many passes."""
    options = {"epochs": epochs, **({} if lr is None else {"lr": lr})}
    with federation(nodes, memory, options) as programs:
        yield "federated", learned(programs, "result", rounds=rounds)
        yield "Flower's programs, peak RSS in MB", programs.rounded()
    yield "union", {"eval_loss": [round(union(nodes, rounds * epochs), 4)]}


def losses_with_protections(
    nodes: int, rounds: int, epochs: float, memory: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Held-out losses of federations whose updates are protected."""
    with federation(nodes, memory, {"epochs": epochs}) as programs:
        for number, (name, (privacy, options)) in enumerate(PROTECTIONS.items()):
            yield name, learned(programs, f"result-{number}", rounds=rounds, privacy=privacy, **options)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.5)


if __name__ == "__main__":
    main()
