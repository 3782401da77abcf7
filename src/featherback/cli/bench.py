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

WHAT = ("memory", "speed", "curve", "gradients", "peers")


def bench(
    what: Annotated[str, typer.Argument(metavar="|".join(WHAT), help="What to measure.")],
    models: Annotated[
        str,
        typer.Option(help="memory, peers, speed, curve: the synthetic models, e.g. qwen2.5-0.5b,qwen2.5-3b."),
    ] = "qwen2.5-0.5b",
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="gradients: the model whose gradients are compared.")
    ] = "smollm2-135m",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Folder for synthetic models and runs.",
            show_default="the cache",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all results here as JSON; a plot goes beside it."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each measured run; the first is not timed.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only a few rows, to check that the benchmark runs.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the synthetic model files.")] = False,
    json: JSONOption = False,
) -> None:
    """Reproduce the published tables on this machine, each run in a fresh process. No model is downloaded.

    Example: featherback bench memory --models qwen2.5-0.5b,qwen2.5-1.5b
    """
    from featherback.bench.watch import machine
    from featherback.errors import FeatherbackError
    from featherback.hub.cache import cache_folder

    if what not in WHAT:
        raise FeatherbackError(f"There is no benchmark {what!r}; choose from {', '.join(WHAT)}.")
    names = _names(models)
    place = folder or cache_folder() / "bench"

    def tell(text: str) -> None:
        say(text, file=sys.stderr, flush=True)

    tell(machine())
    results = {"machine": machine(), **_run(what, names, model, place, steps, quick, keep, tell, out)}
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
    if what == "curve":
        from featherback.bench import budget_curve

        return budget_curve.run(names, place, steps, quick, keep, say)
    from featherback.bench import speed

    return speed.run(names, place, steps, quick, keep, say)


def _names(text: str) -> list[str]:
    from featherback.bench.synthetic import CONFIGS
    from featherback.errors import FeatherbackError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in CONFIGS] or not names:
        raise FeatherbackError(f"--models has {unknown or text!r}; choose from {', '.join(CONFIGS)}.")
    return names


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
