"""Is the default learning rate good? A run of `featherback train` that names no rate beside runs that name one.

    .venv/bin/python -m benchmarks.learning_rates model.gguf --text wikitext-2/test.txt

Four kinds of data: `tone`, the demo's requests and commands; `extract`, the names and years in a paragraph; `code`, a
function of Python's library from its description; `text`, as it is. Paragraphs come from --text. All that a run does
is left at its defaults but the rate, and --eval-data, so that all runs are judged on the same examples.

The grid has twelve rates from 1e-4 to 1e-2 at equal ratios. Each kind of data goes through it from the rate next to the
default, upwards and downwards, until two rates in a row are a fiftieth worse than the best: --all leaves none out.
Prints a line a run, and a table of the held-out losses of the adapters that the runs keep; --log keeps them, and a
second call with the same file goes on from there.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from featherback.data import demo
from featherback.runs.run_directory import RunDirectory

GRID = tuple(float(f"{1e-4 * 100 ** (i / 11):.2g}") for i in range(12))
WORSE = 1.02  # of the best loss: two rates in a row that are, end a direction

Pair = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="paragraphs, one a line")
    parser.add_argument("--kinds", default="tone,extract,code,text")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples that are trained on")
    parser.add_argument("--seeds", type=int, default=1, help="runs for each rate, of which the mean loss is taken")
    parser.add_argument("--all", action="store_true", help="leave out no rate")
    parser.add_argument("--log", type=Path, help="file of the runs, a line each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = {}
        for kind in options.kinds.split(","):
            train, held = KINDS[kind](options.text, Path(place), options.share)
            what = {"model": options.model.name, "data": kind, "share": options.share}
            run = partial(_run, options.model, train, held, Path(place))
            measure = partial(_measure, run, what, options.seeds, options.log)
            found[kind] = walk(measure, options.all)
    print(markdown(found))


def walk(measure: Callable[[float | None], tuple[float, float]], every: bool) -> dict[float | None, float]:
    """Rate (None: the default) -> held-out loss, of the rates that may be the best."""
    default, loss = measure(None)
    found: dict[float | None, float] = {None: loss}
    for direction in ([rate for rate in GRID if rate >= default], [rate for rate in reversed(GRID) if rate < default]):
        bad = 0
        for rate in direction:
            found[rate] = measure(rate)[1]
            bad = bad + 1 if found[rate] > WORSE * min(found.values()) else 0
            if bad == 2 and not every:
                break
    return found


def _measure(
    run: Callable[[float | None, int], dict[str, Any]],
    what: dict[str, Any],
    seeds: int,
    log: Path | None,
    rate: float | None,
) -> tuple[float, float]:
    """The rate that the runs took, and the held-out loss of the adapters that they kept, the mean over seeds."""
    lines = [_logged(run, what | {"named": rate, "seed": seed}, log) for seed in range(seeds)]
    return lines[0]["lr"], statistics.fmean(line["best_eval_loss"] for line in lines)


def _logged(
    run: Callable[[float | None, int], dict[str, Any]], what: dict[str, Any], log: Path | None
) -> dict[str, Any]:
    """What `run` finds, or found when it was logged."""
    for known in log.read_text().splitlines() if log and log.exists() else []:
        if what.items() <= (line := json.loads(known)).items():
            return dict(line)
    line = what | run(what["named"], what["seed"])
    print(line, flush=True)
    if log:
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return line


def _run(model: Path, train: Path, held: Path, place: Path, rate: float | None, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "featherback", "train", str(model), f"--data={train}"]
        command += [f"--eval-data={held}", f"--out={out}", f"--seed={seed}", "--samples=0"]
        command += [] if rate is None else [f"--lr={rate:g}"]
        start = time.monotonic()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        run = RunDirectory.open(out)
        if run.record.status == "failed":
            print(done.stderr, end="", file=sys.stderr)
            return {"lr": run.config.learning_rate, "best_eval_loss": math.inf}
        summary = run.record.summary
        return {
            "lr": run.config.learning_rate,
            **{name: getattr(summary, name) for name in ("steps", "first_eval_loss", "best_step", "best_eval_loss")},
            "seconds": round(time.monotonic() - start),
        }


def markdown(found: dict[str, dict[float | None, float]]) -> str:
    """A row per kind of data: the loss with the default rate, with each of the grid, and the first as a multiple of the
    best of these."""
    rows = []
    for kind, losses in found.items():
        default, grid = losses[None], {rate: loss for rate, loss in losses.items() if rate is not None}
        cells = [f"{grid[rate]:.3f}" if rate in grid else "" for rate in GRID]
        rows.append([kind, f"{default:.3f}", *cells, f"{default / min(grid.values()):.3f}"])
    return table(["data", "default", *(f"{rate:g}" for rate in GRID), "default / best"], rows)


def tone(_: Path, place: Path, share: float) -> tuple[Path, Path]:
    """200 short requests, each with a command, and 40."""
    train = demo.pairs(demo.TRAIN)
    random.Random(0).shuffle(train)  # a part of them is to have every kind of command
    return _chats(place, "tone", train, demo.pairs(demo.HELD_OUT), share)


def extract(text: Path, place: Path, share: float) -> tuple[Path, Path]:
    """60 paragraphs with the names and years in them, and 20."""
    found = []
    for paragraph in paragraphs(text):
        begin = " ".join(paragraph.split()[:90])
        names = list(dict.fromkeys(re.findall(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b", begin)))[:6]
        years = list(dict.fromkeys(re.findall(r"\b(?:1\d\d\d|20[01]\d)\b", begin)))
        if len(names) >= 2:
            answer = f"Names: {'; '.join(names)}\nYears: {', '.join(years) or 'none'}"
            found.append((f"List the names in this text.\n\n{begin}", answer))
    return _drawn(place, "extract", found, share)


def code(_: Path, place: Path, share: float) -> tuple[Path, Path]:
    """60 functions of Python's library, each after its description, and 20."""
    return _drawn(place, "code", list(functions(Path(sysconfig.get_paths()["stdlib"]))), share)


