"""Caches in files, through the whole server process: long texts within a budget, and prefixes after a restart."""

from __future__ import annotations

import threading
from pathlib import Path

from featherback.core.sizes import MB
from featherback.engine import kernels
from featherback.infer.cache import cache_bytes
from featherback.models import load
from tests.support.tiny_chat import CONTROL, byte_level_metadata
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny
from tests.web.conftest import Files
from tests.web.serving import Running, least_memory, serving
from tests.web.test_many import Watch

LONG = 6_000


def _text(server: Running, prompt: str, tokens: int = 8) -> str:
    status, answer = server.ask("/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0})
    assert status == 200, answer
    text: str = answer["choices"][0]["text"]
    return text


def test_a_text_that_does_not_fit_in_the_budget(tmp_path: Path) -> None:
    """It is answered beside short ones, as without a budget, and the budget holds."""
    config = tiny(TINY_LLAMA, vocab_size=256 + len(CONTROL), num_hidden_layers=4, max_position_embeddings=1 << 20)
    model = write_tiny(tmp_path / "long.gguf", config, metadata=byte_level_metadata())
    options = ("--context", 1 << 20, "--compute", "fp32", "--decode", "exact")
    budget = least_memory(model, *options) + 2 * MB
    long = "".join(chr(97 + number % 26) for number in range(LONG))
    assert cache_bytes(load(model).blocks, LONG, "f32") > 3 * (budget - least_memory(model, "--context", 256)) > 0
    with serving(model, *options) as server:
        expected = {text: _text(server, text) for text in (long, "a", "b")}
    with serving(model, *options, "--memory", f"{budget // MB}MB") as server, Watch(server).watching() as watch:
        found = dict[str, str]()
        thread = threading.Thread(target=lambda: found.update({long: _text(server, long)}))
        thread.start()
        for text in ("a", "b"):
            found[text] = _text(server, text)
        thread.join()
        assert found == expected
        assert watch.most <= budget


def test_a_prefix_after_a_restart(files: Files, tmp_path: Path) -> None:
    prompt = "It was a dark and stormy night. " * 10
    question = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
    options = ("--prefix-cache", tmp_path, "--prefix-cache-size", "50MB", "--context", 400)
    found = []
    for _ in range(2):
        with serving(files.model, *options) as server:
            status, answer = server.ask("/completions", question)
            assert status == 200
            found.append((answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]))
            assert server.end() == 0
            assert "prefix" not in server.errors
    assert [cached for _, cached in found] == [0, len(prompt) // kernels.SEGMENT * kernels.SEGMENT]
    assert found[0][0] == found[1][0]
