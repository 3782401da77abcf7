"""`featherback train`"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from featherback.cli.options import FromConfig, JSONOption, ModelArgument

if TYPE_CHECKING:
    from featherback.training.run_directory import RunDirectory


def train(
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
    from featherback.training.launch import prepare_run

    config = TrainConfig.of(model=str(locate(model)), **options)
    run = prepare_run(config, resume)
    if not json:
        from featherback.cli.preamble import print_preamble

        print_preamble(run)
    become_worker(run, json, profile)


def become_worker(run: RunDirectory, json: bool, profile: bool) -> None:
    """Replace this process, with all it imported, by the small one that trains."""
    from featherback.training.launch import worker_command

    flags = ["--json"] * json + ["--profile"] * profile + ["--debug"] * ("FEATHERBACK_DEBUG" in os.environ)
    command, environment = worker_command(run, *flags)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)
