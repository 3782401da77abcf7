"""`python -m benchmarks measure`: measure every figure of README and docs again, row by row, into result files.

A row that is done is kept in `build/measure` until its part is complete; only then does the part replace the file in
`docs/results`. An interrupted measurement goes on where it was, as long as the code and the machine are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
    results,
    serving,
    terminal,
)
from benchmarks import random_budgets as budgets
from benchmarks.place import Place, Rows, SkippedRowError
from benchmarks.results import Result
from featherback.errors import FeatherbackError, expected

UNFINISHED = results.ROOT / "build" / "measure"
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
