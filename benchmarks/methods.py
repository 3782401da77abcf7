"""`python -m benchmarks methods`: which way of training learns most in given steps, seconds and memory."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.markdown import number, table
from benchmarks.pictures import learning_figure, svg
from featherback import models
from featherback.data.demo import HELD_OUT, TRAIN
from featherback.errors import FeatherbackError, expected
from featherback.methods import METHODS
from featherback.models.model import Model
from featherback.optim import RULES
from featherback.runs.config import TrainConfig
from featherback.runs.launch import prepare_run, worker_command
from featherback.runs.outlook import least_memory
from featherback.runs.panels.data import SEQUENCE
from featherback.runs.run_directory import RunDirectory
from featherback.runs.worker_process import worker_baseline

MEASUREMENTS = 3
"""Of the held-out loss in the steps that all runs do, at least."""
MOST = 100
"""Times the steps that all do are the most that a run does until its time is over."""
_ALIKE = ("mebp", "sgd")
"""Not measured: MeBP's gradients are MeSP's, and SGD on a whole model is LOMO."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """A way of training: a method for an adapter, or an optimiser for the whole model."""

    name: str
    options: dict[str, Any]  # fields of TrainConfig
    factor: float = 1.0  # of its default learning rate

    def __str__(self) -> str:
        of = "whole" if self.options.get("train") == "full" else "LoRA"
        return f"{of}, {self.name}" + ("" if self.factor == 1 else f", rate x {self.factor:g}")


@dataclass(frozen=True)
class Learned:
    """What a run came to. Each point of its curve: steps, seconds that they took, held-out loss (nats per token)."""

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

    def at(self, seconds: float) -> tuple[float, float] | None:
        """Steps and loss after so many seconds, linearly between two points; None if they were not reached."""
        for (step, then, loss), (next_step, end, next_loss) in zip(self.curve, self.curve[1:]):
            if then <= seconds <= end:
                share = (seconds - then) / (end - then)
                return step + share * (next_step - step), loss + share * (next_loss - loss)
        return None


def rows(names: Sequence[str] = (), factors: Sequence[float] = (1.0,)) -> list[Row]:
    """Every method for adapters and every optimiser for whole models, or those of these names, at rates of these
    factors of their defaults."""
    of_all = {"keep": "last"}  # as whole models do
    lora = [Row(name, {"method": name, **of_all, **_suited(name)}) for name in METHODS.names]
    lora.sort(key=lambda row: row.name != TrainConfig(model="", out="").method)  # the default is the measure of time
    whole = [Row(name, {"train": "full", "optimizer": name, "dequantize": True}) for name in RULES.names]
    known = {row.name: row for row in (*lora, *whole) if row.name not in _ALIKE}
    if unknown := [name for name in names if name not in known]:
        raise FeatherbackError(f"--rows has {', '.join(unknown)}; {expected(unknown[0], known)}")
    return [replace(known[name], factor=factor) for name in names or known for factor in factors]


def _suited(method: str) -> dict[str, Any]:
    """SGD for what estimates gradients, as in the papers: AdamW makes steps of full length of what is mostly noise."""
    return {} if METHODS[method].needs_checkpoints else {"optimizer": "sgd"}


def run(
    model: str, data: Sequence[str], chosen: list[Row], cache: Path, steps: int, seconds: float | None, say: Say
) -> dict[str, Any]:
    """Train in every way, each in a fresh process: `steps` steps, and on until `seconds` of their time are over.

    Every run has the least memory that it can be trained in, so that its footprint is what its way needs.

    `seconds` None: as many as the first row's steps took. `data`: files, of which some examples are held out; none: the
    demo's.
    """
    cache.mkdir(parents=True, exist_ok=True)
    opened, found = models.load(model), list[Learned]()
    for row in chosen:
        say(f"{row} ...")
        with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as place:
            result = train_row(row, opened, data, Path(place) / "run", steps, seconds or 0.0)
        found.append(result)
        if seconds is None:
            if (reached := result.after(steps)) is None:
                raise FeatherbackError(f"The first row measures the time, but it failed: {result.failure}")
            seconds = reached[0]
        say(f"{row}: {_told(result, steps)}")
    assert seconds is not None
    return {
        "model": Path(model).name,
        "steps": steps,
        "seconds": seconds,
        "rows": [asdict(each) for each in found],
        "markdown": markdown(found, steps, seconds),
        "plots": {"methods": _plot(found, steps)},
    }


def train_row(row: Row, model: Model, data: Sequence[str], place: Path, steps: int, seconds: float = 0.0) -> Learned:
    """One of the runs of `run`, in the directory `place`, which stays."""
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
    memory = least_memory(named, model, worker_baseline())
    prepared = prepare_run(replace(named, learning_rate=rate, memory=memory))
    if "eval" not in prepared.record["data"]:
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
    summary, disk = trained.record["summary"], int(outcome.output.split()[-1])
    return Learned(
        str(row), rate, _curve(trained), summary["peak_footprint_mb"], summary["peak_rss_mb"], disk / watch.MB
    )


def _every(steps: int) -> int:
    """Steps between measurements, the last of which is after `steps`."""
    return max(every for every in range(1, max(1, steps // MEASUREMENTS) + 1) if steps % every == 0)


def _curve(run: RunDirectory) -> list[tuple[int, float, float]]:
    times = [0.0, *accumulate(line["seconds"] for line in run.metrics())]
    return [(each["step"], times[each["step"]], each["loss"]) for each in run.record.get("evaluations", [])]


def _told(result: Learned, steps: int) -> str:
    if (reached := result.after(steps)) is None:
        return f"failed: {result.failure}"
    return f"loss {reached[1]:.4f} after {reached[0]:.1f} s, footprint {number(result.footprint_mb)} MB"


def markdown(found: Sequence[Learned], steps: int, seconds: float) -> str:
    """The table, and what failed under it."""
    head = ["", "--lr", f"{steps} steps", "s", f"{seconds:.0f} s", "steps", "footprint MB", "RSS MB", "disk MB"]
    text = table(head, [list(_cells(each, steps, seconds)) for each in found])
    return "\n".join([text, *(f"\n{each.row}: {each.failure}" for each in found if each.failure)])


def _cells(result: Learned, steps: int, seconds: float) -> Iterator[str]:
    yield result.row
    yield f"{result.learning_rate:g}"
    after, at = result.after(steps), result.at(seconds)
    yield number(after and after[1], 3)
    yield number(after and after[0], 1)
    yield number(at and at[1], 3)
    yield number(at and at[0], 0)
    for value in (result.footprint_mb, result.rss_mb, result.disk_mb):
        yield number(value)


def _plot(found: Sequence[Learned], steps: int) -> str:
    """Curves of the runs, and the end of each over its footprint."""
    ended = [(each, after) for each in found if (after := each.after(steps)) and each.footprint_mb]
    figure = learning_figure(
        f"What is learnt in a given time, and after {steps} steps in memory",
        {each.row: [(seconds, loss) for _, seconds, loss in each.curve] for each, _ in ended},
        {each.row: (each.footprint_mb or math.nan, loss) for each, (_, loss) in ended},
    )
    return svg(figure)
