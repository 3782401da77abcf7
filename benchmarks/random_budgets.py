"""Is a budget ever exceeded? Random models, sequences, ranks, targets, optimisers and budgets, each in a fresh process.

    .venv/bin/python benchmarks/random_budgets.py --runs 50

A quarter of the runs get the least budget that their refusal names, where everything that can be in files is. Prints
a line a run: what was asked, what was predicted, what the kernel's own mark says; or the refusal. The status is 1 if
any run's resident peak was above its budget, or a run failed other than by a refusal before its first step.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from featherback.bench.synthetic import write_synthetic
from featherback.bench.training_run import Measured, train_synthetic
from featherback.errors import FeatherbackError

MODELS = {"qwen2.5-0.5b": {"num_hidden_layers": 8, "vocab_size": 40_000}, "smollm2-135m": {}}
TARGETS = ("all", "q,v", "gate,up,down", "q,k,v,o")
MB = 10**6
WORST = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    done: list[tuple[str, Measured]] = []
    with tempfile.TemporaryDirectory() as place:
        paths = {
            name: write_synthetic(Path(place) / f"{name}.gguf", name, **sizes)
            for name, sizes in MODELS.items()
        }
        for _ in range(options.runs):
            name, what = rng.choice(list(MODELS)), draw(rng)
            least = what["memory"] is None
            if least:
                what["memory"] = _least_budget(paths[name], Path(place), what)
            found = _attempt(paths[name], Path(place), what)
            text = f"{name} {what}{' (the least)' if least else ''}"
            print(f"{text} -> {found if isinstance(found, str) else _outcome(found)}", flush=True)
            if isinstance(found, Measured):
                done.append((text, found))
    above = [run for _, run in done if run.rss_mb > (run.budget_mb or 0)]
    in_files = [run for _, run in done if "file" in (run.checkpoints, run.states)]
    print(
        f"{options.runs} runs, {options.runs - len(done)} refused, {len(in_files)} with arrays in files, "
        f"{len(above)} above their budget"
    )
    for text, run in sorted(done, key=lambda pair: -abs(pair[1].error))[:WORST]:
        print(f"{_outcome(run)}: {text}")
    return 1 if above else 0


def draw(rng: random.Random) -> dict[str, Any]:
    """Options of a run; `memory` None: the least that will do."""
    method = rng.choice(("mesp", "mesp", "mesp", "mezo", "mebp"))
    return {
        "tokens": rng.choice((32, 64, 100, 128, 256, 384, 512)),
        "rank": rng.choice((1, 4, 8, 16, 32)),
        "targets": rng.choice(TARGETS),
        "method": method,
        "optimizer": rng.choice(("adamw", "sgd")),
        "compute": rng.choice(("bf16", "bf16", "fp32")),
        "threads": rng.choice((1, 2)),
        "memory": None if rng.random() < 0.25 else rng.randrange(35, 600 if method == "mebp" else 160) * MB,
    }


def _least_budget(path: Path, place: Path, what: dict[str, Any]) -> int:
    """What the refusal of too small a budget says that would do."""
    refusal = _attempt(path, place, {**what, "memory": MB})
    assert isinstance(refusal, str)
    return int(re.findall(r"--memory (\d+)MB", refusal)[0]) * MB


def _attempt(path: Path, place: Path, what: dict[str, Any]) -> Measured | str:
    """The run, or the refusal."""
    try:
        return train_synthetic(path, steps=2, folder=place, **what)
    except FeatherbackError as error:
        if "does not fit" not in str(error):
            raise
        return str(error)


def _outcome(run: Measured) -> str:
    return (
        f"predicted {run.predicted_rss_mb:.1f}, was {run.rss_mb:.1f} MB ({run.error:+.1%}), "
        f"block inputs in {run.checkpoints}, adapter in {run.states}"
    )


if __name__ == "__main__":
    sys.exit(main())
