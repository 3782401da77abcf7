"""`python -m benchmarks`: the published tables, from a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.synthetic import CONFIGS
from benchmarks.watch import machine
from featherback.cli.options import JSONOption
from featherback.core.cache import cache_folder
from featherback.core.failure import report
from featherback.core.terminal import say
from featherback.errors import FeatherbackError, expected

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str], None]

WHAT = ("memory", "speed", "curve", "gradients", "peers", "job", "methods")
STEPS = {"job": 40, "methods": 24}
USUAL_STEPS = 3  # of the others


def bench(
    what: Annotated[str, typer.Argument(metavar="|".join(WHAT), help="What to measure.")],
    models: Annotated[
        str,
        typer.Option(
            "--models", help="memory, peers, speed, curve: the synthetic models, e.g. qwen2.5-0.5b,qwen2.5-3b."
        ),
    ] = "qwen2.5-0.5b",
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="gradients, job, methods: the model that is trained.")
    ] = "smollm2-135m",
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="PATH", help="methods: what is learnt, as for train.", show_default="the demo's"
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option("--rows", help="methods: some of them, e.g. mesp,lomo.", show_default="all")
    ] = None,
    lr_factors: Annotated[
        str, typer.Option("--lr-factors", help="methods: factors of the default learning rates, e.g. 0.3,1,3.")
    ] = "1",
    isa: Annotated[
        str | None,
        typer.Option(
            "--isa",
            metavar="SET",
            help="speed: on this instruction set, every compute of ours beside PEFT's: avx2 or avx512.",
            show_default="the best of this CPU",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0,
            help="methods: of steps, that every run is given.",
            show_default="as the first row takes",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Folder for synthetic models and runs.", show_default="the cache"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write all results here as JSON; a plot goes beside it."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            help="Steps of each measured run; the first is not timed, but in a job.",
            show_default="; ".join((str(USUAL_STEPS), *(f"{what}: {count}" for what, count in STEPS.items()))),
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only a few rows, to check that the benchmark runs.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the synthetic model files.")] = False,
    json: JSONOption = False,
) -> None:
    """Reproduce the published tables on this machine, each run in a fresh process. No model is downloaded.

    Example: python -m benchmarks memory --models qwen2.5-0.5b,qwen2.5-1.5b
    """
    if what not in WHAT:
        raise FeatherbackError(f"There is no benchmark {what!r}; {expected(what, WHAT)}")
    names = _names(models)
    place = folder or cache_folder() / "bench"

    def tell(text: str) -> None:
        say(text, file=sys.stderr, flush=True)

    steps = steps or STEPS.get(what, USUAL_STEPS)
    tell(machine())
    if what == "methods":
        from benchmarks import methods
        from featherback.models.hub.locate import locate

        chosen = methods.rows(_words(rows), _factors(lr_factors))[: 1 if quick else None]
        found = methods.run(str(locate(model)), data or [], chosen, place, steps, seconds, tell)
    elif isa is not None:
        if what != "speed":
            raise FeatherbackError(f"--isa is for `benchmarks speed`; {what} has no use for it.")
        from benchmarks import limited

        found = limited.run(names, isa, place, steps, quick, keep, tell)
    else:
        found = _run(what, names, model, place, steps, quick, keep, tell, out)
    results = {"machine": machine(), **found}
    _tell(results, out, json)


def _run(
    what: str,
    names: list[str],
    model: str,
    place: Path,
    steps: int,
    quick: bool,
    keep: bool,
    say: Say,
    out: Path | None,
) -> dict[str, Any]:
    if what == "memory":
        from benchmarks import memory
        from featherback.core.files import write_json

        def save(results: dict[str, Any]) -> None:
            if out is not None:
                write_json(out, results)

        return memory.run(names, place, steps, quick, keep, say, save)
    if what == "gradients":
        from benchmarks import gradients

        return gradients.run(model, quick, say)
    if what == "peers":
        from benchmarks import peers

        return peers.run(names, place, steps, quick, keep, say)
    if what == "job":
        from benchmarks import job

        return job.run(model, place, steps, quick, say)
    if what == "curve":
        from benchmarks import budget_curve

        return budget_curve.run(names, place, steps, quick, keep, say)
    from benchmarks import speed

    return speed.run(names, place, steps, quick, keep, say)


def _names(text: str) -> list[str]:
    names = _words(text)
    if not names or not all(name in CONFIGS for name in names):
        wrong = next((name for name in names if name not in CONFIGS), text)
        raise FeatherbackError(f"--models has {wrong!r}; {expected(wrong, CONFIGS)}")
    return names


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _factors(text: str) -> list[float]:
    try:
        factors = [float(word) for word in _words(text)]
    except ValueError:
        factors = []
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise FeatherbackError(f"--lr-factors is {text!r}; name numbers above 0, such as 0.3,1,3.")
    return factors


def _tell(results: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from json import dumps

    from featherback.core.files import write_bytes

    plots = results.pop("plots", {})
    if out is not None:
        write_bytes(out, (dumps(results, indent=1) + "\n").encode())
        for name, picture in plots.items():
            write_bytes(out.with_name(f"{out.stem}-{name}.svg"), picture.encode())
    if as_json:
        say(dumps(results))
    else:
        say(results["markdown"])


def main() -> int:
    """Run the command line; the exit status."""
    try:
        typer.run(bench)
    except Exception as error:
        return report(error, debug=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