def text(source: Path, place: Path, share: float) -> tuple[Path, Path]:
    """45 kB, and 12 kB from further on."""
    whole, train, held = "\n\n".join(paragraphs(source)), place / "text.txt", place / "text.held.txt"
    train.write_text(whole[: int(45_000 * share)])
    held.write_text(whole[200_000:212_000])
    return train, held


KINDS = {kind.__name__: kind for kind in (tone, extract, code, text)}


def paragraphs(text: Path) -> list[str]:
    """Return the paragraphs of more than thirty words. Lines that begin with = are headings."""
    lines = (line.strip() for line in text.read_text().splitlines())
    return [line for line in lines if len(line.split()) > 30 and not line.startswith("=")]


def functions(library: Path) -> Iterator[Pair]:
    """Requests for functions with a description of a sentence or two, and the functions."""
    for path in sorted(library.glob("*.py")):
        source = path.read_text(errors="ignore")
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef):
                continue
            description = " ".join((ast.get_docstring(node) or "").split())
            body = ast.get_source_segment(source, node) or ""
            if 40 < len(description) < 200 and 150 < len(body) < 700:
                yield f"Write a Python function {node.name}: {description}", body


def _drawn(place: Path, name: str, pairs: list[Pair], share: float) -> tuple[Path, Path]:
    random.Random(0).shuffle(pairs)
    return _chats(place, name, pairs[:60], pairs[60:80], share)


def _chats(place: Path, name: str, train: list[Pair], held: list[Pair], share: float) -> tuple[Path, Path]:
    paths = place / f"{name}.jsonl", place / f"{name}.held.jsonl"
    for path, pairs in zip(paths, (train[: int(share * len(train))], held)):
        with path.open("w") as file:
            for user, assistant in pairs:
                messages = [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
                file.write(json.dumps({"messages": messages}) + "\n")
    return paths


if __name__ == "__main__":
    main()
