"""`python -m benchmarks gradients`: how close each method's gradients are to the exact ones, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.markdown import table
from benchmarks.pictures import Panel, layers_figure, svg
from featherback import methods, models
from featherback.core.noise import normal
from featherback.data.batch import Batch
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.host.paged import PagedArray
from featherback.methods.memory.plan import Plan
from featherback.methods.mezo import MeZOOptions
from featherback.models.lora import LoRA
from featherback.models.model import Model

Float32 = NDArray[np.float32]

TEXT = (
    "The lighthouse keeper counted the ships each evening, wrote their names in a long ledger, and lit the lamp at "
    "dusk. Nobody had asked for the list in thirty years. When the harbour office burned down, the ledger was the "
    "only record of what had passed the strait, and a young clerk rowed out to copy it by hand. It took her a whole "
    "winter. The keeper made tea, read the difficult lines aloud, and never once asked what the copy was for."
)
DIRECTIONS = (1, 10, 100)  # of MeZO
STD = 0.01  # of B, which would otherwise be zero, as would A's gradients


@dataclass(frozen=True)
class Closeness:
    """One layer's gradient against the exact one."""

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


def run(name: str, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare on the real model `name`; the exact gradient is MeSP's in fp32, which autograd's in float64 confirms."""
    from featherback.models.hub.locate import locate

    path = locate(name)
    model, adapter, batch = _setting(path)
    exact = _gradients(model, adapter, batch, "mesp", "fp32")
    attempts: list[tuple[str, str, str, int]] = [
        ("mebp, fp32", "mebp", "fp32", 1),
        ("mesp, bf16", "mesp", "bf16", 1),
        ("mebp, bf16", "mebp", "bf16", 1),
    ]
    counts = DIRECTIONS[:1] if quick else DIRECTIONS
    attempts += [(f"mezo, {n} direction{'s' * (n > 1)}", "mezo", "fp32", n) for n in counts]
    layers: dict[str, list[Closeness]] = {}
    overall: dict[str, Closeness] = {}
    for label, method, compute, directions in attempts:
        found = _gradients(model, adapter, batch, method, compute, directions)
        layers[label] = [Closeness.of(f, e) for f, e in zip(found, exact)]
        overall[label] = Closeness.of(found.reshape(-1), exact.reshape(-1))
        say(f"{label}: cosine {overall[label].cosine:.6f}")
    return {
        "model": path.name,
        "tokens": batch.n_tokens,
        "parameters": int(exact.size),
        "overall": {label: asdict(value) for label, value in overall.items()},
        "layers": {label: [asdict(c) for c in values] for label, values in layers.items()},
        "markdown": _markdown(overall, layers, path.name, batch.n_tokens),
        "plots": {"layers": _plot(layers, path.stem)},
    }


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


def _plot(layers: dict[str, list[Closeness]], name: str) -> str:
    def lines(of: Callable[[Closeness], float]) -> dict[str, list[float]]:
        return {label: [of(closeness) for closeness in values] for label, values in layers.items()}

    figure = layers_figure(
        f"LoRA gradients against MeSP's in fp32, layer by layer: {name}",
        [
            Panel("cosine", lines(lambda c: c.cosine), (0, 0.25, 0.5, 0.75, 1)),
            Panel("signs that agree, %", lines(lambda c: 100 * c.signs), (50, 75, 100)),
            Panel("relative error", lines(lambda c: c.error)),
        ],
    )
    return svg(figure)


def _markdown(overall: dict[str, Closeness], layers: dict[str, list[Closeness]], name: str, tokens: int) -> str:
    head = ["method", "cosine", "worst layer", "best layer", "signs agree", "relative error"]
    lines = []
    for label, c in overall.items():
        cosines = [layer.cosine for layer in layers[label]]
        figures = [f"{v:.6f}" for v in (c.cosine, min(cosines), max(cosines))]
        lines.append([label, *figures, f"{c.signs:.2%}", f"{c.error:.2e}"])
    return f"{name}, {tokens} tokens, against MeSP in fp32:\n\n{table(head, lines)}"
