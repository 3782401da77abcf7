"""Is a budget ever exceeded? Random models, sequences, ranks, targets, optimisers and budgets, each in a fresh process.

    .venv/bin/python benchmarks/random_budgets.py --runs 50

Prints a line a run: what was asked, what was predicted, what the kernel's own mark says; or the refusal. The status is
1 if any run's resident peak was above its budget, or a run failed other than by a refusal before its first step.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from featherback.bench.synthetic import write_synthetic
from featherback.bench.training_run import Measured, train_synthetic
from featherback.errors import FeatherbackError

MODELS = {"qwen2.5-0.5b": {"num_hidden_layers": 8, "vocab_size": 40_000}, "smollm2-135m": {}}
TARGETS = ("all", "q,v", "gate,up,down", "q,k,v,o")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, bad, errors = random.Random(options.seed), 0, []
    with tempfile.TemporaryDirectory() as place:
        paths = {
            name: write_synthetic(Path(place) / f"{name}.gguf", name, **sizes)
            for name, sizes in MODELS.items()
        }
        for _ in range(options.runs):
            name = rng.choice(list(MODELS))
            what = {
                "tokens": rng.choice((32, 64, 100, 128, 256, 384, 512)),
                "rank": rng.choice((1, 4, 8, 16, 32)),
                "targets": rng.choice(TARGETS),
                "method": rng.choice(("mesp", "mesp", "mesp", "mezo")),
                "optimizer": rng.choice(("adamw", "sgd")),
                "compute": rng.choice(("bf16", "bf16", "fp32")),
                "threads": rng.choice((1, 2)),
                "memory": rng.randrange(35, 160) * 10**6,
            }
            found = _attempt(paths[name], Path(place), what)
            bad += isinstance(found, Measured) and found.rss_mb * 1e6 > what["memory"]
            if isinstance(found, Measured):
                errors.append(found.error)
                text = (
                    f"predicted {found.predicted_rss_mb:.1f}, was {found.rss_mb:.1f} MB ({found.error:+.1%})"
                )
            else:
                text = found
            print(f"{name} {what} -> {text}", flush=True)
    print(f"{options.runs} runs, {options.runs - len(errors)} refused, {bad} above their budget")
    if errors:
        print(f"prediction off by {min(errors):+.1%} to {max(errors):+.1%}")
    return 1 if bad else 0


def _attempt(path: Path, place: Path, what: dict[str, object]) -> Measured | str:
    """The run, or the refusal."""
    try:
        return train_synthetic(path, steps=2, folder=place, **what)  # type: ignore[arg-type]
    except FeatherbackError as error:
        if "does not fit" not in str(error):
            raise
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
