"""Our products of 4-bit weights beside oneDNN's of dequantised bf16 weights, on one thread."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import watch

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

TOKENS = 256
SHAPES = ((4864, 896), (896, 4864), (11008, 2048), (2048, 11008))  # the MLPs of Qwen2.5 0.5B and 3B
TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each shape (rows x columns of the weight)."""
    return {f"{rows}x{columns}": partial(_row, rows, columns, place) for rows, columns in SHAPES}


def _row(rows: int, columns: int, place: Place) -> Row:
    request = {"rows": rows, "columns": columns, "tokens": place.tokens(TOKENS), "types": TYPES, "threads": 1}
    outcome = watch.run([sys.executable, "-m", "benchmarks.products", json.dumps(request)], interval=watch.RARELY)
    found: Row = json.loads(outcome.output.splitlines()[-1])
    return found


def main(request: dict[str, Any]) -> Row:
    """GFLOP/s of oneDNN, and for each type our rate divided by oneDNN's, forward and backward."""
    from benchmarks.kernels.gemm import compare

    return compare(**request)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
