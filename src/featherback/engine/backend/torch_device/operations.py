"""The operations of the device. `engine.backend.protocol` documents them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from featherback.core.noise import normal
from featherback.engine.backend import levels
from featherback.engine.backend.torch_device import attention, products, units
from featherback.engine.backend.torch_device.arrays import Array, fused, on_tensors, row_numbers
from featherback.engine.backend.torch_device.weights import Dense

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


def cross_entropy_tile(
    logits: Tensor, first: int, targets: Int32, reference: Tensor, sum: Tensor, target_logit: Tensor,
    p: Tensor | None = None, dh: Tensor | None = None, *, softcap: float = 0.0,
) -> None:  # fmt: skip
    """`sum` and `reference` do not include the target's own term."""
    capped = softcap * torch.tanh(logits / softcap) if softcap else logits.clone()
    here = (targets >= first) & (targets < first + logits.shape[1])
    at = row_numbers(np.flatnonzero(here), logits.device), row_numbers(targets[here] - first, logits.device)
    target_logit[at[0]] = capped[at]
    capped[at] = capped.new_full((), -torch.inf)
    top = torch.maximum(reference, capped.amax(1))
    shrunk = torch.where(reference.isneginf(), 0.0, torch.exp(reference - top))
    exponentials = torch.exp(capped - top[:, None])
    sum.mul_(shrunk).add_(exponentials.sum(1))
    reference.copy_(top)
    if p is not None and dh is not None:
        dh.mul_(shrunk[:, None])
        slope = (1 - (capped / softcap) ** 2).masked_fill_(capped.isneginf(), 0) if softcap else 1
        p.copy_(exponentials * slope)


def cross_entropy_finish(
    reference: Tensor, sum: Tensor, target_logit: Tensor, loss: Tensor, target_rows: Tensor | None = None,
    dh: Tensor | None = None, scale: float = 1.0, *, softcap: float = 0.0,
) -> None:  # fmt: skip
    gap = target_logit.double() - reference
    others, target = sum * torch.exp(-gap.clamp(min=0)), torch.exp(gap.clamp(max=0))
    total = others + target
    loss.copy_(torch.where(gap > 0, torch.log1p(others), torch.log(total) - gap))
    if dh is not None and target_rows is not None:
        slope = 1 - (target_logit.double() / softcap) ** 2 if softcap else 1
        share, miss = (torch.exp(-gap.clamp(min=0)) / total).float(), (others / total * slope).float()
        dh.copy_(scale * (dh * share[:, None] - miss[:, None] * target_rows))


def softmax_shares(
    reference: Tensor, sum: Tensor, target_logit: Tensor, scale: float, shares: Tensor, pulls: Tensor, *,
    softcap: float = 0.0,
) -> None:  # fmt: skip
    gap = target_logit.double() - reference
    below = torch.exp(-gap.clamp(min=0))
    shares.copy_(scale * below / (sum * below + torch.exp(gap.clamp(max=0))))
    pulls.copy_(-sum if not softcap else -sum * (1 - (target_logit / softcap) ** 2))


def scale_columns(
    x: Tensor, factors: Tensor | None, out: Tensor, *, bias: Tensor | None = None, accumulate: bool = False
) -> None:
    values = x if factors is None else x * factors
    if bias is not None:
        values = values + bias.reshape(-1)
    if accumulate:
        out.add_(values)
    else:
        out.copy_(values)


def adamw(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, step: int, grad_scale: float,
) -> None:  # fmt: skip
    g = g * grad_scale
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    change = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)
    p.sub_(lr * (change + weight_decay * p))


def add_normal(key: tuple[int, ...], factor: float, out: Tensor, *, weights: Tensor | None = None) -> None:
    drawn = torch.as_tensor(np.asarray(normal(key, out.numel())), device=out.device).view(out.shape)
    out.add_(factor * drawn if weights is None else factor * drawn * weights)


def _on_host(operation: Callable[..., None]) -> Callable[..., None]:
    """Run an operation on copies of the arrays in the host's memory."""

    def run(*arguments: Any) -> None:
        copies = [each.cpu().numpy() if isinstance(each, Tensor) else each for each in arguments]
        operation(*copies)
        for each, values in zip(arguments, copies, strict=True):
            if isinstance(each, Tensor):
                each.copy_(torch.from_numpy(values))

    return run


def _fused(name: str) -> Any:
    """Run an operation of `units`, or on a GPU the kernel of that name in `fused_units`."""
    plain = getattr(units, name)

    def run(x: Tensor, *arguments: Any, **options: Any) -> None:
        operation = getattr(fused("units"), name) if x.is_cuda else plain
        operation(x, *arguments, **options)

    return on_tensors(run)


def _elementwise(function: Callable[[Any, Any], Tensor]) -> Any:
    return on_tensors(lambda x, y, out: out.copy_(function(x, y)))


class Operations:
    """What dense models, LoRA and the optimisers of its values need. Others end in an AttributeError."""

    linear, linear_backward = on_tensors(products.linear), on_tensors(products.linear_backward)
    dequantize = on_tensors(products.dequantize)
    lora_in, lora_gradient = on_tensors(products.lora_in), on_tensors(products.lora_gradient)
    lora_in_parts, lora_out_parts = on_tensors(products.lora_in_parts), on_tensors(products.lora_out_parts)
    rms_norm, rms_norm_backward = _fused("rms_norm"), _fused("rms_norm_backward")
    layer_norm, layer_norm_backward = on_tensors(units.layer_norm), on_tensors(units.layer_norm_backward)
    rope, rotary_table = _fused("rope"), on_tensors(units.rotary_table)
    glu, glu_backward = _fused("glu"), _fused("glu_backward")
    cache_rows, cached_attention = on_tensors(attention.cache_rows), on_tensors(attention.cached_attention)
    attention_backward, attention = on_tensors(attention.attention_backward), on_tensors(attention.attention)
    cross_entropy_tile, cross_entropy_finish = on_tensors(cross_entropy_tile), on_tensors(cross_entropy_finish)
    softmax_shares = on_tensors(softmax_shares)
    take_rows, put_rows = on_tensors(take_rows), on_tensors(put_rows)
    zero_rows, add_rows = on_tensors(zero_rows), on_tensors(add_rows)
    scale_columns, adamw, add_normal = on_tensors(scale_columns), on_tensors(adamw), on_tensors(add_normal)
    cast = on_tensors(lambda x, out: out.copy_(x))
    fill, scale = on_tensors(lambda out, value: out.fill_(value)), on_tensors(lambda out, factor: out.mul_(factor))
    total = on_tensors(lambda x: float(x.double().sum()))
    sum_squares = on_tensors(lambda x: float(x.double().square().sum()))
    add, subtract = _elementwise(lambda x, y: x + y), _elementwise(lambda x, y: x - y)
    multiply, divide = _elementwise(lambda x, y: x * y), _elementwise(lambda x, y: x / y)
    sqrt, sign = on_tensors(lambda x, out: out.copy_(x.sqrt())), on_tensors(lambda x, out: out.copy_(x.sign()))
    clip = on_tensors(lambda x, least, most, out: out.copy_(x.clamp(least, most)))
    matmul = on_tensors(lambda x, y, out: out.copy_(x @ y))
    pack, unpack = on_tensors(_on_host(levels.pack)), on_tensors(_on_host(levels.unpack))

    @staticmethod
    def dense(matrix: Array) -> Dense:
        """Return a contiguous array (rows, cols), float32 or bf16, as a weight."""
        return Dense(matrix.tensor)
