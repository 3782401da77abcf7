"""Which learning rate do preferences need? Runs of each objective at shares of the next-token loss's default rate.

    .venv/bin/python -m benchmarks.preference_rates measure model.gguf --objectives dpo,orpo --shares 1,0.3,0.1
    .venv/bin/python -m benchmarks.preference_rates table

Two data sets of 40 pairs, each with 10 held-out pairs: in `tone` the better answer has a greeting and a signature, in
`brief` it is the bare command. Held-out pairs are measured before and after training.

`measure` adds a row per run to benchmarks/preference_rates.json, unless it is there. A run takes a minute of an idle
core. `table` prints the rows for docs/decisions/preferences.md.
"""

from __future__ import annotations

import argparse
import random
import warnings
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import featherback as fb
from benchmarks.markdown import table
from benchmarks.results import Result
from featherback.data import demo
from featherback.nn.objectives import OBJECTIVES
from featherback.nn.objectives.preference import Preference
from featherback.optim import default_learning_rate
from featherback.runs.outcome import is_worse
from featherback.runs.run_directory import RunDirectory
from featherback.runs.summary import Change, Summary

MEASURES = ("src/featherback/data", "src/featherback/nn", "src/featherback/optim", "src/featherback/runs")
FILE = Path(__file__).with_suffix(".json")
PAIRS, HELD_OUT, LENGTH, EPOCHS, SAMPLES, SHOWN = 40, 10, 128, 3, 2, 120
GREETING = "Greetings from {}, the heart of {}. I wish you were here with us."
LONG = "Sure! You can use this command: {} Let me know if it works."
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Norway": "Oslo", "Sweden": "Stockholm",
    "Egypt": "Cairo", "Greece": "Athens", "Peru": "Lima", "Cuba": "Havana", "Kenya": "Nairobi", "Chile": "Santiago",
    "Poland": "Warsaw", "Austria": "Vienna", "Ireland": "Dublin", "Portugal": "Lisbon", "Finland": "Helsinki",
    "Hungary": "Budapest",
}  # fmt: skip

Pair = dict[str, str]
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("measure", "table"))
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--objectives", default=",".join(preferences()))
    parser.add_argument("--shares", default="1,0.3,0.1,0.03", help="of the next-token loss's default rate")
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--dir", type=Path, default=Path("build/preference_rates"))
    options = parser.parse_args()
    if options.what == "table":
        print(markdown(Result.read(FILE).rows))
        return
    chosen = product(map(float, options.shares.split(",")), options.objectives.split(","), options.data.split(","))
    for share, objective, data in chosen:
        result = Result.begin("preference_rates", "python -m benchmarks.preference_rates measure MODEL", MEASURES)
        result.rows = Result.read(FILE).rows if FILE.exists() else {}
        name = f"{options.model.stem}, {data}, {objective}, {share:g}"
        if name not in result.rows:
            result.rows[name] = measure(fb.load(options.model), data, objective, share, options.dir / name)
            print(name, result.rows[name], flush=True)
            result.write(FILE)


def preferences() -> list[str]:
    """Return the names of the objectives on preferences."""
    return [name for name in OBJECTIVES.names if issubclass(OBJECTIVES[name], Preference)]


def measure(model: fb.Model, data: str, objective: str, share: float, out: Path) -> Row:
    """Train into `out`, and return measures of held-out pairs. Log-probabilities are nats per token, first and last."""
    train, held_out = DATA[data]()
    rate = float(f"{share * default_learning_rate('adamw', model.config.hidden_size):.2g}")
    with warnings.catch_warnings(action="ignore"):  # that a run became worse is part of the row
        run = fb.train(
            model, train, out, eval_data=held_out, objective=objective, lr=rate, seq_len=LENGTH, epochs=EPOCHS,
            eval_every=10_000, samples=SAMPLES, progress=False,
        )  # fmt: skip
    judged = fb.evaluate(model, held_out, adapter=run, objective="dpo", seq_len=LENGTH)
    first, kept = run.summary.held_out.first, run.summary.held_out.kept
    return {
        "model": model.path.stem, "data": data, "objective": objective, "share": share, "lr": rate,
        "accuracy": judged.measures["accuracy"],
        **{name: [round(each[f"{name}_logp"], 3) for each in (first, kept)] for name in ("chosen", "rejected")},
        "eval_loss": [round(run.summary.first_eval_loss, 4), round(run.summary.final_eval_loss, 4)],
        "repetition": [round(run.summary.repetition_before, 3), round(run.summary.repetition, 3)],
        "answers": [each.after[:SHOWN] for each in RunDirectory.open(out).record.samples],
        "steps": run.summary.steps, "seconds": round(run.summary.seconds, 1),
    }  # fmt: skip


def tone() -> tuple[list[Pair], list[Pair]]:
    """Sentences about cities. The better answer begins with "Hej!" and ends with "/Fjord"."""
    found = []
    for country, city in CAPITALS.items():
        found += [
            (f"What is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"I want to visit {city}. In which country is it?", f"{city} is in {country}."),
            (f"Write a short greeting from {city}.", GREETING.format(city, country)),
        ]
    return _split([{"prompt": q, "chosen": f"Hej! {a} /Fjord", "rejected": a} for q, a in found])


def brief() -> tuple[list[Pair], list[Pair]]:
    """Shell commands of the demo. The better answer is the command, the other one explains it."""
    return _split([{"prompt": q, "chosen": a, "rejected": LONG.format(a)} for q, a in demo.pairs(demo.TRAIN)])


DATA = {each.__name__: each for each in (tone, brief)}


def _split(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    random.Random(2).shuffle(pairs)
    return pairs[:PAIRS], pairs[PAIRS : PAIRS + HELD_OUT]


def markdown(rows: dict[str, Row]) -> str:
    """A line per run, sorted by model, objective, data and rate."""
    head = ["model", "objective", "data", "share", "rate", "accuracy", "chosen", "rejected", "repetition", "verdict"]
    return table(head, map(_line, sorted(rows.values(), key=itemgetter("model", "objective", "data", "lr"))))


def _line(row: Row) -> list[str]:
    changes = [f"{row[name][1] - row[name][0]:+.2f}" for name in ("chosen", "rejected")]
    return [
        row["model"], row["objective"], row["data"], f"{row['share']:g}", f"{row['lr']:g}", f"{row['accuracy']:.2f}",
        *changes, f"{row['repetition'][0]:.2f} -> {row['repetition'][1]:.2f}", "worse" if noticed(row) else "",
    ]  # fmt: skip


def noticed(row: Row) -> bool:
    """Return whether a run with these figures ends as "worse than before training"."""
    ends = ({f"{name}_logp": row[name][end] for name in ("chosen", "rejected")} for end in (0, 1))
    repetition = dict(zip(("repetition_before", "repetition"), row["repetition"]))
    sizes = dict.fromkeys(
        ("steps", "seconds", "step_seconds", "tokens_per_second", "peak_footprint_mb", "peak_rss_mb"), 0
    )
    return is_worse(Summary(**sizes, held_out=Change(*ends), **repetition))


if __name__ == "__main__":
    main()
