"""Long contexts: peak memory, prefill and decoding of a synthetic Qwen2.5-0.5B, at several lengths.

    python -m benchmarks.contexts [--contexts 8192 32768 131072] [--memory 700MB] [--kv f32 q8_0] [--layers 24]
        [--prefill 2048] [--tokens 3] [--threads 2] [--dir FOLDER] [--llama]

Each row is a process of its own, and its memory is the peak of the whole process. Prefilling a whole long context takes
hours on a few cores, because attention grows with the square of the length. So the keys and values in front of the last
`--prefill` tokens are random numbers, written in the form in which a prefill would have left them. The last tokens then
pass in chunks over all of them, and `--tokens` more are decoded. With `--cold`, the cache's pages are dropped before
each decoded token, so that they come from the disk; the MB/s beside it are those of reading the same file in pieces.
Tokens and readings take turns, and "token / reading" is the median of the ratios of neighbours.

--serve: measure the scheduler of `featherback serve` instead, with four short requests in memory beside the long one.

--llama: also measure llama.cpp (pip install llama-cpp-python) with q8_0 keys and values and flash attention, from an
empty context: prefill of `--prefill` tokens. Ours is measured from an empty context as well.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.synthetic import write_synthetic
from featherback.core.cache import cache_folder

SHAPE = "qwen2.5-0.5b"


def peak_mb() -> float:
    """Return the peak RSS of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def ours(path: str, context: int, options: Any) -> dict[str, float]:
    """Measure this process."""
    from featherback import models
    from featherback.core.sizes import MB
    from featherback.engine import kernels
    from featherback.infer.cache import FileCache
    from featherback.runs.decoders import Within, open_decoder

    kernels.set_threads(options.threads)
    model = models.load(path)
    within = Within(int(options.memory * MB), folder=options.dir, whole=True, kv=options.kv[0])
    decoder = open_decoder(model, None, context, "bf16", within)
    past = max(0, context - options.prefill - options.tokens - 1)
    cache = decoder._passes._cache
    if isinstance(cache, FileCache):
        fill(cache, past)
    else:
        past = 0
    decoder.tokens = [1] * past
    decoder._stretched = [False for _ in model.rotaries]  # else the text would be computed again
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, options.prefill).tolist()
    began = time.perf_counter()
    decoder.forward(ids)
    prefill = len(ids) / (time.perf_counter() - began)
    decoder.forward([1])
    found = {"prefill": prefill, "peak": peak_mb()}  # before this program takes memory for its own readings
    times, reads = [], []
    for _ in range(options.tokens):
        if isinstance(cache, FileCache):
            if options.cold:
                drop(cache)
            reads.append(read_all(cache, len(decoder.tokens)))
            if options.cold:
                drop(cache)
        began = time.perf_counter()
        decoder.forward([1])
        times.append(time.perf_counter() - began)
    found["token"] = min(times)
    if isinstance(cache, FileCache):
        size = sum(keys.form.nbytes(len(decoder.tokens)) for keys in keys_of(cache))
        found |= {"cache": size / 1e6, "bandwidth": size / 1e6 / min(reads)}
        found |= {"ratio": median(token / read for token, read in zip(times, reads))}
    decoder.close()
    return found


def served(path: str, context: int, options: Any) -> dict[str, float]:
    """Measure this process with the requests of a server: a long one in a file, and short ones in memory."""
    from featherback import models
    from featherback.core.sizes import MB
    from featherback.engine import kernels
    from featherback.infer.batching import Request
    from featherback.infer.sampler import Sampler
    from featherback.infer.scheduler import Scheduler
    from featherback.runs.decoders import Within, open_batcher

    kernels.set_threads(options.threads)
    model = models.load(path)
    within = Within(int(options.memory * MB), folder=options.dir, whole=True, kv=options.kv[0])
    past, file_bytes, start = context - options.prefill - options.tokens, list[int](), Scheduler._start

    def filled(self: Scheduler) -> None:
        for each in self._running:
            if not each.started and len(each.tokens) > past:
                fill(each.cache, past)
                each.done, each.started = past, True
                file_bytes.append(each.cache.file_bytes)
        start(self)

    Scheduler._start = filled  # type: ignore[method-assign]
    batcher = open_batcher(model, context, "bf16", within)
    rng = np.random.default_rng(0)

    def request(length: int, tokens: int) -> Request:
        return Request(rng.integers(0, model.config.vocab_size, length).tolist(), Sampler(), tokens)

    tickets = [batcher.submit(request(16, 16)) for _ in range(4)]
    began = time.perf_counter()
    answer = iter(batcher.submit(request(context - options.tokens, options.tokens)))
    next(answer)
    prefill = options.prefill / (time.perf_counter() - began)
    began = time.perf_counter()
    for each in (answer, *tickets):
        list(each)
    token = (time.perf_counter() - began) / max(1, options.tokens - 1)
    batcher.close()
    return {"prefill": prefill, "token": token, "peak": peak_mb(), "cache": max(file_bytes) / 1e6}


