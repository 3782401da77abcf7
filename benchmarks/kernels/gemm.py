"""The kernel ladder: each tensor type's product against PyTorch's on the same machine, in one run.

    python -m benchmarks.kernels.gemm [--tokens 256] [--types Q4_0,Q6_K] [--shapes 896x896] [--threads 1]

FEATHERBACK_KERNELS=avx2 with ONEDNN_MAX_CPU_ISA=AVX2 and MKL_ENABLE_INSTRUCTIONS=AVX2 compares the AVX2 sets.

Prints the rival's GFLOP/s and our rate as a multiple of it, forward (x W^T) and backward (dy W). The rival
multiplies weights that are dequantised already, in bf16 (oneDNN) or, for the fp32 kernels, in fp32 (MKL where
PyTorch has it). Calls alternate; with one thread the clock is that thread's CPU time, so that a busy machine
disturbs little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from featherback.engine import kernels
from featherback.engine.formats.types import TensorType

SHAPES = "896x896,128x896,4864x896,896x4864,2048x2048,256x2048,11008x2048,2048x11008"  # Qwen2.5 0.5B and 3B
TYPES = "Q4_0,Q4_1,Q8_0,Q5_0,Q4_K,Q6_K"


def quartiles(clock: Callable[[], float], calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """The lower quartile of each call's seconds; the calls take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for call, taken in zip(calls, seconds, strict=True):
            start = clock()
            call()
            if turn:  # the first round warms up
                taken.append(clock() - start)
    return [sorted(taken)[len(taken) // 4] for taken in seconds]


def compare(rows: int, columns: int, tokens: int, types: Sequence[str], threads: int = 1) -> dict[str, Any]:
    """One shape of weights: GFLOP/s of PyTorch, and type -> our rate divided by PyTorch's, forward and backward."""
    torch.set_num_threads(threads)
    kernels.set_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    bf16 = kernels.current() in ("avx512bf16", "neon_bf16")
    rng = np.random.default_rng(0)

    def operand(columns: int) -> np.ndarray:
        x = rng.standard_normal((tokens, columns)).astype(np.float32)
        return (x.view(np.uint32) >> 16).astype(np.uint16) if bf16 else x

    work = 2e-9 * tokens * rows * columns
    x, dy = operand(columns), operand(rows)
    out, dx = np.empty((tokens, rows), np.float32), np.empty((tokens, columns), np.float32)
    dtype = torch.bfloat16 if bf16 else torch.float32
    a, d = torch.randn(tokens, columns, dtype=dtype), torch.randn(tokens, rows, dtype=dtype)
    dense = torch.randn(rows, columns, dtype=dtype)
    ratios: dict[str, list[float]] = {}
    rates = (0.0, 0.0)
    for name in types:
        type = TensorType[name]
        if columns % type.block_size:
            continue
        data = rng.integers(0, 64, rows * type.row_bytes(columns), dtype=np.uint8)
        w = kernels.Matrix(data, int(type), rows, columns)
        calls = [
            partial(torch.nn.functional.linear, a, dense),
            partial(torch.matmul, d, dense),
            partial(kernels.linear, x, w, out),
            partial(kernels.linear_backward, dy, w, dx),
        ]
        with torch.no_grad():
            rival, rival_back, ours, ours_back = quartiles(clock, calls, max(7, min(41, int(10 / work))))
        ratios[name] = [round(rival / ours, 3), round(rival_back / ours_back, 3)]
        rates = (work / rival, work / rival_back)
    return {
        "tokens": tokens,
        "operands": "bf16" if bf16 else "fp32",
        "rival_gflops": [round(rate) for rate in rates],
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print(f"{kernels.describe()}; {options.tokens} tokens")
    ratios = []
    for shape in options.shapes.split(","):
        rows, columns = map(int, shape.split("x"))
        found = compare(rows, columns, options.tokens, options.types.split(","), options.threads)
        cells = [f"{name} {forward:.2f} {backward:.2f}" for name, (forward, backward) in found["ratios"].items()]
        ratios += [ratio for pair in found["ratios"].values() for ratio in pair]
        print(f"{shape}: rival {' '.join(map(str, found['rival_gflops']))} | " + "; ".join(cells), flush=True)
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
