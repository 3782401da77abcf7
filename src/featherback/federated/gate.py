"""The server's door to the network: what it lets through, and for whom. `server.sh` runs this beside Flower's server.

Flower 1.42 serves nodes, `flwr run` and its own programs at one port, without accounts. Whoever reaches that port runs
code on the server, so Flower's server listens on this machine only. The gate passes on calls of nodes, and only from
nodes whose public key is in certificates/nodes; Flower then checks their signatures. The gate also adds the signature
of the app, which Flower's own server has only for apps of Flower's hub.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import ssl
import sys
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import uvicorn
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fab_pb2 import GetFabResponse
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from featherback.core.files import read_json
from featherback.federated.scripts import NODE_KEYS, SIGNED_APP
from featherback.web.connection import Connection, Patience

KEY_HEADER = "flwr-public-key"
"""The header in which a node names its key. Flower checks that the node has signed with it."""
REFUSAL = {"code": 2004, "detail": "The server does not know the key of this node (certificates/nodes)."}
"""The answer to a node that joins with another key: Flower's error 2004, status 412, which the node's log shows.

After status 401, which answers other calls, a node of Flower ends without a word.
"""
JOIN, GET_FAB = ("activate-node", "register-node"), "get-fab"
SECONDS = 300.0
"""Longest wait for an answer of Flower's server."""
_CALL = re.compile(r"[a-z-]+")
_OF_THE_HOP = {"connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}


class Gate:
    """Passes calls of known nodes on to Flower's server at `server`."""

    def __init__(self, folder: Path, server: httpx.AsyncClient) -> None:
        self.folder, self.server = folder, server
        self.registered: set[bytes] = set()
        self.registering = asyncio.Lock()

    def app(self) -> Starlette:
        """Return the gate as an app of ASGI. Other paths and methods are answered with 404 or 405."""
        app = Starlette(routes=[Route("/v1/fleet/{call}", self.pass_on, methods=["POST"])])
        app.router.redirect_slashes = False
        return app

    async def pass_on(self, request: Request) -> Response:
        """Answer a call of a node."""
        key, call = self.known_key(request.headers.getlist(KEY_HEADER)), request.path_params["call"]
        if key is None or not _CALL.fullmatch(call):
            return JSONResponse(REFUSAL, 412 if call in JOIN else 401, {"connection": "close"})
        try:
            await self.register(key)
            asked = self.server.build_request(
                "POST", f"/v1/fleet/{call}", headers=_kept(request.headers), content=request.stream()
            )
            answer = await self.server.send(asked, stream=True)
            if call == GET_FAB and answer.is_success:
                return self._with_signature(await answer.aread(), answer)
        except httpx.HTTPError as error:
            return PlainTextResponse(f"Flower's server does not answer: {type(error).__name__}", 503)
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, _kept(answer.headers), background=BackgroundTask(answer.aclose)
        )

    def known_key(self, named: Sequence[str]) -> bytes | None:
        """Return the only key that a node names, if it is one of the federation's, which are read anew each time."""
        try:
            (written,) = named
            key = b64decode(written, validate=True)
        except ValueError:
            return None
        return key if any(path.read_bytes() == key for path in (self.folder / NODE_KEYS).glob("*.pub")) else None

    async def register(self, key: bytes) -> None:
        """Tell Flower's server of a node, which it forgets when it ends."""
        async with self.registering:
            if key not in self.registered:
                content = RegisterNodeRequest(public_key=key).SerializeToString()
                kind = {"content-type": "application/protobuf"}
                answer = await self.server.post("/v1/control/register-node", content=content, headers=kind)
                answer.raise_for_status()
                self.registered.add(key)

    def _with_signature(self, content: bytes, answer: httpx.Response) -> Response:
        found = GetFabResponse.FromString(content)
        found.fab.verifications.update(read_json(self.folder / SIGNED_APP)["verifications"])
        kind = {"content-type": answer.headers["content-type"]}
        return Response(found.SerializeToString(), answer.status_code, kind)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that go on with a message."""
    return {name: value for name, value in headers.items() if name not in _OF_THE_HOP}


async def serve(folder: Path, port: int, server_port: int) -> None:
    """Serve nodes at `port`, from when Flower's server answers at `server_port` until it ends."""
    certificates, parent = folder / "certificates", os.getppid()
    trust = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    address = f"https://127.0.0.1:{server_port}"
    async with httpx.AsyncClient(base_url=address, verify=trust, timeout=SECONDS, trust_env=False) as server:
        config = uvicorn.Config(
            Gate(folder, server).app(),
            host="0.0.0.0",
            port=port,
            http=partial(Connection, Patience()),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=3,
            ssl_certfile=str(certificates / "server.crt"),
            ssl_keyfile=str(certificates / "server.key"),
        )
        gate = uvicorn.Server(config)
        watch = asyncio.create_task(_end_with(parent, gate))
        await gate.serve()
        await watch


async def _end_with(parent: int, gate: uvicorn.Server) -> None:
    """End the gate when the process that started it ends."""
    while os.getppid() == parent and not gate.should_exit:
        await asyncio.sleep(1)
    gate.should_exit = True


def _wait_for(port: int) -> None:
    """Wait until Flower's server answers, or has ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.5)


def main(words: list[str]) -> None:
    """Run the gate, as `server.sh` asks. If it cannot run, end Flower's server, which has started it."""
    folder, port, server_port = words
    parent = os.getppid()
    _wait_for(int(server_port))
    try:
        asyncio.run(serve(Path(folder), int(port), int(server_port)))
    finally:
        if os.getppid() == parent:
            os.kill(parent, signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
