"""Write csrc/quant/grids.h: the points that the lookup types of GGML hold, as the `gguf` package knows them.

    python tools/grids.py > csrc/quant/grids.h

A grid's entries are points of a small cube, in increasing order of their digits (the first is the least). One bit for
each point of the cube says whether it is in the grid.
"""

from __future__ import annotations

import numpy as np
from gguf import quants

GRIDS = ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
LINE = 104
HEADER = """\
// Written by tools/grids.py. The points of the lookup types' grids: bit i of hexadecimal digit n is set if point
// 4 n + i of the cube is in the grid.
#pragma once

namespace fb::FB_SET::formats {
"""


def points(name: str) -> tuple[int, list[int]]:
    """The size of the cube, and the numbers of the points in the grid."""
    form = getattr(quants, name)
    form.init_grid()
    count, digits = form.grid_shape
    values = list(form.grid_map)
    grid = np.asarray(form.grid).reshape(count, digits)
    codes = np.vectorize(values.index)(grid)
    numbers = codes @ len(values) ** np.arange(digits)
    if not (np.diff(numbers) > 0).all():
        raise ValueError(f"the grid of {name} is not in order")
    return len(values) ** digits, numbers.tolist()


def main() -> None:
    print(HEADER, end="")
    for name in GRIDS:
        size, numbers = points(name)
        bits = np.zeros(-(-size // 4) * 4, np.uint8)
        bits[numbers] = 1
        text = "".join(f"{digit:x}" for digit in bits.reshape(-1, 4) @ (1, 2, 4, 8))
        lines = [text[start : start + LINE] for start in range(0, len(text), LINE)]
        print(f"\ninline constexpr char k{name}Points[] =")
        print("\n".join(f'    "{line}"' for line in lines) + ";")
    print("\n}  // namespace fb::FB_SET::formats")


if __name__ == "__main__":
    main()
