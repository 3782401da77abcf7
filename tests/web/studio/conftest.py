"""Fixtures: a folder with a tiny model and data, and its studio without a network."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from featherback.core.naming import as_flags
from featherback.web.guard import Rules
from featherback.web.studio.app import studio
from featherback.web.studio.workspace import Workspace
from tests.support.tiny_chat import write_messages, write_tiny_chat

Ask = Callable[..., httpx.Response]
HOST = "http://127.0.0.1:8123"


@pytest.fixture
def folder(home: Path) -> Path:
    """The opened folder, and beside it a file that nobody named."""
    work = home / "work"
    work.mkdir()
    write_tiny_chat(work / "tiny.gguf")
    write_messages(work / "sums.jsonl", 60)
    write_messages(home / "secret.jsonl")
    return work


@pytest.fixture
def lines() -> list[str]:
    """What the server's log says."""
    return []


@pytest.fixture
def opened(folder: Path, lines: list[str]) -> Iterator[tuple[TestClient, str]]:
    """A client of the studio, and the key."""
    page = studio(Workspace(folder), Rules(log=lines.append))
    with as_flags(), TestClient(page.app, base_url=HOST) as client:
        yield client, page.key


@pytest.fixture
def ask(opened: tuple[TestClient, str]) -> Ask:
    """Send a request with the key; with a body it is a POST."""
    client, key = opened

    def send(path: str, body: Any = None, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        if body is None and "content" not in more:
            return client.get(f"/api{path}", headers=headers)
        content = more.pop("content", None) or json.dumps(body)
        return client.post(f"/api{path}", content=content, headers=headers)

    return send


def message(answer: httpx.Response) -> str:
    """The sentence of an error."""
    assert answer.status_code >= 400, answer.text
    return str(answer.json()["error"]["message"])
