"""`python -m benchmarks`: measure, and put the figures into README and docs. It needs a checkout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import results
from featherback.core.cache import cache_folder
from featherback.core.failure import report
from featherback.core.terminal import say
from featherback.errors import FeatherbackError, expected

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def measure(
    parts: Annotated[
        list[str] | None, typer.Argument(help="Parts to measure, for example memory job. Default: all but llama.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Measure only rows whose name contains this. The result is not published.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder for models and runs. Default: in the cache.")
    ] = None,
    results_folder: Annotated[
        Path, typer.Option("--results", help="Folder for the result files.", show_default="docs/results")
    ] = results.FOLDER,
    model: Annotated[
        str, typer.Option(help="The chat model that job, methods, gradients and run train.")
    ] = "smollm2-135m",
    tiny: Annotated[
        bool, typer.Option("--tiny", help="Few steps of a small model, to check that everything runs.")
    ] = False,
) -> None:
    """Measure the figures of README and docs again. An interrupted measurement goes on where it stopped.

    Example: python -m benchmarks measure memory peft
    """
    from benchmarks.measure import measure
    from benchmarks.place import Place

    if tiny and results_folder == results.FOLDER:
        raise FeatherbackError("figures of --tiny mean nothing; name a folder for them: --results build/tiny")
    place = Place(folder or cache_folder() / "bench", _tell, model, tiny)
    measure(parts or [], place, folder=results_folder, only=rows)


@app.command()
def figures() -> None:
    """Put the figures of docs/results into README, docs and pictures. Nothing is measured."""
    from benchmarks.figures import update

    update(_tell)


@app.command()
def stale() -> None:
    """List the result files that are older than the code that they measure. Always ends with status 0."""
    for line in results.warnings(list(results.read_all().values())):
        say(f"warning: {line}")


@app.command()
def speed(
    models: Annotated[str, typer.Option(help="Synthetic models, separated by commas.")] = "qwen2.5-0.5b",
    isa: Annotated[
        str | None, typer.Option(help="Use this instruction set on both sides: avx2 or avx512. Default: the best.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--dir", help="Folder for models. Default: in the cache.")] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each process. The first is not timed.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One round of the first model.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the model files.")] = False,
) -> None:
    """Compare step times with PEFT and oneDNN in rounds, in which both sides take turns.

    Not part of the published figures: for work on the kernels.
    """
    from benchmarks.synthetic import CONFIGS

    names = [name.strip() for name in models.split(",") if name.strip()]
    if wrong := next((name for name in names if name not in CONFIGS), None):
        raise FeatherbackError(f"unknown model {wrong!r} in --models; {expected(wrong, CONFIGS)}")
    place = folder or cache_folder() / "bench"
    if isa is not None:
        from benchmarks import limited

        found = limited.run(names, isa, place, steps, quick, keep, _tell)
    else:
        from benchmarks import speed

        found = speed.run(names, place, steps, quick, keep, _tell)
    say(found["markdown"])


def _tell(text: str) -> None:
    say(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the command line; the exit status."""
    try:
        app(standalone_mode=False)
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        if hasattr(error, "format_message"):  # an option that is not known
            say(f"error: {error.format_message()}", file=sys.stderr)
            return 2
        return report(error, debug=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
