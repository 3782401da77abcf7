"""`python -m benchmarks`: measure, and put the figures into README and docs. It needs a checkout."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from benchmarks import results
from featherback.core.cache import cache_folder
from featherback.core.failure import report
from featherback.core.terminal import say
from featherback.errors import FeatherbackError, expected


def measure(
    parts: list[str],
    rows: str | None,
    folder: Path | None,
    results_folder: Path,
    model: str,
    tiny: bool,
    patience: float,
) -> None:
    """Measure the figures of README and docs again. An interrupted measurement goes on where it stopped.

    It waits until others use almost nothing of the processor, and measures a row until two trials agree.

    Example: python -m benchmarks measure memory peft
    """
    from benchmarks.measure import measure
    from benchmarks.place import Place

    if tiny and results_folder == results.FOLDER:
        raise FeatherbackError("figures of --tiny mean nothing; name a folder for them: --results build/tiny")
    place = Place(folder or cache_folder() / "bench", _tell, model, tiny, 60 * patience)
    measure(parts, place, folder=results_folder, only=rows)


def figures() -> None:
    """Put the figures of docs/results into README, docs and pictures. Nothing is measured."""
    from benchmarks.figures import update

    update(_tell)


def stale() -> None:
    """List the result files that are older than the code that they measure. Always ends with status 0."""
    for line in results.warnings(list(results.read_all().values())):
        say(f"warning: {line}")


def speed(models: str, isa: str | None, folder: Path | None, steps: int, quick: bool, keep: bool) -> None:
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


def competition(
    model: str, against: Path | None, work: list[str] | None, rounds: int, conditions: int, folder: Path | None
) -> None:
    """Compare training, decoding and serving beside other processes with the idle machine.

    Linux. The quota needs root. Not part of the published figures: for work on the threads.
    Example: python -m benchmarks competition --against build/old/_native.so
    """
    from benchmarks import competition
    from benchmarks.synthetic import CONFIGS, made
    from featherback.engine import kernels

    works = work or list(competition.WORKS)
    if wrong := next((name for name in works if name not in competition.WORKS), None):
        raise FeatherbackError(f"unknown work {wrong!r} in --work; {expected(wrong, competition.WORKS)}")
    builds = {"old": against} if against else {}
    builds["new"] = kernels.library()
    with (
        made(model, folder or cache_folder() / "bench", True) if model in CONFIGS else nullcontext(Path(model)) as path
    ):
        say(competition.run(path, builds, works, rounds, conditions, _tell)["markdown"])


def _tell(text: str) -> None:
    say(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    option: dict[str, Callable[..., object]] = {}
    for function in (measure, figures, stale, speed, competition):
        text = inspect.cleandoc(function.__doc__ or "")
        command = commands.add_parser(function.__name__, help=text.split("\n\n")[0], description=text)
        command.set_defaults(function=function)
        option[function.__name__] = command.add_argument
    add = option["measure"]
    add("parts", nargs="*", help="Parts to measure, for example memory job. Default: all but llama.")
    add("--rows", help="Measure only rows whose name contains this. The result is not published.")
    add("--dir", dest="folder", type=Path, help="Folder for models and runs. Default: in the cache.")
    add("--results", dest="results_folder", type=Path, default=results.FOLDER, help="Folder for the result files.")
    add("--model", default="smollm2-135m", help="The chat model that job, methods, gradients and run train.")
    add("--tiny", action="store_true", help="Few steps of a small model, to check that everything runs.")
    add(
        "--patience",
        type=float,
        default=10,
        metavar="MINUTES",
        help="How long to wait for a quiet machine. Default: 10.",
    )
    add = option["speed"]
    add("--models", default="qwen2.5-0.5b", help="Synthetic models, separated by commas.")
    add("--isa", help="Use this instruction set on both sides: avx2 or avx512. Default: the best.")
    add("--dir", dest="folder", type=Path, help="Folder for models. Default: in the cache.")
    add("--steps", type=int, default=3, help="Steps of each process, at least 2. The first is not timed.")
    add("--quick", action="store_true", help="One round of the first model.")
    add("--keep", action="store_true", help="Keep the model files.")
    add = option["competition"]
    add("--model", default="qwen2.5-0.5b", help="A model file, or a synthetic model.")
    add("--against", type=Path, metavar="FILE", help="Compiled kernels of another build. Default: only this one.")
    add("--work", action="append", help="A row of the table. May be repeated. Default: all.")
    add("--rounds", type=int, default=7, help="Times that each piece of work is measured.")
    add("--conditions", type=int, default=6, help="Measure only the first ones.")
    add("--dir", dest="folder", type=Path, help="Folder for models. Default: in the cache.")
    return parser


def main() -> int:
    """Run the command line; the exit status."""
    given = vars(_parser().parse_args())
    try:
        given.pop("function")(**given)
    except Exception as error:
        return report(error, debug=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
