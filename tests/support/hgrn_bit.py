"""MatMul-free LM in PyTorch, written from the paper and from facts of its published code, and tiny folders of it.

Straight-through estimators are written as x + (rounded(x) - x).detach(), so that autograd differentiates them.

Rounding to codes is not continuous: a number near the border between two codes may become either, by the last bit of a
float32. So the reference takes over our code where its own number is within BORDER codes of a border, and where
our code is the other one beside that border. Everywhere else it uses its own. `Model.taken` counts what it took over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers import PretrainedConfig

from featherback.nn import bit_linear
from featherback.nn.bit_head import BitHead

BORDER = 2e-3
CONFIG: dict[str, Any] = {
    "model_type": "hgrn_bit",
    "architectures": ["HGRNBitForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_heads": 1,
    "expand_ratio": 1,
    "use_short_conv": False,
    "use_lower_bound": True,
    "hidden_ratio": 4,
    "intermediate_size": 150,  # no multiple of 32: down_proj is stored as F32
    "hidden_act": "swish",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-4,
    "tie_word_embeddings": False,
}
INNER_EPS = 1e-6

Codes = Callable[[bytes, Tensor], Tensor]
"""(key of an inner norm, rows that are rounded behind it) -> our codes of these rows, NaN for rows that we have not."""


def key_of(norm: Any) -> bytes:
    """Identify a layer by the weights of its inner norm, which are random."""
    return bytes(np.asarray(norm, np.float32).tobytes())


def rounded(x: Tensor, ours: Tensor | None = None) -> tuple[Tensor, int]:
    """Rows in 8-bit steps, and how many codes were taken over from `ours`, which has the shape of x."""
    scale = 127 / x.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1e-5)
    exact = x.detach() * scale
    codes = exact.round().clamp(-128, 127)
    taken = 0
    if ours is not None:
        near = ((exact - exact.floor() - 0.5).abs() < BORDER) & ((ours - exact).abs() < 0.5 + BORDER)
        taken = int((near & (ours != codes)).sum())
        codes = torch.where(near, ours, codes)
    return codes / scale, taken


class Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class TernaryLinear(nn.Linear):
    """A linear layer in the style of BitNet, with a norm of its own."""

    def __init__(self, inputs: int, outputs: int, model: Model) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.norm, self.of = Norm(inputs, INNER_EPS), [model]

    def forward(self, x: Tensor) -> Tensor:
        (model,), n = self.of, self.norm(x)
        q = n + (model.round(self.norm, n) - n).detach()
        d = self.weight.abs().mean().clamp(min=1e-5)
        w = self.weight + ((self.weight / d).round().clamp(-1, 1) * d - self.weight).detach()
        return linear(q, w)


class Mixer(nn.Module):
    def __init__(self, size: int, eps: float, model: Model) -> None:
        super().__init__()
        for name in "ifgo":
            setattr(self, f"{name}_proj", TernaryLinear(size, size, model))
        self.g_norm = Norm(size, eps)

    def forward(self, x: Tensor, bound: Tensor) -> Tensor:
        forget = bound + (1 - bound) * self.f_proj(x).sigmoid()
        new = silu(self.i_proj(x)) * (1 - forget)
        h, rows = torch.zeros_like(new[0]), []
        for t in range(len(x)):
            h = forget[t] * h + new[t]
            rows.append(h)
        out: Tensor = self.o_proj(self.g_norm(self.g_proj(x)) * silu(torch.stack(rows)))
        return out


class Gated(nn.Module):
    def __init__(self, size: int, width: int, model: Model) -> None:
        super().__init__()
        self.gate_proj = TernaryLinear(size, 2 * width, model)
        self.down_proj = TernaryLinear(width, size, model)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(silu(gate) * up)
        return out


class Layer(nn.Module):
    def __init__(self, c: Mapping[str, Any], model: Model) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = (Norm(c["hidden_size"], c["rms_norm_eps"]) for _ in range(2))
        self.attn = Mixer(c["hidden_size"], c["rms_norm_eps"], model)
        self.mlp = Gated(c["hidden_size"], c["intermediate_size"], model)

    def forward(self, x: Tensor, bound: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), bound)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Inner(nn.Module):
    def __init__(self, c: Mapping[str, Any], model: Model) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList([Layer(c, model) for _ in range(c["num_hidden_layers"])])
        if c["use_lower_bound"]:
            self.lower_bounds = nn.Parameter(torch.zeros(c["num_hidden_layers"], c["hidden_size"]))
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        bounds = torch.zeros(len(self.layers), x.shape[-1], dtype=x.dtype)
        if hasattr(self, "lower_bounds"):
            shares = self.lower_bounds.softmax(0)
            bounds = shares.cumsum(0) - shares[0]
        for layer, bound in zip(self.layers, bounds):
            x = layer(x, bound)
        out: Tensor = self.norm(x)
        return out


class Model(nn.Module):
    """The whole model, one sequence at a time, as transformers' models are called."""

    def __init__(self, config: Mapping[str, Any], seed: int = 0) -> None:
        super().__init__()
        self.settings = dict(config)
        self.config = PretrainedConfig()  # PEFT asks for one
        self.codes: Codes | None = None
        self.taken = 0
        self.quantises = True
        self.model = Inner(config, self)
        self.lm_head = TernaryLinear(config["hidden_size"], config["vocab_size"], self)
        self._fill(seed)

    def round(self, norm: Norm, n: Tensor) -> Tensor:
        if not self.quantises:
            return n
        values, taken = rounded(n, None if self.codes is None else self.codes(key_of(norm.weight.detach()), n))
        self.taken += taken
        return values

    def prepare_inputs_for_generation(self, *_: Any, **__: Any) -> Any:
        """PEFT asks whether there is one."""
        raise NotImplementedError

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids[0]))[None])

    def _fill(self, seed: int) -> None:
        """Random weights. One norm is so small that the eps of the inner norms behind it counts."""
        draw = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(False)
            noise = torch.randn(parameter.shape, generator=draw)
            if "norm" in name:
                noise = 1 + 0.2 * noise
                if name in ("model.layers.1.attn_norm.weight", "model.layers.2.mlp_norm.weight"):
                    noise *= 1.5e-3
            elif name not in ("model.lower_bounds", "model.embeddings.weight"):
                noise *= 0.1
            parameter.copy_(noise)


