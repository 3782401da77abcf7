"""What --layers saves and what it costs: time of the first and of later epochs, and held-out loss.

    .venv/bin/python -m benchmarks.layers time model.gguf --text wikitext-2/test.txt
    .venv/bin/python -m benchmarks.layers loss model.gguf --text wikitext-2/test.txt

`time`: steps of an adapter in all, half and a quarter of the layers, with and without kept hidden states: 256 random
tokens, all supervised (`--targets text`) or the last quarter (`--targets answers`), one thread, bf16, 1 GB. The ways
take turns at each batch; the figure is the median of processor seconds, because other programs slow the clock.

`loss`: runs with all defaults but --layers on the four kinds of data of `benchmarks/learning_rates.py`; the held-out
loss of the adapter that the run keeps. Both write to benchmarks/layers.json, a row per run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning_rates import KINDS
from benchmarks.results import Result
from featherback import methods, models, optim
from featherback.data.batch import Batch
from featherback.data.packing import Batching
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.engine import kernels
from featherback.engine.host.machine import Baseline
from featherback.engine.host.rates import nominal
from featherback.engine.host.token_rows import TokenRows
from featherback.methods.entry import EntryStates
from featherback.methods.memory import planner
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.runs.choose import job_of
from featherback.runs.config import TrainConfig
from featherback.runs.run_directory import RunDirectory
from featherback.runs.stream import every_batch

CHOICES = ("all", "last:50%", "last:25%")
MEASURES = ("csrc", *(f"src/featherback/{name}" for name in ("core", "engine", "methods", "models", "nn", "optim")))
EPOCHS = 3
TIMED = ("all", "last:50%", "last:50%, kept", "last:25%", "last:25%, kept")
"""Layers, and whether their hidden states are kept."""
LENGTH, BATCHES = 256, 2
BUDGET = 10**9
BASE = 20 * 10**6


@dataclass(frozen=True)
class Measured:
    """A finished run."""

    run: RunDirectory

    def seconds(self, epoch: int) -> float:
        """Return the median time of a step in the first epoch (0), or in all later ones (1)."""
        steps = [line["seconds"] for line in self.run.metrics()]
        first = len(steps) // EPOCHS
        return statistics.median(steps[1:first] if epoch == 0 else steps[first:])

    @property
    def summary(self) -> dict[str, Any]:
        return asdict(self.run.record.summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("time", "loss"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, help="paragraphs, one a line, for `loss`")
    parser.add_argument("--targets", choices=("text", "answers"), default="text")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--share", type=float, default=1.0, help="of the examples that are trained on")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    file = Path(__file__).with_suffix(".json")
    result = Result.begin("layers", "python -m benchmarks.layers (time|loss) MODEL", MEASURES)
    if file.exists():
        result.rows.update(Result.read(file).rows)
    with tempfile.TemporaryDirectory() as place:
        rows = time_rows(options, Path(place)) if options.what == "time" else loss_rows(options, Path(place))
    result.rows.update(rows)
    result.write(file)


class Timed:
    """Steps of a run with an adapter on some layers, as a run takes them: gradient, norm, optimiser."""

    def __init__(self, model: Model, choice: str, states: TokenRows | None, tokens: TokenFile, folder: Path) -> None:
        config = TrainConfig(
            model=str(model.path), out=str(folder), seq_len=LENGTH, compute="bf16", layers=(choice,), threads=1
        ).for_model(model)
        kernels.set_threads(1)
        job = job_of(config, model)
        machine = nominal(job.compute)
        plan = planner.choose(job, BUDGET, Baseline(BASE, BASE), machine)
        self.adapter = Adapter(model, config.form)
        self.optimizer = optim.create("adamw", self.adapter.parameters, self.adapter.layout.slots)
        self.gradients = self.adapter.parameters.zeros_like(self.adapter.layer_size)
        self.method = methods.create("mesp", model, self.adapter, plan)
        if states is not None:
            self.method.entry_states = EntryStates({tokens.checksum: states}, print)

    def step(self, batch: Batch) -> tuple[float, float]:
        """Return the seconds of a step: of the processor, and of the clock."""
        start = time.process_time(), time.perf_counter()
        self.gradients.clear()
        self.method.gradients(batch, 1 / batch.n_targets, self.gradients)
        scale = optim.clip_scale(optim.global_norm(self.gradients), 1.0)
        self.optimizer.step(self.gradients, 1e-4, scale)
        return time.process_time() - start[0], time.perf_counter() - start[1]


def time_rows(options: argparse.Namespace, place: Path) -> dict[str, dict[str, Any]]:
    """Return name -> seconds per step. The ways take turns at each batch."""
    model = models.load(options.model)
    tokens, rows = _tokens(options, model, place), dict[str, dict[str, Any]]()
    lengths = [np.full(len(tokens), LENGTH)]
    ways = {}
    for name in TIMED:
        choice, _, how = name.partition(", ")
        width = model.config.hidden_size
        kept = TokenRows(place / choice, "k", len(tokens), tokens.n_tokens, width, lengths) if how == "kept" else None
        ways[name] = Timed(model, choice, kept, tokens, place)
    batches = list(every_batch(tokens, Batching(LENGTH)))
    for batch in batches:
        for way in ways.values():
            way.step(batch)  # stores the states, and warms up
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _, batch in product(range(options.rounds), batches):
        for name, way in ways.items():
            found[name].append(way.step(batch))
    whole = statistics.median(cpu for cpu, _ in found["all"])
    for name, times in found.items():
        cpu, clock = (statistics.median(each) for each in zip(*times))
        rows[f"{options.targets}-{name}"] = {
            "cpu_s": round(cpu, 4),
            "clock_s": round(clock, 4),
            "least_cpu_s": round(min(each for each, _ in times), 4),
            "speedup": round(whole / cpu, 2),
        }
        print(name, rows[f"{options.targets}-{name}"], flush=True)
    return rows


def _tokens(options: argparse.Namespace, model: Model, place: Path) -> TokenFile:
    """Write sequences of LENGTH tokens, supervised in full or, like answers in a chat, in their last quarter."""
    rng = np.random.default_rng(0)
    first = {"text": 0, "answers": LENGTH - LENGTH // 4}[options.targets]
    with TokenFileWriter(place / "tokens") as writer:
        for _ in range(BATCHES):
            writer.add(rng.integers(0, model.config.vocab_size, LENGTH), np.arange(LENGTH) >= first)
    return TokenFile(place / "tokens")


def loss_rows(options: argparse.Namespace, place: Path) -> dict[str, dict[str, Any]]:
    """Return kind and layers -> held-out losses and time."""
    rows = {}
    for kind in options.kinds.split(","):
        data, held = KINDS[kind](options.text, place, options.share)
        for number, choice in enumerate(CHOICES):
            flags = [f"--layers={choice}", f"--eval-data={held}", "--compute=bf16"]
            measured = train(options.model, data, place / f"{kind}{number}", *flags)
            found = measured.summary
            row = {name: found[name] for name in ("steps", "first_eval_loss", "best_eval_loss", "peak_footprint_mb")}
            row |= {"first_s": measured.seconds(0), "later_s": measured.seconds(1)}
            rows[f"loss-{kind}-{choice}"] = {name: round(value, 4) for name, value in row.items()}
            print(kind, choice, rows[f"loss-{kind}-{choice}"], flush=True)
    return rows


def train(model: Path, data: Path, out: Path, *flags: str) -> Measured:
    """Train with these options, three epochs, and return the run."""
    command = [sys.executable, "-m", "featherback", "train", str(model), f"--data={data}", f"--out={out}"]
    done = subprocess.run([*command, "--samples=0", f"--epochs={EPOCHS}", *flags], capture_output=True, text=True)
    run = RunDirectory.open(out)
    if run.record.status == "failed":
        sys.exit(done.stderr)
    return Measured(run)


if __name__ == "__main__":
    main()
