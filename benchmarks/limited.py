"""`python -m benchmarks speed --isa avx2`: steps on an older instruction set than this machine's, ours and PEFT's.

Neither side uses a newer one. They take turns, so that other work on the machine slows both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import watch
from benchmarks.markdown import table
from benchmarks.peers import peft_step, require_torch
from benchmarks.steps import fastest, job_of, plan_of, run_step
from benchmarks.synthetic import made
from featherback.engine import kernels
from featherback.errors import FeatherbackError

TOKENS = 256
ISAS: dict[str, Mapping[str, str]] = {
    name: {
        "FEATHERBACK_KERNELS": name,
        "ATEN_CPU_CAPABILITY": name,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": name.upper(),
    }
    for name, onednn in (("avx2", "AVX2"), ("avx512", "AVX512_CORE"))
}
"""Instruction set -> what tells it to our kernels, PyTorch's, oneDNN's and MKL's. MKL, which has PyTorch's products of
float32, follows it on Intel's processors; on AMD's it chooses by itself."""
OURS = "ours, fp32"


def run(
    names: list[str], isa: str, cache: Path, steps: int, quick: bool, keep: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Each of our computes beside PEFT in fp32 and bf16, with and without checkpointing.

    `quick`: one round, of the first model.

    FeatherbackError if this machine, or the comparison, does not have the instruction set.
    """
    if isa not in ISAS or isa not in kernels.available():
        able = [name for name in ISAS if name in kernels.available()]
        raise FeatherbackError(f"--isa is {isa!r}; this machine compares on {', '.join(able) or 'none'}.")
    require_torch()
    rounds, parts = {}, []
    for name in names[:1] if quick else names:
        with made(name, cache, keep) as path:
            sides = _sides(name, path, isa, cache, steps)
            rounds[name] = rows = [_round(sides, say) for _ in range(1 if quick else 3)]
        lines = [
            [
                label,
                f"{median(row[label] for row in rows):.2f}",
                f"{median(row[OURS] / row[label] for row in rows):.2f}",
            ]
            for label in sides
        ]
        parts.append(table([f"{name}, {TOKENS} tokens, {isa}", "s per step", "rate relative to our fp32"], lines))
    return {"isa": isa, "rounds": rounds, "markdown": "\n\n".join(parts)}


def _sides(name: str, path: Path, isa: str, cache: Path, steps: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Label -> a function that measures a few steps."""
    environment = ISAS[isa]

    def ours(compute: str) -> Callable[[], dict[str, Any]]:
        with _using(isa):
            plan = plan_of(job_of(path, TOKENS, compute=compute))
        return lambda: run_step(
            path, plan, cache, tokens=TOKENS, steps=steps, interval=watch.RARELY, environment=environment
        )

    def peft(dtype: str, checkpointing: bool) -> Callable[[], dict[str, Any]]:
        return lambda: peft_step(
            name, dtype, checkpointing, tokens=TOKENS, steps=steps, interval=watch.RARELY, environment=environment
        )

    return {f"ours, {compute}": ours(compute) for compute in reversed(kernels.OPERANDS)} | {
        f"PEFT, {dtype}{', checkpointing' * checkpointing}": peft(dtype, checkpointing)
        for dtype in ("fp32", "bf16")
        for checkpointing in (True, False)
    }


def _round(sides: Mapping[str, Callable[[], dict[str, Any]]], say: Callable[[str], None]) -> dict[str, float]:
    """Label -> seconds per step."""
    found = {}
    for label, measure in sides.items():
        found[label] = fastest(measure()["seconds"])
        say(f"{label}: {found[label]:.2f} s")
    return found


@contextmanager
def _using(isa: str) -> Iterator[None]:
    before = kernels.current()
    kernels.use(isa)
    try:
        yield
    finally:
        kernels.use(before)
