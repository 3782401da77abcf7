"""`python -m benchmarks.onednn JSON`: our products and oneDNN's (through torch), in turn, in one process.

oneDNN gets its best case: bf16 weights, dequantised beforehand. Ours unpack the stored weights in the product.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.random_blocks import random_blocks
from featherback.engine import kernels
from featherback.engine.formats.types import TensorType

ROUNDS = 7
REPEATS = 3  # in a row, of which the best counts: the threads are awake then
REST = 0.02  # seconds; the threads of a library spin for a while after its last call, on the other's cores


def main(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Keys: shapes (a list of (rows, cols)), tokens, types (names; empty: oneDNN alone), threads.

    A line per shape and type: median seconds of each orientation, theirs and ours, and the median of their ratios.
    """
    import torch

    torch.set_num_threads(request["threads"])
    kernels.set_threads(request["threads"])
    rng = np.random.default_rng(0)
    lines = []
    for rows, cols in request["shapes"]:
        t = request["tokens"]
        a, w, d = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((t, cols), (rows, cols), (t, rows)))
        x, dy = (rng.integers(0x3F00, 0x3FFF, shape, dtype=np.uint16) for shape in ((t, cols), (t, rows)))
        out, dx = np.empty((t, rows), np.float32), np.empty((t, cols), np.float32)
        for name in request["types"] or [None]:
            forward: list[Callable[[], object]] = [lambda a=a, w=w: torch.nn.functional.linear(a, w)]  # type: ignore[misc]
            backward: list[Callable[[], object]] = [lambda d=d, w=w: d @ w]  # type: ignore[misc]
            if name is not None:
                kind = TensorType[name]
                if cols % kind.block_size:
                    continue
                data = random_blocks(rng, kind, rows * cols // kind.block_size, 0.02)
                matrix = kernels.Matrix(data, int(kind), rows, cols)
                forward.append(lambda m=matrix, x=x, out=out: kernels.linear(x, m, out))  # type: ignore[misc]
                backward.append(lambda m=matrix, dy=dy, dx=dx: kernels.linear_backward(dy, m, dx))  # type: ignore[misc]
            with torch.no_grad():
                line = {"rows": rows, "cols": cols, "type": name}
                line |= {"forward": _in_turn(forward), "backward": _in_turn(backward)}
            lines.append(line)
    return lines


def _in_turn(calls: list[Callable[[], object]]) -> dict[str, Any]:
    """Median seconds of each call, run in turn, and the median of first / second."""
    seconds = []
    for _ in range(ROUNDS):
        row = []
        for call in calls:
            time.sleep(REST)
            call()
            row.append(min(_timed(call) for _ in range(REPEATS)))
        seconds.append(row)
    found: dict[str, Any] = {"onednn": median(row[0] for row in seconds)}
    if len(calls) > 1:
        found |= {"ours": median(row[1] for row in seconds), "ratio": median(row[0] / row[1] for row in seconds)}
    return found


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
