"""Operations on rows and columns of arrays (T, N)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from featherback.engine.backend.torch_device.arrays import put, row_numbers

Int32 = NDArray[np.int32]


def take_rows(x: Tensor, rows: NDArray[Any], out: Tensor) -> None:
    out.copy_(x[row_numbers(rows, x.device)])


def put_rows(values: Tensor, rows: NDArray[Any], x: Tensor) -> None:
    x.index_copy_(0, row_numbers(rows, x.device), values)


def zero_rows(x: Tensor, rows: NDArray[Any]) -> None:
    x.index_fill_(0, row_numbers(rows, x.device), 0)


def add_rows(values: Tensor, rows: Int32, out: Tensor, *, factors: Tensor | None = None) -> None:
    here = np.flatnonzero((rows >= 0) & (rows < len(out)))
    chosen = row_numbers(here, out.device)
    added = values[chosen] if factors is None else values[chosen] * factors[chosen, None]
    out.index_add_(0, row_numbers(rows[here], out.device), added)


def scale_rows(x: Tensor, factors: Tensor) -> None:
    x.mul_(factors[:, None])


def row_dots(x: Tensor, y: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    put(out, (x.float() * y).sum(1), accumulate)


def scale_columns(
    x: Tensor, factors: Tensor | None, out: Tensor, *, bias: Tensor | None = None, accumulate: bool = False
) -> None:
    values = x if factors is None else x * factors.reshape(-1)
    if bias is not None:
        values = values + bias.reshape(-1)
    put(out, values, accumulate)


def column_dots(
    x: Tensor, y: Tensor, out: Tensor, *, less: Tensor | None = None, over: Tensor | None = None
) -> None:  # fmt: skip
    y = y.float() if less is None else y - less.reshape(-1)
    found = (x.float() * y).sum(0)
    out.add_(found if over is None else found / over.reshape(-1))


def add_row_sums(x: Tensor, out: Tensor) -> None:
    out.add_(x.float().sum(1))


def gate(z: Tensor, x: Tensor | None, out: Tensor, form: str) -> None:
    share = torch.sigmoid(z.float())
    value = z * share if form == "silu" else share
    out.copy_(value if x is None else x * value)


def gate_backward(
    da: Tensor, z: Tensor, x: Tensor | None, dz: Tensor, dx: Tensor | None, form: str
) -> None:  # fmt: skip
    share, d = torch.sigmoid(z.float()), da.float()
    value, slope = share, share * (1 - share)
    if form == "silu":
        value, slope = z * share, share + z * slope
    of_z = d * slope if x is None else d * x * slope
    if dx is not None:  # before dz is written, because either may be da
        of_x = d * value
        dz.copy_(of_z)
        dx.copy_(of_x)
    else:
        dz.copy_(of_z)