def write(folder: Path, model: Model, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Write a Hugging Face folder, in this type; `changes` replace entries of its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().to(dtype).contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    entries = {name: value for name, value in {**model.settings, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    return folder


@dataclass
class Recorded:
    """Our codes, by inner norm: rows by their place in the batch."""

    rows: dict[bytes, dict[int, np.ndarray]] = field(default_factory=dict)

    def note(self, norm: Any, places: Any, values: Any) -> None:
        """Note rounded rows (T, n); those that are known must be equal. A dry run has no values."""
        if not isinstance(values, np.ndarray):
            return
        known = self.rows.setdefault(key_of(norm), {})
        for place, row in zip(places, values):
            assert np.array_equal(known.setdefault(int(place), row.copy()), row), "a row was rounded in two ways"

    def of(self, first: int) -> Codes:
        """Our codes for a sequence that begins at row `first` of the batch."""

        def found(key: bytes, n: Tensor) -> Tensor:
            known, scale = self.rows[key], 127 / n.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1e-5)
            rows = [
                torch.from_numpy(known[first + t]).to(n.dtype) if first + t in known else torch.full_like(row, np.nan)
                for t, row in enumerate(n.detach())
            ]
            return (torch.stack(rows) * scale).round()

        return found


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Record every row that our model rounds inside the context."""
    recorded, of_rows, of_head = Recorded(), bit_linear.quantised, BitHead._hidden

    def quantised(ctx: Any, x: Any, norm: Any) -> Any:
        q = of_rows(ctx, x, norm)
        recorded.note(norm, range(ctx.span.start, ctx.span.stop), q)
        return q

    def hidden(self: BitHead, ctx: Any, x: Any, rows: Any) -> Any:
        q = of_head(self, ctx, x, rows)
        recorded.note(self.inner, ctx.span.start + rows, q)
        return q

    with monkeypatch.context() as patch:
        patch.setattr(bit_linear, "quantised", quantised)
        patch.setattr(BitHead, "_hidden", hidden)
        yield recorded
