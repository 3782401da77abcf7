"""Prefill and decoding beside llama.cpp's on the same files: `make bench-llama`, or with llama-cpp-python installed

    python -m benchmarks.against_llama_cpp [--threads 1 2] [--rounds 9] [--cpu-time] [--prefill 256 1024]
        [--files model.gguf ... | --types q4_k iq3_s ...] [--decode exact fast]

Without --files: SmolLM2-135M (`featherback fetch smollm2-135m`) and a synthetic Qwen2.5-0.5B in Q4_0. --types makes a
synthetic model of each, whose rows fill blocks of 256: six layers of Qwen2.5-1.5B and 32,768 tokens. Each side has
its own process, which sleeps while the other is measured. The sides take turns, and a ratio compares two neighbours in
time. --decode names our ways of decoding; each is compared with llama.cpp. Tokens are random, both sides pick the
likeliest next one, and llama.cpp is driven through its C functions, so that its Python wrapper costs it nothing. Prints
a Markdown table: medians, the ratio's being the median of ratios.

--cpu-time counts the seconds of the processor instead of the clock's, for one thread on a machine that others use.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError
from featherback.infer.layout import DECODE, FAST

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row
    from featherback.engine.formats.types import TensorType

SHAPES = "qwen2.5-0.5b"
CONTEXT, PROMPT, ANSWER = 1100, 32, 64
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS")
TYPED = {"name": "qwen2.5-1.5b", "num_hidden_layers": 6, "vocab_size": 32_768}


class Featherback:
    """Our decoder."""

    def __init__(self, path: str, threads: int, compute: str, decode: str = "exact") -> None:
        from featherback import models
        from featherback.engine import kernels
        from featherback.infer.decoder import Decoder
        from featherback.infer.layout import Layout

        kernels.set_threads(threads)
        model = models.load(path)
        self.vocabulary = model.config.vocab_size
        self._decoder = Decoder(model, None, CONTEXT, compute, Layout(decode=decode))

    def clear(self) -> None:
        self._decoder.rewind(0)

    def next_token(self, tokens: list[int]) -> int:
        """The likeliest token after `tokens`, which join the cache."""
        return int(np.argmax(self._decoder.forward(tokens)))


class LlamaCpp:
    """llama.cpp's context, with the settings its own clients start with."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self._api = llama_cpp
        self._model = llama_cpp.Llama(
            path,
            n_ctx=CONTEXT,
            n_batch=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            kv_overrides=None if _has_vocabulary(path) else {"tokenizer.ggml.model": "none"},
            verbose=False,
        )
        self._context = self._model.ctx
        self.vocabulary = self._model.n_vocab()

    def clear(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)

    def next_token(self, tokens: list[int]) -> int:
        """The likeliest token after `tokens`, which join the cache."""
        return int(np.argmax(self.logits(tokens)))

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """The logits (V,) after `tokens`, which join the cache; valid until the next call."""
        ids = (self._api.llama_token * len(tokens))(*tokens)
        if self._api.llama_decode(self._context, self._api.llama_batch_get_one(ids, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = self._api.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self.vocabulary,))


SIDES: dict[str, Callable[..., Any]] = {"featherback": Featherback, "llama.cpp": LlamaCpp}


def _has_vocabulary(path: str) -> bool:
    from featherback.engine.formats.gguf import GGUFFile

    return "tokenizer.ggml.model" in GGUFFile(path).metadata


def serve(pipe: Connection, side: str, arguments: tuple[Any, ...], cpu_time: bool) -> None:
    """Measure one thing per message: the tokens per second of a prefill of n tokens, or with n = 0 of decoding."""
    clock = time.process_time if cpu_time else time.perf_counter
    runner, rng = SIDES[side](*arguments), np.random.default_rng(0)
    while (count := pipe.recv()) is not None:
        runner.clear()
        prompt = rng.integers(0, runner.vocabulary, count or PROMPT).tolist()
        if count:
            start = clock()
            runner.next_token(prompt)
        else:
            token = runner.next_token(prompt)
            start = clock()
            for _ in range(ANSWER):
                token = runner.next_token([token])
        pipe.send((count or ANSWER) / (clock() - start))


