"""How close the gradients of each method are to the exact ones, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from featherback import methods, models
from featherback.core.noise import normal
from featherback.data.batch import Batch
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.models.adapter import LoRA
from featherback.models.model import Model

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

Float32 = NDArray[np.float32]

TEXT = (
    "The lighthouse keeper counted the ships each evening, wrote their names in a long ledger, and lit the lamp at "
    "dusk. Nobody had asked for the list in thirty years. When the harbour office burned down, the ledger was the "
    "only record of what had passed the strait, and a young clerk rowed out to copy it by hand. It took her a whole "
    "winter. The keeper made tea, read the difficult lines aloud, and never once asked what the copy was for."
)
WAYS = (("mebp", "fp32"), ("mesp", "bf16"), ("mebp", "bf16"), ("lcsb", "fp32"))
DIRECTIONS = (1, 10, 100)  # of MeZO
STD = 0.01  # of B, which would otherwise be zero, as would A's gradients


@dataclass(frozen=True)
class Closeness:
    """How close the gradient of a layer is to the exact one."""

    cosine: float
    signs: float  # share of elements of the same sign
    error: float  # relative, in the Euclidean norm

    @classmethod
    def of(cls, found: Float32, exact: Float32) -> Closeness:
        f, e = found.astype(np.float64), exact.astype(np.float64)
        length = float(np.linalg.norm(e))
        return cls(
            cosine=float(f @ e) / max(float(np.linalg.norm(f)) * length, 1e-300),
            signs=float(np.mean(np.sign(f) == np.sign(e))),
            error=float(np.linalg.norm(f - e)) / length,
        )


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each way of computing a gradient, against MeSP's in fp32, which autograd in float64 confirms."""

    @cache
    def exact() -> tuple[str, Model, LoRA, Batch, Float32]:
        from featherback.models.hub.locate import locate

        path = locate(place.chat_model)
        setting = _setting(path)
        return path.name, *setting, _gradients(*setting, "mesp", "fp32")

    def row(method: str, compute: str, directions: int) -> Row:
        name, model, adapter, batch, expected = exact()
        found = _gradients(model, adapter, batch, method, compute, directions)
        layers = [Closeness.of(f, e) for f, e in zip(found, expected)]
        return {
            "model": name,
            "tokens": batch.n_tokens,
            "parameters": int(expected.size),
            **asdict(Closeness.of(found.reshape(-1), expected.reshape(-1))),
            "layers": [{key: float(f"{value:.5g}") for key, value in asdict(layer).items()} for layer in layers],
        }

    ways = {f"{method}-{compute}": (method, compute, 1) for method, compute in WAYS}
    ways |= {f"mezo-{count}": ("mezo", "fp32", count) for count in DIRECTIONS[: 1 if place.tiny else None]}
    return {key: partial(row, *way) for key, way in ways.items()}


def _setting(path: Path) -> tuple[Model, LoRA, Batch]:
    """Model, rank-8 adapter on everything with B away from zero, and a paragraph of English."""
    model = models.load(path)
    adapter = LoRA(model, 8)
    flat = np.empty(adapter.layer_size, np.float32)
    for layer in range(adapter.parameters.layers):
        adapter.parameters.read(layer, flat)
        for index, values in enumerate(adapter.layout.view(layer, flat).values()):
            bt = values["B^T"]
            bt[...] = STD * normal((1, layer, index), bt.size).reshape(bt.shape)
        adapter.parameters.write(layer, flat)
    return model, adapter, Batch.from_sequences([load_tokenizer(path).encode(TEXT)])


def _gradients(model: Model, adapter: LoRA, batch: Batch, name: str, compute: str, directions: int = 1) -> Float32:
    """(layers, layer_size)"""
    plan = Plan.default(model.config, tokens=batch.n_tokens, compute=compute)
    options = MeZOOptions(directions=directions) if name == "mezo" else None
    method = methods.create(name, model, adapter, plan, options=options)
    gathered = PagedArray(adapter.parameters.layers, adapter.layer_size)
    method.gradients(batch, 1 / batch.n_targets, gathered)
    rows = np.empty((gathered.layers, gathered.size), np.float32)
    for layer in range(gathered.layers):
        gathered.read(layer, rows[layer])
    return rows
