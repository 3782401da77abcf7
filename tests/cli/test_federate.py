"""`federate init` writes a whole Flower app, without Flower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from featherback.federated.settings import Federation, Node
from tests.cli.conftest import Command

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no parser of TOML")


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The configuration as Flower passes it."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


@pytest.fixture
def app(command: Command, chat_model: Path, messages: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "a federation"
    options = ("--data", messages, "--eval-data", messages, "--nodes", 3, "--memory", "60MB", "--host", "first.local")
    done = command("federate", "init", folder, "--model", chat_model, *options)
    assert done.code == 0, done.err
    assert "next: read" in done.out
    return folder


def _config(app: Path) -> dict[str, Any]:
    return tomllib.loads((app / "app" / "pyproject.toml").read_text())  # type: ignore[no-any-return]


def test_the_run_configuration_is_complete(app: Path, chat_model: Path) -> None:
    project = _config(app)
    assert project["project"]["dependencies"] == []  # nothing is installed when a run begins
    values = _flat(project["tool"]["flwr"]["app"]["config"])
    federation = Federation.of(values)
    assert (federation.model, federation.out) == (str(chat_model), str(app / "result"))
    assert "local-dp.epsilon" in values
    node = Node.of({"partition-id": 2}, values)
    assert (node.memory, node.data) == ("60MB", (str(app / "data" / "node-2.jsonl"),))


def test_the_examples_are_divided(app: Path, messages: Path) -> None:
    parts = [(app / "data" / f"node-{node}.jsonl").read_bytes().splitlines() for node in range(3)]
    assert sorted(line for part in parts for line in part) == sorted(messages.read_bytes().splitlines())
    assert {len(part) for part in parts} == {4}


def test_telemetry_and_update_checks_are_off(app: Path) -> None:
    script = '. ./flower.env && echo "$FLWR_TELEMETRY_ENABLED $FLWR_DISABLE_UPDATE_CHECK $UV_OFFLINE $FLWR_HOME"'
    said = subprocess.run(["sh", "-c", script], cwd=app, capture_output=True, text=True, check=True).stdout
    assert said == f"0 1 1 {app}/flower\n"
    for name in ("server.sh", "node.sh", "nodes.sh", "simulate.sh"):
        assert ". ./flower.env" in (app / name).read_text()
        assert os.access(app / name, os.X_OK)
        subprocess.run(["sh", "-n", name], cwd=app, check=True)


def test_a_node_says_what_is_missing_before_it_starts(app: Path) -> None:
    """File by file, and then the program."""
    words, known = ["/bin/sh", "./node.sh", "first.local"], {"PATH": "/bin:/usr/bin"}
    for missing in (app / "data.jsonl", app / "ca.crt", app / "node.key", app / "trusted.yaml", None):
        done = subprocess.run(words, cwd=app, env=known, capture_output=True, text=True)
        assert done.returncode == 1
        if missing is None:
            assert done.stderr.startswith("error: flower-supernode is not installed here")
            break
        assert done.stderr == f"error: There is no {missing}. Edit node.sh, or copy the file.\n"
        missing.parent.mkdir(exist_ok=True)
        missing.touch()


def test_connections_are_encrypted(app: Path) -> None:
    known = tomllib.loads((app / "flower" / "config.toml").read_text())["superlink"]
    assert known["deployment"]["address"] == "127.0.0.1:9093"
    assert known["deployment"]["root-certificates"] == str(app / "certificates" / "ca.crt")
    assert "insecure" not in (app / "server.sh").read_text() + (app / "node.sh").read_text()


def test_only_nodes_reach_the_server_from_outside(app: Path) -> None:
    """Flower's server listens on its own machine and lets in known nodes; nodes run only an app that is signed."""
    server, node = ((app / name).read_text() for name in ("server.sh", "node.sh"))
    assert "flower-superlink --host 127.0.0.1 --port 9093 " in server
    assert "--enable-supernode-auth" in server
    assert "0.0.0.0" not in server
    assert "--auth-supernode-private-key node.key --trusted-entities trusted.yaml" in node


def test_no_script_stops_programs_by_name(app: Path) -> None:
    for script in app.glob("*.sh"):
        assert "pkill" not in script.read_text()
        assert "killall" not in script.read_text()


def test_it_works_without_flower(chat_model: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['flwr'] = None; from featherback.cli.app import run; sys.exit(run(sys.argv[1:]))"
    words = ["federate", "init", str(tmp_path / "fed"), "--model", str(chat_model)]
    subprocess.run([sys.executable, "-c", code, *words], check=True)
    assert (tmp_path / "fed" / "app" / "federation" / "client_app.py").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["start", "fed"], "federate cannot 'start'; expected one of: init"),
        (["init", "."], "exists already. Choose a new folder"),
        (["init", "fed", "--memory", "lots"], "--memory is 'lots'"),
        (["init", "fed", "--data", "few.jsonl", "--nodes", "3"], "few.jsonl cannot be divided among 3 nodes"),
        (["init", "fed", "--data", "none.jsonl"], "Cannot read none.jsonl"),
    ],
)
def test_mistakes_are_named(
    command: Command, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.jsonl").write_text("{}\n{}\n")
    done = command("federate", *words, "--model", chat_model)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "fed").exists()
