"""`python -m benchmarks speed`: ratios, from runs paired in time: other work slows both sides of a pair."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import watch
from benchmarks.markdown import table
from benchmarks.peers import peft_step, require_torch
from benchmarks.steps import fastest, job_of, plan_of, run_step
from benchmarks.synthetic import CONFIGS, made
from featherback.engine import kernels
from featherback.methods.memory.plan import Plan
from featherback.models import families
from featherback.models.architecture.config import ModelConfig

Say = Callable[[str], None]
TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_0", "Q6_K")
OURS = "ours, no budget named"
PLENTY = 4 * 10**9  # bytes: a budget under which nothing has to be recomputed


@dataclass(frozen=True)
class Setting:
    """A model's shapes at a sequence length."""

    model: str
    tokens: int


def settings(names: list[str]) -> list[Setting]:
    """Every model at the paper's length, the first also at four times that length."""
    return [Setting(name, 256) for name in names] + [Setting(names[0], 1024)]


def run(names: list[str], cache: Path, steps: int, quick: bool, keep: bool, say: Say) -> dict[str, Any]:
    """All comparisons on the shapes of the models called `names`; with `quick`, one round of the first's alone."""
    require_torch()
    chosen, rounds = (settings(names)[:1], 1) if quick else (settings(names), 3)
    with ExitStack() as stack:
        names = list(dict.fromkeys(setting.model for setting in chosen))
        paths = {name: stack.enter_context(made(name, cache, keep)) for name in names}
        found = {setting: _rounds(setting, paths[setting.model], cache, steps, rounds, say) for setting in chosen}
        products = [] if quick else _products(CONFIGS[names[0]], say)
    parts = [_step_table(setting, rows) for setting, rows in found.items()]
    if products:
        parts.append(
            "Our products' rate relative to oneDNN's in bf16 (forward, backward):\n\n" + _product_table(products)
        )
    return {
        "steps": [{**asdict(setting), "rounds": rows} for setting, rows in found.items()],
        "products": products,
        "markdown": "\n\n".join(parts),
    }


def _rounds(setting: Setting, path: Path, cache: Path, steps: int, rounds: int, say: Say) -> list[dict[str, float]]:
    """One dictionary per round: seconds of everything, measured one after the other."""
    cores = kernels.default_threads()
    plans = {name: plan_of(job_of(path, setting.tokens, name)) for name in ("mesp", "mebp")}
    roomy = plan_of(job_of(path, setting.tokens), budget=PLENTY)

    def ours(plan: Plan, method: str = "mesp", threads: int | None = None) -> float:
        return fastest(
            run_step(
                path,
                plan,
                cache,
                method=method,
                steps=steps,
                threads=threads,
                tokens=setting.tokens,
                interval=watch.RARELY,
            )["seconds"]
        )

    def peft(checkpointing: bool) -> float:
        return fastest(
            peft_step(setting.model, "bf16", checkpointing, tokens=setting.tokens, steps=steps, interval=watch.RARELY)[
                "seconds"
            ]
        )

    rows = []
    for index in range(rounds):
        row = {
            OURS: ours(plans["mesp"]),
            "products alone, by oneDNN": _onednn_sum(CONFIGS[setting.model], setting.tokens, cores),
            _of_plenty(roomy): ours(roomy),
            "mebp": ours(plans["mebp"], method="mebp"),
            "one thread": ours(plans["mesp"], threads=1),
            "PEFT bf16, checkpointing": peft(True),
            "PEFT bf16": peft(False),
        }
        rows.append(row)
        times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in row.items())
        say(f"{setting.model}, {setting.tokens} tokens, round {index + 1}: {times}")
    return rows


def _of_plenty(plan: Plan) -> str:
    """The row of the plan chosen within PLENTY; a machine with less memory may have to recompute the blocks."""
    return f"blocks {'kept' if plan.keep else 'recomputed'} (--memory {PLENTY // 10**9}GB)"


def _onednn_sum(config: ModelConfig, tokens: int, threads: int) -> float:
    """Seconds of the products of a step of MeSP: forward, recomputation without `down`, gradients of inputs, head."""
    shapes = families.blocks(config)[0].projections
    head = (config.vocab_size, config.hidden_size)
    lines = _onednn([*shapes.values(), head], tokens, threads, ())
    times = dict(zip([*shapes, "head"], lines))
    total = times["head"]["forward"]["onednn"] + times["head"]["backward"]["onednn"]
    for name in shapes:
        passes = 1 if name == "down_proj" else 2
        layer = passes * times[name]["forward"]["onednn"] + times[name]["backward"]["onednn"]
        total += config.num_hidden_layers * layer
    return float(total)


def _onednn(shapes: list[tuple[int, int]], tokens: int, threads: int, types: tuple[str, ...]) -> list[dict[str, Any]]:
    request = {"shapes": shapes, "tokens": tokens, "types": types, "threads": threads}
    command = [sys.executable, "-m", "benchmarks.onednn", json.dumps(request)]
    outcome = watch.run(command, interval=watch.RARELY)
    found: list[dict[str, Any]] = json.loads(outcome.output.splitlines()[-1])
    return found


def _products(config: ModelConfig, say: Say) -> list[dict[str, Any]]:
    """Every type on the model's shapes, and on the 3B model's MLP, at 256 and 1024 tokens."""
    d, f = config.hidden_size, config.intermediate_size
    shapes = [(f, d), (d, f), (d, d), (config.kv_size, d), (11_008, 2048), (2048, 11_008)]
    found = []
    for tokens in (256, 1024):
        say(f"products at {tokens} tokens")
        for line in _onednn(shapes, tokens, kernels.default_threads(), TYPES):
            found.append({"tokens": tokens, **line})
    return found


def _step_table(setting: Setting, rows: list[dict[str, float]]) -> str:
    """Medians of the rounds' seconds, and of their ratios to ours."""
    lines = []
    for name in rows[0]:
        ratio = median(row[name] / row[OURS] for row in rows)
        lines.append([name, f"{median(row[name] for row in rows):.2f}", f"{ratio:.2f}"])
    return table([f"{setting.model}, {setting.tokens} tokens, bf16", "s per step", "relative to ours"], lines)


def _product_table(lines: list[dict[str, Any]]) -> str:
    keys = list(dict.fromkeys((line["tokens"], line["rows"], line["cols"]) for line in lines))
    cells = {(line["tokens"], line["rows"], line["cols"], line["type"]): line for line in lines}
    body = []
    for key in keys:
        row = [f"{key[0]}", f"{key[1]} x {key[2]}"]
        for name in TYPES:
            line = cells.get((*key, name))
            row.append("" if line is None else f"{line['forward']['ratio']:.2f} {line['backward']['ratio']:.2f}")
        body.append(row)
    return table(["tokens", "weight", *TYPES], body)
