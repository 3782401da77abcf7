"""`featherback train`"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from featherback.cli.options import FromConfig, JSONOption, ModelArgument


def train(
    context: typer.Context,
    model: ModelArgument,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, exactly.", rich_help_panel="Run")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show at the end how the time was spent.", rich_help_panel="Run")
    ] = False,
    json: JSONOption = False,
    **options: Annotated[Any, FromConfig()],
) -> None:
    """Fine-tune MODEL on your data and leave a LoRA adapter in a directory that PEFT opens.

    Example: featherback train model.gguf --data notes.jsonl --out notes-adapter --steps 200
    """
    from featherback.hub.locate import locate
    from featherback.training.config import TrainConfig
    from featherback.training.launch import become_worker, prepare_run, resume_run

    place = str(locate(model))
    if resume:
        run = resume_run({"model": place, **_named(context, options)})
    else:
        run = prepare_run(TrainConfig.of(model=place, **options))
    try:
        if not json:
            from featherback.cli.preamble import print_preamble

            print_preamble(run, sample=not resume)
        sys.stdout.flush()
        sys.stderr.flush()
        wanted = {"--json": json, "--profile": profile, "--debug": "FEATHERBACK_DEBUG" in os.environ}
        become_worker(run, *(flag for flag, on in wanted.items() if on))
    except BaseException:
        run.update(status="interrupted")
        raise


def _named(context: typer.Context, options: dict[str, Any]) -> dict[str, Any]:
    """The options that stand on the command line: a resumed run has all others already."""
    sources = {name: context.get_parameter_source(name) for name in options}
    stand = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    return {name: value for name, value in options.items() if name in stand}
