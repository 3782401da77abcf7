"""Which way of training learns most in given steps and memory."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import watch
from featherback import models
from featherback.core.options import described
from featherback.data.demo import HELD_OUT, TRAIN
from featherback.errors import FeatherbackError, expected
from featherback.methods import METHODS
from featherback.models.model import Model
from featherback.optim import RULES
from featherback.runs.config import TrainConfig
from featherback.runs.names import default_of
from featherback.runs.names import known as known_options
from featherback.runs.outlook import least_memory
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.preparation import prepare_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.worker_process import worker_baseline, worker_command

if TYPE_CHECKING:
    from benchmarks.place import Place

MEASUREMENTS = 3
"""The least number of measurements of the held-out loss within the steps that all runs do."""
MOST = 100
"""A run does at most this many times the steps that all runs do."""
_ALIKE = ("mebp", "sgd")
"""Not measured: MeBP's gradients are MeSP's, and SGD on a whole model is LOMO."""

VARIED = ("adapter", "keep_precision")
"""Options of adapters with MeSP: each value but the default is a row."""
LAYERS = ("last:50%", "last:25%")
"""Values of --layers."""
KEEPING = "150MB"
"""The budget of the rows that differ in the intermediates they keep: enough for some of them. In the least memory, none
are kept."""

PUBLISHED = ("mesp", "lcsb", *LAYERS, "spartan", "mezo", "lomo", "adalomo", "apollo", "adamw8bit", "adamw")
"""Published, with a row in KEEPING, and one for every value of `keep_precision` that is not exact."""
STEPS = 6

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A way of training: a method or an option for an adapter, or an optimiser for the whole model."""

    name: str
    options: dict[str, Any]  # fields of TrainConfig
    factor: float = 1.0  # of its default learning rate

    @property
    def key(self) -> str:
        """Its key in the result file: "last-25"."""
        return self.name.replace(":", "-").rstrip("%")

    def __str__(self) -> str:
        of = "whole" if self.options.get("train") == "full" else "adapter" if "adapter" in self.options else "LoRA"
        name = f"{self.name} intermediates, {KEEPING}" if "keep_precision" in self.options else self.name
        return f"{of}, {name}" + ("" if self.factor == 1 else f", rate x {self.factor:g}")


@dataclass(frozen=True)
class Learned:
    """The result of a run. Each point of its curve: steps, seconds that they took, held-out loss (nats per token)."""

    row: str
    learning_rate: float
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    footprint_mb: float | None = None
    rss_mb: float | None = None
    disk_mb: float | None = None
    failure: str | None = None  # why it did not get to its end

    def after(self, steps: int) -> tuple[float, float] | None:
        """Seconds and loss after so many steps; None if they were not reached."""
        return next(((seconds, loss) for step, seconds, loss in self.curve if step == steps), None)


def rows(names: Sequence[str] = (), factors: Sequence[float] = (1.0,)) -> list[Row]:
    """Every method, kind and choice of layers for adapters, and every optimiser for whole models; or those in `names`.

    `factors` multiply their default learning rates.
    """
    of_all = {"keep": "last"}  # as whole models do
    lora = [Row(name, {"method": name, **of_all, **_suited(name)}) for name in METHODS.names]
    lora += [Row(f"mesp-{KEEPING}", {**of_all, "memory": KEEPING})]
    lora.sort(key=lambda row: row.name != TrainConfig(model="", out="").method)  # the default is the measure of time
    whole = [Row(name, {"train": "full", "optimizer": name, "dequantize": True}) for name in RULES.names]
    some = [Row(layers, {**of_all, "layers": (layers,)}) for layers in LAYERS]
    known = {row.name: row for row in (*lora, *some, *_varied(), *whole) if row.name not in _ALIKE}
    if unknown := [name for name in names if name not in known]:
        raise FeatherbackError(f"--rows has {', '.join(unknown)}; {expected(unknown[0], known)}")
    return [replace(known[name], factor=factor) for name in names or known for factor in factors]


def _varied() -> list[Row]:
    """A row for each value but the default of the options in `VARIED`."""
    found = []
    for name in VARIED:
        kind = known_options()[name][0]
        about, usual = described(kind)[name], default_of(kind, name)
        values = (value for value in about.choices if value not in (usual, about.default_in_words))
        more = {"memory": KEEPING} if name == "keep_precision" else {}
        found += [Row(value, {"keep": "last", name: value, **more}) for value in values]
    return found


