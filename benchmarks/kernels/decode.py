"""One token's matrix products, all layers and the head; and llama.cpp's token on the file, if installed.

    python benchmarks/kernels/decode.py model.gguf [--threads 1]

With one thread both are CPU time. For llama.cpp a file without a vocabulary must say so
(`tokenizer.ggml.model` = "none").
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from featherback import kernels
from featherback.models.loader import load

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    clock = time.process_time if options.threads == 1 else time.perf_counter
    kernels.set_threads(options.threads)

    model = load(options.model)
    layers = [model.layer(i) for i in range(model.config.num_hidden_layers)]
    stored = [getattr(layer, name) for layer in layers for name in MATRICES] + [model.lm_head]
    rng = np.random.default_rng(0)
    jobs = [
        (
            rng.standard_normal((1, w.cols)).astype(np.float32),
            kernels.matrix(w),
            np.empty((1, w.rows), np.float32),
        )
        for w in stored
    ]
    seconds = []
    for _ in range(40):
        start = clock()
        for x, w, out in jobs:
            kernels.linear(x, w, out)
        seconds.append(clock() - start)
    ours = sorted(seconds)[10]
    gigabytes = sum(w.nbytes for w in stored) / 1e9
    print(f"{kernels.describe()}: {ours * 1e3:.2f} ms a token, {gigabytes / ours:.1f} GB/s")

    try:
        import llama_cpp
    except ImportError:
        return
    rival = llama_cpp.Llama(
        str(options.model),
        n_ctx=512,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        verbose=False,
    )
    rival.eval(list(range(5, 25)))
    seconds = []
    for token in range(64):
        start = clock()
        rival.eval([30 + token])
        seconds.append(clock() - start)
    theirs = sorted(seconds)[16]
    print(f"llama.cpp: {theirs * 1e3:.2f} ms a token; ours is {theirs / ours:.2f} times its rate")


if __name__ == "__main__":
    main()