def keys_of(cache: Any) -> list[Any]:
    """Return the stored keys and values of all layers."""
    layers = getattr(cache, "layers", None) or cache._layers
    return [each.keys for layer in layers for each in layer if each.keys is not None]


def fill(cache: Any, tokens: int) -> None:
    """Write random keys and values of so many tokens in front of the text: one random segment again and again."""
    from featherback.engine import kernels

    for keys in keys_of(cache):
        form = keys.form
        random = np.random.default_rng(0)
        rows = [random.normal(0, 1, (128, form.heads * form.size)).astype(np.float32) for _ in "kv"]
        segment = np.zeros(form.segment_bytes, np.uint8)
        kernels.cache_rows(*rows, 0, segment, int(form.type), form.heads)
        for at in range(0, tokens, 128):
            keys._file.write(segment, keys._offset + form.nbytes(at))


def drop(cache: Any) -> None:
    """Drop the file's pages from the page cache."""
    file = cache._file._file.fileno()
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def read_all(cache: Any, tokens: int) -> float:
    """Return the seconds of reading all keys and values, piece by piece, without computing."""
    began = time.perf_counter()
    for keys in keys_of(cache):
        room = np.empty(keys.form.nbytes(keys.form.piece), np.uint8)
        for start, stop in keys._parts(0, tokens):
            keys._file.read(room[: keys.form.nbytes(stop - start)], keys._offset + keys.form.nbytes(start))
    return time.perf_counter() - began


def llama(path: str, options: Any) -> dict[str, float]:
    """Measure llama.cpp's prefill from an empty context."""
    from llama_cpp import Llama

    model = Llama(
        path, n_ctx=options.prefill + 64, n_threads=options.threads, n_threads_batch=options.threads, n_batch=512,
        type_k=8, type_v=8, flash_attn=True, kv_overrides={"tokenizer.ggml.model": "none"}, verbose=False,
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(0, 1000, options.prefill).tolist()
    began = time.perf_counter()
    model.eval(ids)
    return {"prefill": len(ids) / (time.perf_counter() - began), "peak": peak_mb()}


def main() -> None:
    """Measure in processes and print a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--contexts", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--memory", type=float, default=700, help="budget in MB")
    parser.add_argument("--kv", nargs="+", default=["f32", "q8_0"])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=cache_folder() / "bench")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    path = options.dir / f"contexts-{options.layers}.gguf"
    if options.inside:
        context, who = options.inside.split(",")
        found = {"llama": lambda *_: llama(str(path), options), "ours": ours, "served": served}[who](
            str(path), int(context), options
        )
        sys.stdout.write(json.dumps(found))
        return
    if not path.exists():
        write_synthetic(path, SHAPE, num_hidden_layers=options.layers, max_position_embeddings=1 << 20)
    print("| | context | prefill tokens/s | ms a token | cache MB | MB/s read | token / reading | peak RSS MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kv in options.kv:
        for context in options.contexts:
            one = inside(path, f"{context},{'served' if options.serve else 'ours'}", ["--kv", kv])
            print(
                f"| {kv} | {context} | {one['prefill']:.1f} | {1000 * one['token']:.0f} | {one.get('cache', 0):.0f} | "
                f"{one.get('bandwidth', 0):.0f} | {one.get('ratio', 0):.2f} | {one['peak']:.1f} |",
                flush=True,
            )
    if options.llama:
        for name, found in (
            ("Featherback, q8_0, empty context", inside(path, f"{options.prefill + 64},ours", ["--kv", "q8_0"])),
            ("llama.cpp, q8_0, empty context", inside(path, "0,llama", [])),
        ):
            print(f"| {name} | {options.prefill} | {found['prefill']:.1f} | | | | | {found['peak']:.1f} |", flush=True)


def inside(path: Path, row: str, more: list[str]) -> dict[str, float]:
    """Run one row in a new process."""
    command = [sys.executable, "-m", "benchmarks.contexts", *sys.argv[1:], *more, "--inside", row]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
