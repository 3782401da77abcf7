"""`python -m benchmarks measure`: measure every figure of README and docs again, row by row, into result files.

The rows of a part take turns, so that what is compared is measured under the same conditions. A row with times is
measured until two of its trials agree, and a trial counts only if the machine was quiet meanwhile (`quiet.py`).

A row that is done is kept in `build/measure` until its part is complete; only then does the part replace the file in
`docs/results`. An interrupted measurement goes on where it was, as long as the code and the machine are the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
    quiet,
    results,
    serving,
    terminal,
)
from benchmarks import random_budgets as budgets
from benchmarks.place import Place, Rows, SkippedRowError
from benchmarks.results import Result, Row
from featherback.errors import FeatherbackError, expected

_TIMES = ("_s", "_seconds", "_per_second")
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


MOST_TRIALS = 5
MOST_SPREAD = 0.05
"""How much the two fastest trials of a row may differ."""


class Trials:
    """The trials of one row."""

    def __init__(self, row: Callable[[], Row]) -> None:
        self._row = row
        self._good: list[Row] = []
        self._disturbed: Row = {}
        self._by: quiet.Disturbance | None = None

    def run(self, place: Place) -> None:
        """Do one trial, once the machine is quiet."""
        if not place.tiny:
            quiet.wait(place.say, place.patience)
        began, before = time.perf_counter(), quiet.Counters.now()
        found = self._row()
        took, after = time.perf_counter() - began, quiet.Counters.now()
        found = found | {"took_s": round(took, 1)}
        if before and after and times_of(found):
            self._by = quiet.Disturbance.between(before, after)
            found |= {"others": round(self._by.others, 3), "steal": round(self._by.steal, 3)}
            if not self._by.is_small and not place.tiny:
                place.say(f"  {self._by}; it does not count")
                self._disturbed = found
                return
        self._good.append(found)

    @property
    def agree(self) -> bool:
        """Whether the row is done."""
        return bool(self._good) and (not times_of(self._good[0]) or self._spread <= MOST_SPREAD)

    @property
    def best(self) -> Row:
        """The row of the fastest trial, with the spread; without times if the machine was never quiet."""
        if not self._good:
            return self._disturbed | dict.fromkeys(times_of(self._disturbed))
        best = min(self._good, key=_slowness)
        return best | {"trials": len(self._good), "spread": round(self._spread, 3)} if times_of(best) else best

    @property
    def problem(self) -> str:
        """Why the row is not good."""
        if not self._good:
            return f"no time could be measured: {self._by}"
        return f"its two fastest trials of {len(self._good)} differ by {self._spread:.0%}"

    @property
    def _spread(self) -> float:
        """The relative difference of the two fastest trials; infinite after one."""
        first, second, *_ = (*sorted(map(_slowness, self._good)), math.inf, math.inf)
        return second / first - 1 if first else 0.0


def times_of(row: Row) -> list[str]:
    """The fields of a row that hold times or rates."""
    return [key for key, value in row.items() if key.endswith(_TIMES) and key != "took_s" and _is_number(value)]


def _slowness(row: Row) -> float:
    """The geometric mean of a row's times; a rate counts as its inverse."""
    logs = [math.log(row[key]) * (-1 if "_per_" in key else 1) for key in times_of(row) if row[key] > 0]
    return math.exp(sum(logs) / max(1, len(logs)))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def out_of_order(rows: Mapping[str, Row]) -> list[str]:
    """Sentences about rows in which more tokens took less time, although nothing else differs."""
    wrong: list[str] = []
    groups: dict[tuple[object, ...], list[tuple[int, float, str]]] = {}
    for key, row in rows.items():
        if _is_number(row.get("tokens")) and _is_number(row.get("step_s")):
            kind = (key.replace(str(row["tokens"]), ""), *(row.get(name) for name in ("model", "method", "rank")))
            groups.setdefault(kind, []).append((row["tokens"], row["step_s"], key))
    for group in groups.values():
        for (fewer, longer, before), (more, shorter, after) in pairwise(sorted(group)):
            if more > fewer and shorter < longer:
                wrong.append(f"{after} took {shorter} s a step, and {before} took {longer}")
    return wrong


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
        Part("memory", memory.rows, 15, (*TRAINING, "benchmarks/memory.py", "benchmarks/training_run.py")),
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
    rows = part.rows(place)
    left = {key: Trials(row) for key, row in rows.items() if key not in begun.rows and (only is None or only in key)}
    for _ in range(MOST_TRIALS):
        for key, trials in list(left.items()):
            place.say(f"{part.name}: {key} ...")
            try:
                trials.run(place)
            except SkippedRowError as error:
                begun.missing[key] = str(error)
                place.say(f"{part.name}: {key} is skipped: {error}")
                del left[key]
            else:
                if trials.agree or place.tiny:
                    begun.rows[key] = trials.best
                    del left[key]
            begun.write(kept)
    for key, trials in left.items():
        begun.rows[key] = trials.best
        begun.missing[key] = trials.problem
        place.say(f"{part.name}: {key}: {trials.problem}")
    begun.rows = {key: begun.rows[key] for key in rows if key in begun.rows}
    place.clear()
    if wrong := out_of_order(begun.rows):
        raise FeatherbackError(f"{part.name}: {wrong[0]}. The machine was not quiet; measure the part again.")
    if only is None:
        begun.write(folder / f"{part.name}.json")
        kept.unlink()
    place.say(f"{part.name}: {time.perf_counter() - start:.0f} s")
