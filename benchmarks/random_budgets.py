"""Is a budget ever exceeded? Random models, sequences, ranks, targets, optimisers and budgets, each in a fresh process.

    .venv/bin/python -m benchmarks.random_budgets --runs 50 --file model.gguf

The made-up models are trained on made-up tokens. A model named with --file, which may be named several times, is
trained by the whole command, with the demo's conversations: command, preparation, template process and training are
measured together, from the first instruction to the last, what they share counted once.

A quarter of the runs get the least budget that the error message names; everything that can be in files is then in
files. Prints a line per run: the options, the predicted and the measured peak, or the error message. The status is 1 if
any run's resident peak was above its budget, or a run failed other than by a refusal before its first step.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import peaks
from benchmarks.synthetic import write_synthetic
from benchmarks.training_run import Measured, train_command, train_synthetic
from featherback.data import demo
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

MODELS: dict[str, dict[str, Any]] = {"qwen2.5-0.5b": {"num_hidden_layers": 8, "vocab_size": 40_000}, "smollm2-135m": {}}
TARGETS = ("all", "q,v", "gate,up,down", "q,k,v,o")
MB = 10**6
WORST = 5


COUNT, SEED = 8, 11


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """Runs of made-up models under random budgets, always the same ones."""
    rng = random.Random(SEED)
    drawn = [(rng.choice(list(MODELS)), draw(rng, 35)) for _ in range(place.steps(COUNT))]
    return {f"run{index + 1}": partial(_row, name, what, place) for index, (name, what) in enumerate(drawn)}


def _row(name: str, what: dict[str, Any], place: Place) -> Row:
    path = place.folder / f"{name}-small.gguf"
    write_synthetic(path, name, **MODELS[name])
    try:
        attempt = partial(_attempt, path, None, place.folder, what)
        least = what["memory"] is None
        memory = _least_budget(attempt) if least else what["memory"]
        found = attempt(memory=memory)
    finally:
        path.unlink()
    asked = {"model": name, **what, "memory": None, "budget_mb": memory / MB, "least": least}
    del asked["memory"]
    if isinstance(found, str):
        return asked | {"refused": True}
    return asked | peaks(found) | {"refused": False, "in_files": "file" in (found.checkpoints, found.states)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="leave out as many runs, done in another part")
    parser.add_argument("--file", type=Path, action="append", default=[], help="a model with its tokenizer")
    parser.add_argument("--least", type=int, default=35, help="MB of the least budget that is drawn")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    done: list[tuple[str, Measured]] = []
    with tempfile.TemporaryDirectory() as place:
        paths = {name: write_synthetic(Path(place) / f"{name}.gguf", name, **sizes) for name, sizes in MODELS.items()}
        paths |= {path.name: path for path in options.file}
        chats = Path(demo.__file__).with_name("train.jsonl")
        text = Path(place) / "text.txt"  # fills sequences of any length
        text.write_text(chats.read_text())
        for number in range(options.runs):
            name, what = rng.choice(list(paths)), draw(rng, options.least)
            data = rng.choice((chats, text)) if name not in MODELS else None
            if data == chats:  # shorter ones hold no answer
                what["tokens"] = max(what["tokens"], 100)
            if number < options.first:
                continue
            attempt = partial(_attempt, paths[name], data, Path(place), what)
            least = what["memory"] is None
            if least:
                what["memory"] = _least_budget(attempt)
            found = attempt(memory=what["memory"])
            title = f"{name} {data.name if data else ''} {what}{' (the least)' if least else ''}"
            print(f"{title} -> {found if isinstance(found, str) else _outcome(found)}", flush=True)
            if isinstance(found, Measured):
                done.append((title, found))
    above = [run for _, run in done if max(run.rss_mb, run.tree_mb or 0) > (run.budget_mb or 0)]
    in_files = [run for _, run in done if "file" in (run.checkpoints, run.states)]
    tried = options.runs - options.first
    print(
        f"{tried} runs, {tried - len(done)} refused, {len(in_files)} with arrays in files, "
        f"{len(above)} above their budget"
    )
    for text, run in sorted(done, key=lambda pair: -abs(pair[1].error))[:WORST]:
        print(f"{_outcome(run)}: {text}")
    return 1 if above else 0


def draw(rng: random.Random, least: int) -> dict[str, Any]:
    """Random options of a run, with a budget of at least `least` MB; `memory` None: the least budget."""
    method = rng.choice(("mesp", "mesp", "mesp", "mezo", "mebp"))
    return {
        "tokens": rng.choice((32, 64, 100, 128, 256, 384, 512)),
        "rank": rng.choice((1, 4, 8, 16, 32)),
        "targets": rng.choice(TARGETS),
        "method": method,
        "optimizer": rng.choice(("adamw", "sgd")),
        "compute": rng.choice(("bf16", "bf16", "fp32")),
        "threads": rng.choice((1, 2)),
        "memory": None if rng.random() < 0.25 else rng.randrange(least, 600 if method == "mebp" else 160) * MB,
    }


def _least_budget(attempt: Callable[..., Measured | str]) -> int:
    """The least budget that the error message for a smaller one names."""
    refusal = attempt(memory=MB)
    assert isinstance(refusal, str)
    return int(re.findall(r"--memory (\d+)MB", refusal)[0]) * MB


def _attempt(model: Path, data: Path | None, place: Path, what: dict[str, Any], memory: int) -> Measured | str:
    """The run, or the error message if the budget is too small."""
    run = train_synthetic if data is None else partial(train_command, data=data)
    try:
        return run(model, steps=2, folder=place, **{**what, "memory": memory})
    except FeatherbackError as error:
        if "does not fit" not in str(error):
            raise
        return str(error)


def _outcome(run: Measured) -> str:
    return (
        f"predicted {run.predicted_rss_mb:.1f}, was {run.rss_mb:.1f} MB ({run.error:+.1%}), "
        f"block inputs in {run.checkpoints}, adapter in {run.states}"
        + (f", whole command {run.tree_mb:.1f} MB" if run.tree_mb else "")
    )


if __name__ == "__main__":
    sys.exit(main())
