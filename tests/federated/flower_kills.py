"""A federation whose nodes and server are killed ends as one that was left alone.

Real programs of Flower on this machine: a server and two nodes with TLS. Each round, one thing is killed with SIGKILL
in the middle of training: a training process, a ClientApp, a whole node, or the server. A federation has
FEATHERBACK_CLIENT_KILLS kills of clients and FEATHERBACK_SERVER_KILLS of the server. Flower notices a dead node after a
minute, so FEATHERBACK_FEDERATIONS federations run at once: `make test-flower KILLS=5` kills clients 20 times and the
server 5 times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from featherback.federated import fit
from tests.federated.in_process import InProcess, Node, Place, run_here
from tests.federated.programs import Program, Real, programs, write_app
from tests.federated.walk_page import history

CLIENT_KILLS = int(os.environ.get("FEATHERBACK_CLIENT_KILLS", "4"))
SERVER_KILLS = int(os.environ.get("FEATHERBACK_SERVER_KILLS", "1"))
FEDERATIONS = int(os.environ.get("FEATHERBACK_FEDERATIONS", "1"))
VICTIMS = ("worker", "clientapp", "node")
SECONDS = 600
"""Longer than a round with a kill takes on a busy machine."""
STEPS = 120
MIDDLE = range(10, STEPS - 30)
"""The steps at which a training process is killed, or the first step after them that is seen."""
TRAIN = {"train.rank": 4, "train.lr": 2e-3, "train.steps": STEPS, "train.save_every": 5, "train.compute": "fp32"}


class Killable(Real):
    """A federation whose programs are killed."""

    def start_run(self, rounds: int) -> None:
        """Repeat `flwr run` until the last round is there, as a person would after a server has died."""
        last = f"result/round-{rounds:06d}/round.json"
        script = f". ./flower.env; until [ -e {last} ]; do flwr run app deployment --stream; sleep 3; done"
        self.start("run", "sh", "-c", script)

    def pause(self, port: str, step: int) -> Program | None:
        """Stop the training process of a node if it has made `step` steps, and return it; None if there is none.

        As long as it is stopped, the round cannot end.
        """
        for each in programs("featherback.worker", f"{self.app}/", f"/work-{port}/"):
            with suppress(ProcessLookupError):
                os.kill(each.number, signal.SIGSTOP)
                if step <= _steps(each) < STEPS:
                    return each
                os.kill(each.number, signal.SIGCONT)
        return None

    def kill(self, victim: str, port: str, worker: Program) -> None:
        """Kill the training process, or the programs of the victim while the training process is stopped."""
        names = {
            "clientapp": [("flwr-clientapp", f"127.0.0.1:{port}")],
            "node": [("flower-supernode", f"--port {port}")],
            "server": [("flower-superlink", self.server), ("flwr-serverapp", self.server)],
        }
        killed = [worker] if victim == "worker" else [each for words in names[victim] for each in programs(*words)]
        assert killed, f"there is no {victim}"
        for each in killed:
            each.kill()
        with suppress(ProcessLookupError):
            os.kill(worker.number, signal.SIGCONT)
        if victim == "server":
            self.start_server()


def _steps(worker: Program) -> int:
    """Return the steps that a training process has made."""
    run = Path(worker.words.split("featherback.worker ")[1].split(" --")[0])
    try:
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


@pytest.mark.parametrize("federation", range(FEDERATIONS))
def test_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, federation: int) -> None:
    place, rng = Place(tmp_path), random.Random(federation)
    first = federation * CLIENT_KILLS
    kills = [VICTIMS[number % len(VICTIMS)] for number in range(first, first + CLIENT_KILLS)]
    kills += ["server"] * SERVER_KILLS
    rng.shuffle(kills)
    app, gate, server = write_app(place, len(kills) + 1, TRAIN)
    with closing(Killable(app, place, gate, server)) as real:
        real.start_server()
        real.start_nodes()
        real.start_run(len(kills) + 1)
        for number, victim in enumerate(kills, 1):
            port, step = rng.choice(real.ports), rng.choice(MIDDLE)
            worker = _wait(lambda port=port, step=step: real.pause(port, step), f"step {step} of round {number}")
            assert _newest(app) == number - 1
            steps = _steps(worker)
            real.kill(victim, port, worker)
            assert _newest(app) == number - 1, "the round was over"
            print(f"round {number}: killed the {victim} when node {port} had made {steps} of {STEPS} steps", flush=True)
            _wait(lambda number=number: _newest(app) >= number, f"the end of round {number}")
        assert real.started["run"].wait(timeout=SECONDS) == 0
    entries: list[dict[str, Any]] = history(app)  # type: ignore[assignment]
    assert [each["round"] for each in entries] == list(range(1, len(kills) + 2))
    assert [len(each["nodes"]) for each in entries] == [2] * len(entries)
    monkeypatch.setattr(fit, "_run", run_here)
    config = place.run_config(rounds=len(kills) + 1, **TRAIN)
    nodes = [Node(each.number, place.folder, each.context.node_config, config) for each in place.nodes(config)]
    from featherback.federated.server import Server
    from featherback.federated.settings import Federation

    alone = Server(Federation.of(config))
    alone.run(InProcess(nodes))
    losses = [each[-1]["eval_loss"] for each in (entries, alone.last.history)]
    print("held-out loss {:.6f}, and {:.6f} of a federation that was left alone".format(*losses))
    assert losses[0] < 1.01 * losses[1]
    made = sorted((app / "result").iterdir())
    assert [path.name for path in made] == [f"round-{number:06d}" for number in range(len(kills) + 2)]
    for path in made:
        assert all(np.isfinite(each).all() for each in load_file(path / "adapter_model.safetensors").values())
    stored = load_file(made[-1] / "adapter_model.safetensors")
    difference = max(float(np.abs(stored[name] - each).max()) for name, each in _stored(alone).items())
    print(f"largest difference of a value of the adapter: {difference:.2g}")
    assert difference < 1e-3
    shutil.rmtree(app)


def _stored(server: Any) -> dict[str, np.ndarray]:
    newest = max(server.out.glob("round-*"))
    return load_file(newest / "adapter_model.safetensors")


def _newest(app: Path) -> int:
    found = [int(path.parent.name.split("-")[1]) for path in (app / "result").glob("round-*/round.json")]
    return max(found, default=0)


def _wait(condition: Any, what: str) -> Any:
    """Wait until the condition holds, and return what it returns."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
    return found
