"""`featherback train`"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from featherback.cli.options import JSONOption, ModelArgument, ThreadsOption

if TYPE_CHECKING:
    from featherback.training.run_directory import RunDirectory

_DATA, _LORA, _STEPS, _RUN = "Data", "Adapter", "Optimisation", "Run"


def train(
    model: ModelArgument,
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="JSONL with messages, prompt/completion or text; or a .txt file.",
            rich_help_panel=_DATA,
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="New directory for the adapter and the run's records.")
    ],
    method: Annotated[
        str,
        typer.Option(metavar="mesp|mebp|mezo", help="How gradients are obtained.", rich_help_panel=_STEPS),
    ] = "mesp",
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Never exceed this, e.g. 96MB.", rich_help_panel=_RUN)
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank of the LoRA matrices.", rich_help_panel=_LORA)] = 8,
    alpha: Annotated[
        float, typer.Option(help="The adapter is scaled by alpha / rank.", rich_help_panel=_LORA)
    ] = 16,
    targets: Annotated[
        str,
        typer.Option(
            help="Projections to adapt: all, or some of q,k,v,o,gate,up,down.", rich_help_panel=_LORA
        ),
    ] = "all",
    seq_len: Annotated[
        int,
        typer.Option(help="Longest sequence; longer examples are cut, and counted.", rich_help_panel=_DATA),
    ] = 256,
    batch_size: Annotated[
        int,
        typer.Option(help="A batch packs sequences into this times --seq-len tokens.", rich_help_panel=_DATA),
    ] = 1,
    accumulate: Annotated[int, typer.Option(help="Batches a step.", rich_help_panel=_STEPS)] = 1,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.", rich_help_panel=_STEPS)] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the data, instead of --steps. [default: 3]", rich_help_panel=_STEPS),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            "--lr",
            "--learning-rate",
            help="Peak learning rate. [default: 2e-4 for adamw, 0.1 for sgd]",
            rich_help_panel=_STEPS,
        ),
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="adamw|sgd", rich_help_panel=_STEPS)] = "adamw",
    schedule: Annotated[
        str,
        typer.Option(
            metavar="cosine|linear|constant", help="What follows the warm-up.", rich_help_panel=_STEPS
        ),
    ] = "cosine",
    warmup: Annotated[
        int, typer.Option(help="Steps over which the learning rate rises.", rich_help_panel=_STEPS)
    ] = 0,
    weight_decay: Annotated[
        float, typer.Option(help="Decoupled weight decay.", rich_help_panel=_STEPS)
    ] = 0.0,
    max_grad_norm: Annotated[
        float, typer.Option(help="Clip the gradient to this norm. 0: never.", rich_help_panel=_STEPS)
    ] = 1.0,
    compute: Annotated[
        str,
        typer.Option(
            metavar="bf16|fp32", help="Precision of the matrix products' inputs.", rich_help_panel=_RUN
        ),
    ] = "bf16",
    threads: ThreadsOption = None,
    seed: Annotated[
        int, typer.Option(help="Of the adapter's start and the data's order.", rich_help_panel=_RUN)
    ] = 0,
    eval_data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Held-out data: measured before and after; the best is kept.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(help="Measure the held-out loss every so many steps too.", rich_help_panel=_RUN),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Stop after so many measurements without a new best.", rich_help_panel=_RUN),
    ] = None,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.", rich_help_panel=_RUN)] = 50,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out, exactly.", rich_help_panel=_RUN)
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Say at the end where the time went.", rich_help_panel=_RUN)
    ] = False,
    json: JSONOption = False,
) -> None:
    """Fine-tune MODEL on your data and leave a LoRA adapter in a directory that PEFT opens.

    Example: featherback train model.gguf --data notes.jsonl --out notes-adapter --steps 200
    """
    from featherback.hub.locate import locate
    from featherback.architecture.names import parse_targets
    from featherback.training.config import TrainConfig, parse_memory
    from featherback.training.launch import prepare_run

    config = TrainConfig(
        model=str(locate(model)),
        data=data,
        out=out,
        method=method,
        memory=None if memory is None else parse_memory(memory),
        rank=rank,
        alpha=alpha,
        targets=parse_targets(targets),
        seq_len=seq_len,
        batch_size=batch_size,
        accumulate=accumulate,
        steps=steps,
        epochs=epochs,
        learning_rate=lr,
        optimizer=optimizer,
        schedule=schedule,
        warmup=warmup,
        weight_decay=weight_decay,
        max_grad_norm=max_grad_norm,
        compute=compute,
        threads=threads,
        seed=seed,
        eval_data=eval_data,
        eval_every=eval_every,
        patience=patience,
        save_every=save_every,
    )
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