def published() -> list[str]:
    """The names of the published rows."""
    return [*PUBLISHED, f"mesp-{KEEPING}", *(row.name for row in _varied() if "keep_precision" in row.options)]


def _suited(method: str) -> dict[str, Any]:
    """SGD for methods that estimate gradients, as in their papers: AdamW would take full steps along noise."""
    return {} if METHODS[method].needs_checkpoints else {"optimizer": "sgd"}


def rows_of_methods(place: Place) -> dict[str, Callable[[], Record]]:
    """Each published row: the demo's requests, in the least memory that each way needs, or in KEEPING."""
    return {row.key: partial(_measure, row, place) for row in rows(published())}


def _measure(row: Row, place: Place) -> Record:
    from featherback.models.hub.locate import locate

    opened = models.load(str(locate(place.chat_model)))
    steps = place.steps(STEPS)
    with tempfile.TemporaryDirectory(dir=place.folder, prefix="bench-") as folder:
        learned = train_row(row, opened, (), Path(folder) / "run", steps)
    if learned.failure or (after := learned.after(steps)) is None:
        raise FeatherbackError(f"{row} failed: {learned.failure}")
    sizes = {"footprint_mb": learned.footprint_mb, "rss_mb": learned.rss_mb, "disk_mb": learned.disk_mb}
    return {
        "row": str(row),
        "learning_rate": learned.learning_rate,
        "steps": steps,
        "before": round(learned.curve[0][2], 4),
        "after": round(after[1], 4),
        "steps_s": round(after[0], 2),
        **{key: value and round(value, 1) for key, value in sizes.items()},
        "curve": [[step, round(seconds, 2), round(loss, 4)] for step, seconds, loss in learned.curve],
    }


def train_row(row: Row, model: Model, data: Sequence[str], place: Path, steps: int, seconds: float = 0.0) -> Learned:
    """Train in one way, in a process of its own: `steps` steps, and on until `seconds` of their time are over.

    `data`: files, of which some examples are held out; none: the demo's. The run directory `place` stays.
    """
    held_out = {"data": tuple(data)} if data else {"data": (str(TRAIN),), "eval_data": (str(HELD_OUT),)}
    named = TrainConfig.of(
        model=str(model.path),
        out=str(place),
        steps=MOST * steps,
        schedule="constant",
        eval_every=_every(steps),
        save_every=MOST * steps,
        seq_len=SEQUENCE,
        cut=True,
        compute="bf16",  # the same for all rows
        **held_out,
        **row.options,
    ).for_model(model)
    rate = row.factor * named.peak_learning_rate
    memory = named.memory or least_memory(named, model, worker_baseline())
    prepared = prepare_run(replace(named, learning_rate=rate, memory=memory))
    if "eval" not in prepared.record.data:
        prepared.release()
        raise FeatherbackError(
            f"{', '.join(data)} has too few examples for some to be held out: name more data, or name more --steps."
        )
    _, environment = worker_command(prepared)
    command = [
        sys.executable, "-m", "benchmarks.clocked_run", str(prepared.path), str(steps), str(seconds),
    ]  # fmt: skip
    try:
        outcome = watch.run(command, environment, watch.RARELY)
    except FeatherbackError as error:
        return Learned(str(row), rate, _curve(RunDirectory.open(place)), failure=str(error))
    trained = RunDirectory.open(place)
    summary, disk = trained.record.summary, int(outcome.output.split()[-1])
    return Learned(str(row), rate, _curve(trained), summary.peak_footprint_mb, summary.peak_rss_mb, disk / watch.MB)


def _every(steps: int) -> int:
    """Steps between measurements, the last of which is after `steps`."""
    return max(every for every in range(1, max(1, steps // MEASUREMENTS) + 1) if steps % every == 0)


def _curve(run: RunDirectory) -> list[tuple[int, float, float]]:
    times = [0.0, *accumulate(line["seconds"] for line in run.metrics())]
    return [(each.step, times[each.step], each.loss) for each in run.record.evaluations]
