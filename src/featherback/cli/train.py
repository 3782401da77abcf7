"""`featherback train`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from featherback.cli.options import FromConfig, JSONOption, ModelOrNone
from featherback.core.sizes import shown_mb
from featherback.core.terminal import complain
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.runs.config import TrainConfig
    from featherback.runs.run_file import RunFile


def train(
    context: typer.Context,
    model: ModelOrNone = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take options from a YAML file, such as a run's run.yaml. What the command line says as well, wins.",
            rich_help_panel="Run",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, exactly.", rich_help_panel="Run")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show at the end how the time was spent.", rich_help_panel="Run")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the data as the model would see them, and the plan; train nothing.",
            rich_help_panel="Run",
        ),
    ] = False,
    json: JSONOption = False,
    **options: Annotated[Any, FromConfig(elsewhere=("out",))],
) -> None:
    """Fine-tune MODEL on your data and leave a LoRA adapter in a directory that PEFT opens, or a model of its own.

    Example: featherback train model.gguf --data notes.jsonl --out notes-adapter --steps 200
    """
    from featherback.cli.begin import go_on
    from featherback.cli.swapped import check_not_swapped
    from featherback.models.hub.locate import locate
    from featherback.runs.changes import replaced
    from featherback.runs.run_file import RunFile, read

    if resume and dry_run:
        raise FeatherbackError("--dry-run shows what a new run would do; leave out --resume.")
    file = RunFile() if config is None else read(config)
    named = _named(context, options)
    if config is not None:
        _forget_programs(file, config, note=not resume and "log_to" not in named)
    values = replaced(file.values, named)
    name = model or file.model
    if name is None and resume and values.get("out") is not None:
        name = _recorded_model(values["out"])
    for given, missing in (
        (name, "MODEL is missing: name a model"),
        (values.get("out"), "--out is missing: name a new directory"),
    ):
        if given is None:
            raise FeatherbackError(f"{missing}, or a --config file that does. See featherback train --help.")
    if not resume:
        check_not_swapped("train", str(name), values.get("data"), values.get("out"))
    place = str(locate(str(name)))
    if resume:
        go_on({"model": place, **values}, resume, None, json=json, profile=profile, dry_run=dry_run)
    whole = file.config({"model": place, **named})
    go_on(whole.to_json(), resume, _plan(file, whole), json=json, profile=profile, dry_run=dry_run)


def _recorded_model(out: str) -> str | None:
    """The path of the model that the run in `out` was begun with, if it is there.

    The run may be a stranger's: the model is compared with the fingerprint on its record, like one that is named.
    """
    from featherback.runs.run_directory import RunDirectory

    recorded = RunDirectory.open(out).config.model
    if not Path(recorded).exists():
        raise FeatherbackError(f"MODEL is missing: {out} was begun with {recorded}, which is not there; name it.")
    complain(f"note: the model is {recorded}, which {out} was begun with")
    return recorded


def _forget_programs(file: RunFile, path: Path, note: bool) -> None:
    """Leave out the programs to log to that a run's own run.yaml names, wherever it lies: it may be a stranger's.
    To resume it, run.json names the same, and it is noted there."""
    from featherback.runs.run_directory import RUN_FILE

    of_a_run = file.plan is not None or os.path.lexists(path.parent / RUN_FILE)
    if of_a_run and (programs := file.values.pop("log_to", None)) and note:
        named = programs if isinstance(programs, str) else ",".join(programs)
        complain(f"note: {path} logs to {named}, which a new run does only if you name it: --log-to {named}")


def _plan(file: RunFile, config: TrainConfig) -> dict[str, Any] | None:
    """The plan of the file, if it is for these options and there is the memory for it."""
    from featherback.engine.host.machine import memory_limit
    from featherback.runs.run_directory import plan_from_json

    values = file.plan_for(config)
    plan = plan_from_json(values)
    if plan is None or not plan.needed:
        return None
    if plan.needed > (free := memory_limit()):
        needed = shown_mb(plan.needed)
        complain(f"note: the plan of the file needs {needed}, and {shown_mb(free)} are free: another is made")
        return None
    return values


def _named(context: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """The options that stand on the command line: all others a file may have, or a resumed run has them already."""
    sources = {name: context.get_parameter_source(name) for name in options}
    stand = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return {name: value for name, value in options.items() if name in stand}
