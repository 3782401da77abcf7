"""`featherback bench`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from featherback.cli.options import JSONOption
from featherback.terminal import say

if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str], None]

WHAT = ("memory", "speed", "curve", "gradients", "peers", "job", "methods")
STEPS = {"job": 40, "methods": 24}
USUAL_STEPS = 3  # of the others


def bench(
    what: Annotated[str, typer.Argument(metavar="|".join(WHAT), help="What to measure.")],
    models: Annotated[
        str, typer.Option(help="memory, peers, speed, curve: the synthetic models, e.g. qwen2.5-0.5b,qwen2.5-3b.")
    ] = "qwen2.5-0.5b",
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="gradients, job, methods: the model that is trained.")
    ] = "smollm2-135m",
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="methods: what is learnt, as for train.", show_default="the demo's"),
    ] = None,
    rows: Annotated[str | None, typer.Option(help="methods: some of them, e.g. mesp,lomo.", show_default="all")] = None,
    lr_factors: Annotated[
        str, typer.Option(help="methods: factors of the default learning rates, e.g. 0.3,1,3.")
    ] = "1",
    isa: Annotated[
        str | None,
        typer.Option(
            metavar="SET",
            help="speed: on this instruction set, every compute of ours beside PEFT's: avx2 or avx512.",
            show_default="the best of this CPU",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0, help="methods: of steps, that every run is given.", show_default="as the first row takes"),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Folder for synthetic models and runs.", show_default="the cache"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all results here as JSON; a plot goes beside it.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
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

    Example: featherback bench memory --models qwen2.5-0.5b,qwen2.5-1.5b
    """
    from featherback.bench.watch import machine
    from featherback.errors import FeatherbackError, expected
    from featherback.hub.cache import cache_folder

    if what not in WHAT:
        raise FeatherbackError(f"There is no benchmark {what!r}; {expected(what, WHAT)}")
    names = _names(models)
    place = folder or cache_folder() / "bench"

    def tell(text: str) -> None:
        say(text, file=sys.stderr, flush=True)

    steps = steps or STEPS.get(what, USUAL_STEPS)
    tell(machine())
    if what == "methods":
        from featherback.bench import methods
        from featherback.hub.locate import locate

        chosen = methods.rows(_words(rows), _factors(lr_factors))[: 1 if quick else None]
        found = methods.run(str(locate(model)), data or [], chosen, place, steps, seconds, tell)
    elif isa is not None:
        if what != "speed":
            raise FeatherbackError(f"--isa is for `bench speed`; {what} has no use for it.")
        from featherback.bench import limited

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
        from featherback.bench import memory
        from featherback.files import write_json

        def save(results: dict[str, Any]) -> None:
            if out is not None:
                write_json(out, results)

        return memory.run(names, place, steps, quick, keep, say, save)
    if what == "gradients":
        from featherback.bench import gradients

        return gradients.run(model, quick, say)
    if what == "peers":
        from featherback.bench import peers

        return peers.run(names, place, steps, quick, keep, say)
    if what == "job":
        from featherback.bench import job

        return job.run(model, place, steps, quick, say)
    if what == "curve":
        from featherback.bench import budget_curve

        return budget_curve.run(names, place, steps, quick, keep, say)
    from featherback.bench import speed

    return speed.run(names, place, steps, quick, keep, say)


def _names(text: str) -> list[str]:
    from featherback.bench.synthetic import CONFIGS
    from featherback.errors import FeatherbackError, expected

    names = _words(text)
    if not names or not all(name in CONFIGS for name in names):
        wrong = next((name for name in names if name not in CONFIGS), text)
        raise FeatherbackError(f"--models has {wrong!r}; {expected(wrong, CONFIGS)}")
    return names


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _factors(text: str) -> list[float]:
    from featherback.errors import FeatherbackError

    try:
        factors = [float(word) for word in _words(text)]
    except ValueError:
        factors = []
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise FeatherbackError(f"--lr-factors is {text!r}; name numbers above 0, such as 0.3,1,3.")
    return factors


def _tell(results: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from json import dumps

    from featherback.files import write_bytes

    plots = results.pop("plots", {})
    if out is not None:
        write_bytes(out, (dumps(results, indent=1) + "\n").encode())
        for name, picture in plots.items():
            write_bytes(out.with_name(f"{out.stem}-{name}.svg"), picture.encode())
    if as_json:
        say(dumps(results))
    else:
        say(results["markdown"])
