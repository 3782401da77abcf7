"""Who may send requests to the studio, and which files they can name."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from featherback.errors import FeatherbackError
from featherback.web.guard import Rules
from featherback.web.refusal import RefusedError
from featherback.web.studio import app
from featherback.web.studio.app import STATIC, studio
from featherback.web.studio.commands import Command, Runner, environment, path_word, python
from featherback.web.studio.workspace import OWN, UPLOADS, Workspace
from tests.web.studio.conftest import Ask, message

REQUESTS = (
    ("GET", "/start"),
    ("GET", "/models"),
    ("GET", "/files"),
    ("GET", "/runs"),
    ("GET", "/runs/run"),
    ("POST", "/fetch"),
    ("POST", "/upload"),
    ("POST", "/examples"),
    ("POST", "/command"),
    ("POST", "/forecast"),
    ("POST", "/runs"),
    ("POST", "/runs/run/stop"),
    ("POST", "/runs/run/resume"),
    ("POST", "/runs/run/samples"),
    ("POST", "/compare"),
    ("POST", "/chat"),
    ("POST", "/chat/stop"),
    ("POST", "/export"),
)
OUTSIDE = (
    "../secret.jsonl",
    "SECRET",
    "link.jsonl",
    "texts",
    "texts/link.txt",
    "sums.jsonl/../../secret.jsonl",
    "",
    "-",
    None,
    ["sums.jsonl"],
    7,
    "\0",
)


def test_every_request_needs_the_key(opened: tuple[TestClient, str], folder: Path) -> None:
    client, key = opened
    listed = {
        (method, route.path) for route in app._Requests(Workspace(folder)).routes() for method in route.methods or ()
    }
    assert len(listed - {("HEAD", path) for _, path in listed}) == len(REQUESTS)
    for method, path in REQUESTS:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": key}):
            assert client.request(method, f"/api{path}", headers=headers).status_code == 401, path
        assert client.request(method, f"/api{path}?key={key}").status_code == 401, path  # an address would be logged


def test_each_start_has_a_key_of_its_own(folder: Path) -> None:
    keys = {studio(Workspace(folder), Rules()).key for _ in range(3)}
    assert len(keys) == 3
    assert min(map(len, keys)) >= 43  # 256 bits


def test_other_hosts_and_origins_are_rejected(opened: tuple[TestClient, str]) -> None:
    client, key = opened
    headers = {"Authorization": f"Bearer {key}"}
    assert client.get("/api/start", headers=headers).status_code == 200
    for wrong in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = client.get("/api/start", headers={**headers, **wrong})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        assert client.get("/", headers=wrong).status_code == 403


def test_the_page_runs_only_its_own_scripts(opened: tuple[TestClient, str]) -> None:
    client, _ = opened
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|https?://", page.text)
    for path in STATIC.iterdir():
        answer = client.get(f"/{path.name}")
        assert answer.status_code == 200, path
        assert path.suffix == ".svg" or not re.search(r"https?://", answer.text), f"{path} names another host"
    assert "--mean" in client.get("/charts.css").text


@pytest.mark.parametrize("path", ["/../app.py", "/%2e%2e/app.py", "/static/studio.js", "//etc/passwd", "/studio.py"])
def test_only_the_files_of_the_page_are_served(opened: tuple[TestClient, str], path: str) -> None:
    client, _ = opened
    assert client.get(path).status_code == 404


def test_the_log_has_no_key(ask: Ask, opened: tuple[TestClient, str], lines: list[str]) -> None:
    ask("/start")
    opened[0].get(f"/?key={opened[1]}")
    assert lines
    assert not any(opened[1] in line for line in lines)


def test_data_outside_the_folder_cannot_be_named(ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.Runner, "output_of", _never)
    (folder / "link.jsonl").symlink_to(folder.parent / "secret.jsonl")
    (folder / "notes").symlink_to(folder.parent, target_is_directory=True)
    (folder / "texts").mkdir()
    (folder / "texts" / "link.txt").symlink_to(folder.parent / "secret.jsonl")
    assert [each["path"] for each in ask("/files").json()] == ["sums.jsonl"]
    for name in OUTSIDE:
        given = str(folder.parent / "secret.jsonl") if name == "SECRET" else name
        for request in ("/examples", "/command", "/forecast", "/runs"):
            answer = ask(request, {"model": "tiny.gguf", "data": given})
            assert "There is no data file" in message(answer), given
        if given:
            answer = ask("/command", {"model": "tiny.gguf", "data": "sums.jsonl", "eval_data": given})
            assert "There is no data file" in message(answer), given


def test_models_and_runs_outside_the_folder_cannot_be_named(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.Runner, "output_of", _never)
    outside = folder.parent / "run"
    outside.mkdir()
    (outside / "run.json").write_text("{}")
    (folder / "linked").symlink_to(outside, target_is_directory=True)
    for name in ("../run", str(outside), "linked", "", ".", None, 3):
        for request in ("/export", "/chat"):
            assert "There is no run" in message(ask(request, {"run": name, "to": "gguf"})), name
        assert message(ask("/compare", {"runs": [name, "other"]}))
    for name in ("../run", "%2e%2e/run", "linked", str(outside), "%00", "x" * 300, "%ff"):
        for request in ("", "/stop", "/resume"):
            answer = ask(f"/runs/{name}{request}") if not request else ask(f"/runs/{name}{request}", {})
            assert answer.status_code in (404, 409), name
    for name in ("/etc/passwd", "../tiny.gguf", "./tiny.gguf", "", None, 3):
        assert "There is no model" in message(ask("/examples", {"model": name, "data": "sums.jsonl"})), name


@pytest.mark.parametrize(
    "name", ["../run", "a/b", ".hidden", "-x", "", "sums.jsonl", "x" * 200, "a\nb", "\0", None, 3, ".."]
)
def test_a_new_run_is_a_new_folder_in_the_opened_one(folder: Path, name: object) -> None:
    with pytest.raises(RefusedError):
        Workspace(folder).new_run(name)


def test_free_names_are_suggested(folder: Path) -> None:
    workspace = Workspace(folder)
    assert workspace.suggested_run() == "run"
    (folder / "run").mkdir()
    assert workspace.suggested_run() == "run-2"
    assert workspace.new_run("run-2") == "run-2"


@pytest.mark.parametrize(
    "name", ["../up.jsonl", "a/b.csv", ".hidden.csv", "x.exe", "x", "", "-x.csv", "a\0.csv", "tiny.gguf"]
)
def test_uploads_are_data_files_with_plain_names(ask: Ask, folder: Path, name: str) -> None:
    from urllib.parse import quote

    answer = ask("/upload", content=b"question,answer\n", headers={"X-Name": quote(name, safe="")})
    assert "is not a data file" in message(answer)
    assert list((folder / OWN / UPLOADS).iterdir()) == []


def test_uploads_are_private_and_never_replace_another_file(ask: Ask, folder: Path) -> None:
    def store(content: bytes) -> str:
        return str(ask("/upload", content=content, headers={"X-Name": "my%20examples.csv"}).json()["path"])

    first = store(b"question,answer\na,b\n")
    assert first == f"{OWN}/{UPLOADS}/my examples.csv"
    assert (folder / first).read_bytes() == b"question,answer\na,b\n"
    assert store(b"question,answer\na,b\n") == first
    assert store(b"question,answer\nc,d\n").endswith("my examples-2.csv")
    assert len(list((folder / OWN / UPLOADS).iterdir())) == 2
    for path in (folder / OWN, folder / OWN / UPLOADS, folder / first):
        assert path.stat().st_mode & 0o077 == 0
    assert first in [each["path"] for each in ask("/files").json()]


def test_an_upload_beyond_the_limit_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "UPLOAD_BYTES", 1000)
    page = studio(Workspace(folder), Rules())
    headers = {"Authorization": f"Bearer {page.key}", "X-Name": "big.csv"}
    with TestClient(page.app, base_url="http://127.0.0.1") as client:
        assert client.post("/api/upload", content=b"x" * 1001, headers=headers).status_code == 413

        def parts() -> object:
            for _ in range(11):
                yield b"x" * 100

        assert client.post("/api/upload", content=parts(), headers=headers).status_code == 413  # type: ignore[arg-type]
        assert list((folder / OWN / UPLOADS).iterdir()) == []
        assert client.post("/api/upload", content=b"x" * 1000, headers=headers).status_code == 200


def test_the_folder_for_uploads_is_not_a_link(folder: Path) -> None:
    (folder / OWN).mkdir()
    (folder / OWN / UPLOADS).symlink_to(folder.parent, target_is_directory=True)
    with pytest.raises(FeatherbackError, match="is a link"):
        Workspace(folder)


def test_what_was_named_at_the_start_can_be_used(folder: Path) -> None:
    outside = folder.parent / "secret.jsonl"
    workspace = Workspace(folder, data=outside)
    assert workspace.data("../secret.jsonl") == "../secret.jsonl"
    with pytest.raises(FeatherbackError, match=r"missing\.jsonl does not exist"):
        Workspace(folder, data=folder / "missing.jsonl")


def test_words_cannot_become_options(folder: Path) -> None:
    (folder / "--out.csv").write_text("question,answer\na,b\n")
    workspace = Workspace(folder)
    assert workspace.data("--out.csv") == "./--out.csv"
    assert path_word("plain") == "plain"
    command = Command.of("train", "a b", "--data", "x'y")
    assert command.shown == """featherback train 'a b' --data 'x'"'"'y'"""
    assert command.arguments[-4:] == ["train", "a b", "--data", "x'y"]


def test_planted_modules_in_the_folder_are_not_imported(folder: Path) -> None:
    """`python -m` and `python -c` search the working directory first, and commands run in the opened folder."""
    for name in ("json", "numpy", "argparse", "featherback"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from the opened folder')")
    runner = Runner(folder)
    assert asyncio.run(runner.output_of("version", Command.of("--version"))).startswith("featherback ")
    code = "import json, featherback.cli; print(json.dumps(sorted(sys.modules)[:1]))"
    found = subprocess.run(python(code), cwd=folder, env=environment(), capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


BODIES = (b"", b"x", b"[]", b"3", b"null", b'{"settings": 3}', b"[" * 5000, b"\xff", json.dumps({"ask": 3}).encode())


def test_bodies_that_are_no_requests(ask: Ask) -> None:
    for method, path in REQUESTS:
        for body in BODIES if method == "POST" and path not in ("/upload", "/chat/stop") else ():
            answer = ask(path, content=body or b" ")
            assert 400 <= answer.status_code < 500, (path, body)
            assert message(answer).endswith(".")


def test_models_that_links_lead_to_are_not_listed(folder: Path) -> None:
    outside = folder.parent / "models"
    outside.mkdir()
    for name in ("a.gguf", "b-00002-of-00002.gguf", "config.json", "model.safetensors"):
        shutil.copy(folder / "tiny.gguf", outside / name)
    (folder / "link.gguf").symlink_to(outside / "a.gguf")
    (folder / "linked").symlink_to(outside, target_is_directory=True)
    shutil.copy(folder / "tiny.gguf", folder / "b-00001-of-00002.gguf")
    (folder / "b-00002-of-00002.gguf").symlink_to(outside / "b-00002-of-00002.gguf")
    for name in ("hf", "hf/deeper"):
        (folder / name).mkdir()
    (folder / "hf" / "config.json").symlink_to(outside / "config.json")
    (folder / "same.gguf").symlink_to("tiny.gguf")
    here = [each.name for each in Workspace(folder).models() if each.path and Path(each.path).parent == folder]
    assert here == ["same.gguf", "tiny.gguf"]


async def _never(*_: object) -> str:
    raise AssertionError("a command was started")


def test_a_planted_path_fault_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If links were not followed to their ends, the test of data outside the folder would fail."""
    (folder / "link.jsonl").symlink_to(folder.parent / "secret.jsonl")
    monkeypatch.setattr(Workspace, "_is_inside", lambda self, path: os.path.abspath(path).startswith(str(self.folder)))
    assert Workspace(folder).data("link.jsonl") == "link.jsonl"
