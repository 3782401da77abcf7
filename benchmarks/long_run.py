"""Does a run of many steps end within its budget? Metrics, curve and record of a small model's 50,000 steps.

    .venv/bin/python -m benchmarks.long_run --steps 50000 --memory 42MB

Prints the peaks that the run itself and the kernel's mark, read from outside, name. The status is 1 if either is above
the budget.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.synthetic import write_synthetic
from benchmarks.training_run import train_synthetic
from featherback.runs import parse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--memory", default="42MB")
    options = parser.parse_args()
    budget = parse.memory(options.memory)
    with tempfile.TemporaryDirectory() as place:
        model = write_synthetic(
            Path(place) / "small.gguf",
            "smollm2-135m",
            num_hidden_layers=2,
            vocab_size=300,
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
        )
        run = train_synthetic(
            model, tokens=8, steps=options.steps, folder=Path(place), memory=budget, rank=2, threads=1
        )
    peaks = {name: getattr(run, name) for name in ("budget_mb", "predicted_rss_mb", "rss_mb", "outside_rss_mb")}
    print(json.dumps({"steps": len(run.losses), **peaks}))
    return 0 if max(run.rss_mb, run.outside_rss_mb or 0) * 1e6 <= budget else 1


if __name__ == "__main__":
    sys.exit(main())
