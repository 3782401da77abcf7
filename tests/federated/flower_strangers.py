"""What strangers, other nodes and the server itself cannot do in a federation of real programs of Flower.

`make test-flower` runs this. The stranger has the certificate of the federation, which is public.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from socket import create_connection

import httpx
import pytest

from featherback.federated import scripts
from featherback.web.connection import Patience
from tests.federated.in_process import TRAIN, Place
from tests.federated.programs import Real, environment, write_app
from tests.federated.walk_page import free_port, history

MARK = """
from pathlib import Path

Path({place!r}).write_text("code of another app")
"""
pytestmark = pytest.mark.xdist_group("strangers")  # they share a federation, which the last ones change
SECONDS = 300
"""Longer than anything here takes on a busy machine."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A federation with two nodes, which has run."""
    place = Place(tmp_path_factory.mktemp("federation"))
    app, gate, server = write_app(place, 1, TRAIN)
    with closing(Real(app, place, gate, server)) as real:
        real.start_server()
        real.start_nodes()
        done = _run(real, app)
        assert [len(each["nodes"]) for each in history(app)] == [2], done.stdout + done.stderr  # type: ignore[arg-type]
        yield real


def _run(real: Real, folder: Path, app: str = "app") -> subprocess.CompletedProcess[str]:
    """Run an app as its owner does, with the settings in `folder`."""
    script = f". ./flower.env; timeout {SECONDS} flwr run {app} deployment --stream"
    return subprocess.run(["sh", "-c", script], cwd=folder, env=environment(), capture_output=True, text=True)


def _changed(real: Real, folder: Path, module: str) -> Path:
    """Add code to the app in `folder`, which leaves a file behind. Return the path of that file."""
    mark = folder / f"{module}.mark"
    with open(folder / "app" / "federation" / f"{module}.py", "a") as file:
        file.write(MARK.format(place=str(mark)))
    return mark


@pytest.fixture
def stranger(real: Real, tmp_path: Path) -> Path:
    """The folder of a stranger, who knows everything public, with an app of their own."""
    folder = tmp_path / "stranger"
    shutil.copytree(real.app / "app", folder / "app")
    for name in ("flower.env", "flower/config.toml", "certificates/ca.crt"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(real.app / name, folder / name)
    config = folder / "flower" / "config.toml"
    config.write_text(config.read_text().replace(f"127.0.0.1:{real.server}", f"localhost:{real.gate}"))
    return folder


def test_only_the_gate_listens_to_the_network(real: Real) -> None:
    said = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = {line.split()[1] for line in said.splitlines() if line.split()[3] == "0A"}
    ports = {int(each.split(":")[1], 16): each.split(":")[0] for each in listening}
    assert ports[int(real.gate)] == "00000000"
    for port in (real.server, *real.ports):
        assert ports[int(port)] == "0100007F"


def test_a_run_of_a_stranger_is_refused(real: Real, stranger: Path) -> None:
    mark = _changed(real, stranger, "server_app")
    done = _run(real, stranger)
    assert done.returncode != 0
    assert "404" in done.stdout + done.stderr
    assert not mark.exists()


def test_the_run_of_the_server_s_owner_would_have_left_its_mark(real: Real, stranger: Path) -> None:
    """The planted fault: the stranger reaches the server's own port."""
    mark = _changed(real, stranger, "server_app")
    shutil.copy(real.app / "flower" / "config.toml", stranger / "flower" / "config.toml")
    _run(real, stranger)
    assert mark.exists()


@pytest.mark.parametrize("key", [False, True], ids=["no key", "a key of their own"])
def test_a_node_of_a_stranger_is_refused(real: Real, stranger: Path, key: bool) -> None:
    words = ["--superlink", f"localhost:{real.gate}", "--root-certificates", "certificates/ca.crt"]
    if key:
        own = stranger / "node.key"
        own.write_text(_private_key())
        words += ["--auth-supernode-private-key", str(own)]
    script = f'. ./flower.env; exec timeout 60 flower-supernode --max-retries 1 --port {free_port()} "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words], cwd=stranger, env=environment(), capture_output=True, text=True
    )
    assert done.returncode not in (0, 124)
    assert "The server does not know the key of this node" in done.stdout + done.stderr
    said = subprocess.run(
        ["sh", "-c", ". ./flower.env; flwr supernode list deployment --format json"],
        cwd=real.app,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.count('"node-id"') == 2


CALLS = [
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/runtime/push-messages",
    "/v1/runtime/responses",
    "/v1/fleet/register-node",
    "/v1/fleet/pull-messages",
    "/v1/fleet/get-fab",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e%2fcontrol%2fstart-run",
    "/v1/fleet/..%2fcontrol/start-run",
    "//v1/control/start-run",
    "/docs",
    "/health",
]


@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
def test_calls_that_are_not_of_a_node_are_refused(real: Real, path: str, known: bool) -> None:
    """`known`: with the public key of a node, but without its signature."""
    headers = {"content-type": "application/protobuf"}
    if known:
        public = next((real.app / scripts.NODE_KEYS).glob("*.pub")).read_bytes()
        headers["flwr-public-key"] = b64encode(public).decode()
    with httpx.Client(base_url=f"https://localhost:{real.gate}", verify=_trust(real)) as client:
        answer = client.post(path, headers=headers)
    assert answer.status_code in ((401, 404, 412) if not known else (401, 404, 422)), answer.text


def test_a_call_with_two_keys_is_refused(real: Real) -> None:
    """Otherwise the gate could look at one, and Flower at the other."""
    keys = [path.read_bytes() for path in (real.app / scripts.NODE_KEYS).glob("*.pub")]
    headers = [("flwr-public-key", b64encode(key).decode()) for key in keys]
    with httpx.Client(base_url=f"https://localhost:{real.gate}", verify=_trust(real)) as client:
        answer = client.post("/v1/fleet/pull-messages", headers=headers)
    assert "The server does not know the key of this node" in answer.text


def test_a_stranger_s_body_is_not_read(real: Real) -> None:
    """The answer comes before a body of 64 GiB, of which only the beginning is sent."""
    began = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: localhost\r\ncontent-length: 68719476736\r\n\r\n" + bytes(
        1 << 16
    )
    with (
        create_connection(("localhost", int(real.gate)), timeout=SECONDS) as plain,
        _trust(real).wrap_socket(plain, server_hostname="localhost") as line,
    ):
        line.sendall(began)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 401 ")


