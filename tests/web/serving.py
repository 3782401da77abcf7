"""Start `featherback serve` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai

from featherback.core.sizes import MB
from featherback.engine.host.process_tree import tree_unshared_rss
from featherback.exports.formats import peft
from featherback.models import load
from featherback.models.adapter import LoRA

PATIENCE = 120


class Running:
    """A server that accepts requests."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process, self._errors = process, errors
        assert process.stdout is not None
        self.greeting = ""
        for line in process.stdout:
            self.greeting += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"http://\S+/v1", self.greeting)
        assert found, (self.greeting, errors.read_text())
        self.url = found[0]
        self.port = int(self.url.split(":")[2].split("/")[0])

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE, **options)

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=PATIENCE, **options)

    def ask(self, path: str, content: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
        """The status and JSON of an answer; `content` is the JSON or the bytes of a POST."""
        data = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read()
        return status, json.loads(body) if body else None

    @property
    def errors(self) -> str:
        """What the server has written on standard error."""
        return self._errors.read_text()

    def memory(self) -> int:
        """The bytes that the server and its children hold, as its budget counts them."""
        return tree_unshared_rss(self.process.pid)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def serving(model: Path, *options: object, **environment: str) -> Iterator[Running]:
    """Serve a model on a free port until the context ends."""
    command = [sys.executable, "-m", "featherback", "serve", model, "--port", 0, "--threads", 1, *options]
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        with errors.open("w") as stream:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**os.environ, **environment},
            )
        try:
            yield Running(process, errors)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def write_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Write a PEFT adapter that changes the model's answers, and return its folder."""
    opened = load(model)
    adapter = LoRA(opened, rank=2, seed=seed)
    rng = np.random.default_rng(seed)
    adapter.load_state(
        {name: rng.normal(0, 0.5, value.shape).astype(np.float32) for name, value in adapter.state().items()}
    )
    folder.mkdir(exist_ok=True)
    peft.FORMAT.save(adapter, folder)
    return folder


def least_memory(model: Path, *options: object) -> int:
    """The bytes that a server's error about a budget of 1 MB names as enough."""
    command = [sys.executable, "-m", "featherback", "serve", model, "--port", 0, "--threads", 1, *options]
    done = subprocess.run([*map(str, command), "--memory", "1MB"], capture_output=True, text=True, check=False)
    found = re.search(r"--memory (\d+)MB", done.stderr)
    assert found, done.stderr
    return int(found[1]) * MB