def compare(
    path: Path, threads: int, compute: str, rounds: int, cpu_time: bool, prefills: list[int], decode: str = "exact"
) -> list[dict[str, Any]]:
    """Rates of both sides on one file, and their ratios, for every prefill and for decoding."""
    spawn, pipes, workers = multiprocessing.get_context("spawn"), {}, []
    for side in SIDES:
        arguments = (str(path), threads, compute, decode) if side == "featherback" else (str(path), threads)
        pipes[side], theirs = spawn.Pipe()
        workers.append(spawn.Process(target=serve, args=(theirs, side, arguments, cpu_time), daemon=True))
        workers[-1].start()
        theirs.close()
    found = []
    for count in (*prefills, 0):
        rates: dict[str, list[float]] = {side: [] for side in SIDES}
        for turn in range(rounds + 1):  # the first one warms up
            for side in SIDES if turn % 2 else reversed(SIDES):
                pipes[side].send(count)
                rates[side].append(pipes[side].recv())
        ours, theirs_ = (rates[side][1:] for side in SIDES)
        ratio = median(a / b for a, b in zip(ours, theirs_))
        what = f"prefill, {count} tokens" if count else f"decoding ({decode}), {ANSWER} tokens after {PROMPT}"
        found.append({"what": what, "ours": median(ours), "theirs": median(theirs_), "ratio": ratio})
    for pipe in pipes.values():
        pipe.send(None)
    for worker in workers:
        worker.join()
    return found


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """SmolLM2-135M and a synthetic 0.5B on both cores: prefill, and decoding one token after another.

    Then decoding with weights of each common type.
    """
    whole = {"smollm2-135m": lambda: row(fetch_path(), place), "0.5b": lambda: row(place.synthetic(SHAPES), place)}
    return whole | {name: partial(row_of_type, name, place) for name in TYPES}


def fetch_path() -> Path:
    from featherback.models.hub.fetch import fetch

    return fetch("smollm2-135m")


def row(path: Path, place: Place, prefills: Sequence[int] = (256, 1024)) -> Row:
    """Medians in tokens per second; the ratio is ours divided by llama.cpp's."""
    try:
        import llama_cpp
    except ImportError as error:
        raise FeatherbackError("this needs llama-cpp-python: run `make bench-llama`") from error
    found: Row = {"llama_cpp_python": llama_cpp.__version__, "threads": os.cpu_count()}
    for decode in DECODE:
        prompts = [] if decode == FAST else list(prefills[:1] if place.tiny else prefills)  # fast changes no prompt
        lines = compare(path, os.cpu_count() or 1, "bf16", place.steps(5), False, prompts, decode)
        for name, line in zip([*(f"prefill{count}" for count in prompts), f"decoding_{decode}"], lines):
            found |= {f"{name}_{key}": round(line[key], 3) for key in ("ours", "theirs", "ratio")}
    return found


def row_of_type(name: str, place: Place) -> Row:
    """The row of a small model of one type."""
    from featherback.engine.formats.types import TensorType

    path = typed(place.folder, TensorType[name])
    try:
        return row(path, place, prefills=())
    finally:
        path.unlink()


def typed(folder: Path, kind: TensorType) -> Path:
    """A synthetic model with all matrices of one type."""
    from benchmarks.synthetic import write_synthetic

    return write_synthetic(folder / f"{kind.name.lower()}.gguf", tensor_type=kind, **TYPED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = parser.add_mutually_exclusive_group()
    models.add_argument("--files", type=Path, nargs="+", help="GGUF files; default: the two named above")
    models.add_argument("--types", nargs="+", help="GGUF types; a synthetic model of each is written")
    parser.add_argument(
        "--prefill", type=int, nargs="*", default=[256, 1024], help="lengths of prompts; none: only decoding"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compute", choices=("bf16", "fp32"), default="bf16", help="our operands")
    parser.add_argument("--decode", choices=DECODE, nargs="+", default=list(DECODE), help="our ways of decoding")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    try:
        import llama_cpp
    except ImportError:
        print("This needs llama-cpp-python: run `make bench-llama`, or pip install llama-cpp-python.", file=sys.stderr)
        return 2
    from benchmarks.markdown import number, table
    from benchmarks.synthetic import write_synthetic
    from featherback.engine.formats.types import TensorType
    from featherback.models.hub.fetch import fetch

    with tempfile.TemporaryDirectory() as place:
        if options.types:
            files = [typed(Path(place), TensorType[name.upper()]) for name in options.types]
        else:
            files = options.files or [
                fetch("smollm2-135m"),
                write_synthetic(Path(place) / "qwen2.5-0.5b-q4_0.gguf", "qwen2.5-0.5b"),
            ]
        rows = []
        how = (options.compute, options.rounds, options.cpu_time, options.prefill)
        for path in files:
            for threads, decode in product(options.threads, options.decode):
                for line in compare(path, threads, *how, decode):
                    print(json.dumps({"file": path.name, "threads": threads, **line}), file=sys.stderr, flush=True)
                    rates = [number(line[key], 1) for key in ("ours", "theirs")]
                    rows.append([path.stem, str(threads), line["what"], *rates, number(line["ratio"], 2)])
    seconds = "CPU time" if options.cpu_time else "wall clock"
    print(f"llama-cpp-python {llama_cpp.__version__}, {options.compute} operands, {seconds}, {os.uname().machine}\n")
    print(table(["model", "threads", "what", "Featherback tok/s", "llama.cpp tok/s", "ratio"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