def test_connections_that_say_nothing_hold_nobody_up(real: Real) -> None:
    """More of them than the gate keeps: the one that has waited longest makes room."""
    with ExitStack() as stack:
        for _ in range(Patience.connections + 20):
            plain = stack.enter_context(create_connection(("localhost", int(real.gate)), timeout=SECONDS))
            line = stack.enter_context(_trust(real).wrap_socket(plain, server_hostname="localhost"))
            line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost:")
        with httpx.Client(base_url=f"https://localhost:{real.gate}", verify=_trust(real)) as client:
            assert client.post("/v1/fleet/pull-messages").status_code == 401
        assert line.recv(1) == b""  # also the newest is closed, once its time for a header is over


def test_a_node_refuses_another_app(real: Real, stranger: Path) -> None:
    """Not even the owner of the server has the nodes run code that they were not given."""
    mark = _changed(real, stranger, "client_app")
    shutil.copy(real.app / "flower" / "config.toml", stranger / "flower" / "config.toml")
    project = stranger / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace(str(real.app / "result"), str(stranger / "result")))
    done = _run(real, stranger)
    assert "The FAB could not be verified" in done.stdout + done.stderr
    assert not mark.exists()
    for port in real.ports:
        assert "FAB verification failed" in (real.app / f"node-{port}.log").read_text()


def test_a_node_runs_another_app_once_it_has_its_signature(real: Real) -> None:
    """The planted fault of the test before, and what the page says: ./nodes.sh, and the new trusted.yaml."""
    mark = _changed(real, real.app, "client_app")
    project = real.app / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace(str(real.app / "result"), str(real.app / "again")))
    subprocess.run(["./nodes.sh", "2"], cwd=real.app, env=environment(), check=True, capture_output=True)
    for name in [name for name in real.started if name.startswith("node-")]:
        _end(real.started.pop(name))
    real.start_nodes()
    done = _run(real, real.app)
    assert mark.exists(), done.stdout + done.stderr


def test_a_node_whose_key_was_removed_is_refused(real: Real) -> None:
    gone = real.app / scripts.NODE_KEYS / "node-2.pub"
    gone.unlink()
    log = real.app / f"node-{real.ports[1]}.log"
    deadline = time.monotonic() + SECONDS
    while "The server does not know the key of this node" not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _trust(real: Real) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(real.app / "certificates" / "ca.crt"))


def _private_key() -> str:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
