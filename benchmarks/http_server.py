"""`featherback serve` over HTTP: tokens per second of one and of eight clients, and a thousand requests of 32 clients.

Requests go to two adapters and to the model alone in turns. Their answers are compared with those that the server gave
to one client at a time: an answer of another adapter, or of another prompt, differs. That row computes in fp32 and
decodes exactly. bf16 rounds a prompt whose beginning is known in another way than a new one, `--decode fast` rounds
one sequence in another way than several, and random adapters have many near ties.

    .venv/bin/python -m benchmarks.http_server
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from featherback.engine.host.process_tree import tree_unshared_rss
from featherback.errors import FeatherbackError
from featherback.exports.formats import peft
from featherback.models import load
from featherback.models.adapter import LoRA
from featherback.models.hub.locate import locate

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

CLIENTS, REQUESTS = 32, 1000
ADAPTERS = ("notes", "tone")
BUDGET = "256MB"
PATIENCE = 600
PROMPTS = (
    "Once upon a time",
    "The three largest cities of France are",
    "To make a cup of tea, first",
    "A list of animals:",
    "My favourite colour is",
)
ANSWER, SHORT = 32, 4  # tokens
ROUNDS = 2


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """Name -> a function that measures a row."""
    return {
        "1-client": partial(_rate, place, 1),
        "8-clients": partial(_rate, place, 8),
        "1000-requests": partial(_many, place),
    }


class Server:
    """A running server of the chat model with two adapters, which nobody trained."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, client: http.client.HTTPConnection, model: str, prompt: str, tokens: int) -> tuple[str, int]:
        """The greedy text after a prompt, and its number of tokens."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        client.request("POST", "/v1/completions", json.dumps(body))
        answer = client.getresponse()
        found = json.loads(answer.read())
        if answer.status != 200:
            raise FeatherbackError(f"the server answered with status {answer.status}: {found}")
        return found["choices"][0]["text"], found["usage"]["completion_tokens"]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)


@contextmanager
def serving(model: str, *options: str) -> Iterator[Server]:
    """Serve a model and two adapters on a free port."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "featherback", "serve", model, "--port", "0", "--name", "base", *options]
        for seed, name in enumerate(ADAPTERS):
            words += ["--adapter", str(_adapter(model, Path(folder) / name, seed))]
        with (
            (Path(folder) / "errors").open("w+") as errors,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                said = ""
                for line in process.stdout:
                    said += line
                    if "Ctrl-C" in line:
                        break
                if not (found := re.search(r"http://[^/]+:(\d+)/", said)):
                    errors.seek(0)
                    raise FeatherbackError(f"the server did not start: {errors.read()}")
                yield Server(process, int(found[1]))
            finally:
                process.terminate()


def _adapter(model: str, folder: Path, seed: int) -> Path:
    """Write an adapter with random values, which changes the answers."""
    adapter, rng = LoRA(load(locate(model)), rank=8, seed=seed), np.random.default_rng(seed)
    for layer in adapter.layers:
        state = adapter.layer_state(layer)
        adapter.load_layer_state(
            layer, {name: value + rng.normal(0, 0.1, value.shape).astype(np.float32) for name, value in state.items()}
        )
    folder.mkdir()
    peft.FORMAT.save(adapter, folder)
    return folder


def _rate(place: Place, clients: int) -> Row:
    """Tokens per second of answers, all clients together, with what the prompts take."""
    tokens = SHORT if place.tiny else ANSWER

    def client(number: int) -> int:
        connection = server.connect()
        count = 0
        for turn in range(place.steps(ROUNDS)):
            model = ("base", *ADAPTERS)[(number + turn) % 3]
            prompt = f"{number}.{turn} {PROMPTS[(number + turn) % len(PROMPTS)]}"
            count += server.ask(connection, model, prompt, tokens)[1]
        return count

    with serving(place.chat_model) as server, ThreadPoolExecutor(clients) as pool:
        server.ask(server.connect(), "base", "a", 1)  # reads the weights
        start = time.perf_counter()
        count = sum(pool.map(client, range(clients)))
        seconds = time.perf_counter() - start
    return {"clients": clients, "tokens": count, "seconds_s": seconds, "tokens_per_s": count / seconds}


def _many(place: Place) -> Row:
    """Answers that were lost or another request's, and the most memory, of a thousand requests within a budget."""
    count = 4 * CLIENTS if place.tiny else REQUESTS
    asked = [(("base", *ADAPTERS)[number % 3], PROMPTS[number % len(PROMPTS)]) for number in range(count)]
    parts = [asked[number::CLIENTS] for number in range(CLIENTS)]

    def client(part: Sequence[tuple[str, str]]) -> list[str]:
        connection = server.connect()
        return [server.ask(connection, model, prompt, SHORT)[0] for model, prompt in part]

    options = ("--memory", BUDGET, "--context", "512", "--compute", "fp32", "--decode", "exact")
    with serving(place.chat_model, *options) as server, _Watch(server) as watch:
        alone = server.connect()
        expected = {each: server.ask(alone, *each, SHORT)[0] for each in dict.fromkeys(asked)}
        start = time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(client, parts))
        seconds = time.perf_counter() - start
    found = [
        (each, text) for part, texts in zip(parts, answers, strict=True) for each, text in zip(part, texts, strict=True)
    ]
    wrong = [(each, text) for each, text in found if text != expected[each]]
    return {
        "clients": CLIENTS,
        "requests": count,
        "lost": count - sum(map(len, answers)),
        "different": len(wrong),
        "of_another_request": sum(text in expected.values() for _, text in wrong),
        "different_texts": len({*expected.values()}),
        "seconds_s": seconds,
        "budget_mb": int(BUDGET.removesuffix("MB")),
        "peak_mb": watch.most / 1e6,
    }


class _Watch:
    """Looks at the memory of a server and its children until the context ends."""

    def __init__(self, server: Server) -> None:
        self.most = 0
        self._server, self._ended = server, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ended.wait(0.1):
            self.most = max(self.most, tree_unshared_rss(self._server.process.pid))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()


def main() -> None:
    """Measure all rows, and print each as a line of JSON."""
    from benchmarks.place import Place

    with tempfile.TemporaryDirectory() as folder:
        for name, measure in rows(Place(Path(folder), print)).items():
            print(json.dumps({name: measure()}), flush=True)


if __name__ == "__main__":
    main()
