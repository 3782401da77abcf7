"""One token's matrix products, all layers and the head, with the operands decoding uses.

    python -m benchmarks.kernels.decode model.gguf [--threads 1] [--compute fp32]

With one thread it is CPU time. benchmarks/against_llama_cpp.py measures whole tokens.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from featherback.engine import kernels
from featherback.models.loader import load

MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compute", choices=list(kernels.OPERANDS), default="bf16")
    options = parser.parse_args()
    clock = time.process_time if options.threads == 1 else time.perf_counter
    kernels.set_threads(options.threads)

    model = load(options.model)
    layers = [model.layer(i) for i in range(model.config.num_hidden_layers)]
    stored = [getattr(layer, name) for layer in layers for name in MATRICES] + [model.head.weight]
    rng = np.random.default_rng(0)
    jobs = []
    for w in stored:
        x = np.empty((1, w.cols), kernels.OPERANDS[options.compute])
        kernels.cast(rng.standard_normal(x.shape).astype(np.float32), x)
        jobs.append((x, kernels.matrix(w), np.empty((1, w.rows), np.float32)))
    seconds = []
    for _ in range(40):
        start = clock()
        for x, w, out in jobs:
            kernels.linear(x, w, out)
        seconds.append(clock() - start)
    ours = sorted(seconds)[10]
    gigabytes = sum(w.nbytes for w in stored) / 1e9
    print(f"{kernels.describe()}: {ours * 1e3:.2f} ms per token, {gigabytes / ours:.1f} GB/s")


if __name__ == "__main__":
    main()
