"""`featherback plan`"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from featherback.cli.options import JSONOption, ModelArgument, ThreadsOption

if TYPE_CHECKING:
    from featherback.training.outlook import MethodOutlook


def plan(
    model: ModelArgument,
    memory: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Cap of the resident memory, such as 96MB.")
    ] = None,
    rank: Annotated[int, typer.Option(help="Of the adapter.")] = 8,
    targets: Annotated[str, typer.Option(help="all, or some of q,k,v,o,gate,up,down.")] = "all",
    seq_len: Annotated[int, typer.Option("--seq-len", help="Tokens of the longest sequence.")] = 256,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Sequences of that length a batch.")] = 1,
    optimizer: Annotated[str, typer.Option(metavar="adamw|sgd")] = "adamw",
    compute: Annotated[str, typer.Option(metavar="bf16|fp32")] = "bf16",
    threads: ThreadsOption = None,
    json: JSONOption = False,
) -> None:
    """Predict what training MODEL would take, in memory and time, under every method. Nothing is trained.

    Example: featherback plan model.gguf --memory 96MB --seq-len 512
    """
    from featherback.cli.options import open_model, set_threads
    from featherback.architecture.names import parse_targets
    from featherback.training.choose import worker_baseline
    from featherback.training.config import TrainConfig, parse_memory
    from featherback.training.outlook import largest_models, outlook

    set_threads(threads)
    opened, _ = open_model(model)
    config = TrainConfig(
        model=str(opened.path),
        data="none",
        out="",
        memory=None if memory is None else parse_memory(memory),
        rank=rank,
        targets=parse_targets(targets),
        seq_len=seq_len,
        batch_size=batch_size,
        optimizer=optimizer,
        compute=compute,
        threads=threads,
    )
    config.check_model(opened.config)
    baseline = worker_baseline()
    rows = outlook(config, opened, baseline)
    family = list(largest_models(config, baseline))
    if json:
        from json import dumps

        print(dumps({"methods": [asdict(row) for row in rows], "largest": [list(row) for row in family]}))
        return
    asked = f"within {memory}" if memory else "with nearly the least memory"
    print(
        f"{opened.path.name}, {seq_len * batch_size} tokens a batch, rank {rank}, {optimizer}, {compute}: {asked}\n"
    )
    _print_methods(rows)
    print("\nThe largest 4-bit Qwen2.5 shape that fits, resident memory counted:\n")
    names = [row.method for row in rows]
    print(f"{'memory':<10}" + "".join(f"{name:>8}" for name in names))
    for amount, sizes in family:
        print(f"{amount / 1e6:<7.0f}MB " + "".join(f"{sizes[name] or '-':>8}" for name in names))


def _print_methods(rows: list[MethodOutlook]) -> None:
    """A line a method."""
    print(f"{'method':<8}{'least --memory':>16}{'rss':>9}{'footprint':>11}{'s/step':>8}  layout")
    for row in rows:
        line = f"{row.method:<8}{row.least_memory_mb:>13} MB"
        if row.plan is None:
            print(line + "  does not fit")
            continue
        p = row.plan
        layout = (
            f"F by {p.mlp_tile}, vocabulary by {p.vocab_tile}, "
            f"blocks {'kept' if p.keep_blocks else 'recomputed'}, inputs in {p.checkpoints}, "
            f"adapter in {p.states}, weights {p.weights}"
        )
        print(
            f"{line}{p.predicted_rss_mb:>6.0f} MB{p.predicted_footprint_mb:>8.0f} MB"
            f"{p.predicted_step_seconds:>8.2f}  {layout}"
        )
