"""`python -m benchmarks measure`: measure every figure of README and docs again, row by row, into result files.

A row that is done is kept in `build/measure` until its part is complete; only then does the part replace the file in
`docs/results`. An interrupted measurement goes on where it was, as long as the code and the machine are the same.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.results import Result, Row
from benchmarks.synthetic import write_synthetic
from featherback.errors import FeatherbackError, expected

Say = Callable[[str], None]
UNFINISHED = results.ROOT / "build" / "measure"
SPARE = 2 * 10**9  # bytes of disk that stay free
TINY = "smollm2-135m"

ENGINE = (
    "csrc",
    "src/featherback/core",
    "src/featherback/engine",
    "src/featherback/methods",
    "src/featherback/models",
    "src/featherback/nn",
    "src/featherback/optim",
)
TRAINING = (*ENGINE, "src/featherback/runs", "src/featherback/worker.py")
WHOLE = (*TRAINING, "src/featherback/data", "src/featherback/infer", "src/featherback/exports")


class SkippedRowError(FeatherbackError):
    """A row that this machine cannot measure; the message says why."""


@dataclass
class Place:
    """What rows need: a folder for models and runs, and the model that has a vocabulary."""

    folder: Path
    say: Say
    chat_model: str = TINY
    tiny: bool = False
    """Few steps of a small model, to check that everything runs. The figures mean nothing."""
    _written: Path | None = None

    def synthetic(self, name: str) -> Path:
        """The file of the shapes of `name` in Q4_0. It lasts until another one is asked for."""
        path = self.folder / f"{TINY if self.tiny else name}-q4_0.gguf"
        if self._written not in (None, path):
            self.clear()
        if not path.exists():
            needed = SIZES[path.name.removesuffix("-q4_0.gguf")]
            free = shutil.disk_usage(self.folder).free
            if free < needed + SPARE:
                raise SkippedRowError(
                    f"it needs {(needed + SPARE) / 1e9:.0f} GB of free disk, and {free / 1e9:.0f} GB are free"
                )
            self.say(f"  writing {path.name}")
            write_synthetic(path, path.name.removesuffix("-q4_0.gguf"))
        self._written = path
        return path

    def clear(self) -> None:
        """Delete the model that was written last."""
        if self._written is not None:
            self._written.unlink(missing_ok=True)
            self._written = None

    def tokens(self, count: int) -> int:
        """`count`, or few where everything is tiny."""
        return min(count, 64) if self.tiny else count

    def steps(self, count: int) -> int:
        """`count`, or two where everything is tiny."""
        return min(count, 2) if self.tiny else count


SIZES = {"smollm2-135m": 0.1e9, "qwen2.5-0.5b": 0.3e9, "qwen2.5-1.5b": 0.9e9, "qwen2.5-3b": 1.8e9, "qwen2.5-7b": 4.4e9}
"""Bytes of the synthetic models."""

Rows = Mapping[str, Callable[[], Row]]


@dataclass(frozen=True)
class Part:
    """One result file."""

    name: str
    rows: Callable[[Place], Rows]
    minutes: float  # on two idle cores with bf16 products
    measures: tuple[str, ...]
    by_request: bool = False
    """Whether it is measured only when it is named."""
    command: str = ""

    @property
    def run_by(self) -> str:
        """The command that measures it."""
        return self.command or f"make measure PARTS={self.name}"


def parts() -> dict[str, Part]:
    """Name -> part, in the order of measuring."""
    from benchmarks import (
        against_llama_cpp,
        budget_curve,
        exactness,
        gradients,
        job,
        memory,
        methods,
        peers,
        preferences,
        products,
        serving,
        terminal,
    )
    from benchmarks import random_budgets as budgets

    peft = ("benchmarks/peers.py", "benchmarks/peft_step.py")
    found = [
        Part("memory", memory.rows, 6, (*TRAINING, "benchmarks/memory.py", "benchmarks/training_run.py")),
        Part("peft", peers.rows, 2, (*TRAINING, *peft)),
        Part("job", job.rows, 6, (*WHOLE, "benchmarks/job.py", "benchmarks/peft_job.py")),
        Part("curve", budget_curve.rows, 1, (*ENGINE, "benchmarks/budget_curve.py")),
        Part("budgets", budgets.rows, 1.5, (*TRAINING, "benchmarks/random_budgets.py")),
        Part("methods", methods.rows_of_methods, 4, (*TRAINING, "benchmarks/methods.py")),
        Part("gradients", gradients.rows, 1, (*ENGINE, "benchmarks/gradients.py")),
        Part("exactness", exactness.rows, 1, (*ENGINE, "benchmarks/exactness.py")),
        Part("preferences", preferences.rows, 6, (*WHOLE, "benchmarks/preferences.py")),
        Part("products", products.rows, 1, ("csrc", "src/featherback/engine/kernels.py", "benchmarks/products.py")),
        Part("serving", serving.rows, 1, (*ENGINE, "src/featherback/infer", "benchmarks/serving.py")),
        Part(
            "run", terminal.rows, 1.5, (*WHOLE, "src/featherback/cli", "src/featherback/view", "benchmarks/terminal.py")
        ),
        Part(
            "llama",
            against_llama_cpp.rows,
            10,
            (*ENGINE, "src/featherback/infer", "benchmarks/against_llama_cpp.py"),
            by_request=True,
            command="make bench-llama",
        ),
    ]
    return {part.name: part for part in found}


def measure(
    names: list[str],
    place: Place,
    *,
    folder: Path = results.FOLDER,
    unfinished: Path = UNFINISHED,
    only: str | None = None,
) -> None:
    """Measure the parts called `names` (none: all but those that are measured only by request).

    `only`: a row whose name does not contain this is left out, and the result is not published.
    """
    known = parts()
    if wrong := next((name for name in names if name not in known), None):
        raise FeatherbackError(f"unknown part {wrong!r}; {expected(wrong, known)}")
    chosen = [part for part in known.values() if part.name in names or not (names or part.by_request)]
    start = time.perf_counter()
    place.folder.mkdir(parents=True, exist_ok=True)
    for part in chosen:
        _measure(part, place, folder, unfinished, only)
    place.say(
        f"measured in {(time.perf_counter() - start) / 60:.1f} minutes; `make figures` puts the figures into the pages"
    )


def _measure(part: Part, place: Place, folder: Path, unfinished: Path, only: str | None) -> None:
    begun = Result.begin(part.name, part.run_by, part.measures)
    kept = unfinished / f"{part.name}{'-tiny' * place.tiny}.json"
    if kept.exists() and (before := Result.read(kept)).continues(begun):
        begun = before
    if begun.modified:
        place.say(f"{part.name}: the measured code has uncommitted changes, so the commit does not identify it")
    start = time.perf_counter()
    for key, row in part.rows(place).items():
        if key in begun.rows or (only is not None and only not in key):
            continue
        place.say(f"{part.name}: {key} ...")
        since = time.perf_counter()
        try:
            begun.rows[key] = row() | {"took_s": round(time.perf_counter() - since, 1)}
        except SkippedRowError as error:
            begun.missing[key] = str(error)
            place.say(f"{part.name}: {key} is skipped: {error}")
        begun.write(kept)
    place.clear()
    if only is None:
        begun.write(folder / f"{part.name}.json")
        kept.unlink()
    place.say(f"{part.name}: {time.perf_counter() - start:.0f} s")
