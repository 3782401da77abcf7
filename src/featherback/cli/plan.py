"""`featherback plan`"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from featherback.cli.options import FromConfig, JSONOption, ModelArgument
from featherback.terminal import say

if TYPE_CHECKING:
    from featherback.training.outlook import MethodOutlook

# What memory and time depend on, the method apart: all are shown.
FIELDS = ("memory", "rank", "targets", "seq_len", "batch_size", "optimizer", "compute", "threads")


def plan(
    model: ModelArgument,
    json: JSONOption = False,
    **options: Annotated[Any, FromConfig(fields=FIELDS, own_of=("method",))],
) -> None:
    """Predict what training MODEL would take, in memory and time, under every method. Nothing is trained.

    An option that only some methods have is for those alone.

    Example: featherback plan model.gguf --memory 96MB --seq-len 512
    """
    from featherback.cli.options import open_model, set_threads
    from featherback.methods import OPTIONS
    from featherback.training.choose import worker_baseline
    from featherback.training.config import TrainConfig
    from featherback.training.outlook import largest_models, outlook

    own = {name: options.pop(name) for name in OPTIONS.by_option() if name in options}
    set_threads(options["threads"])
    opened, _ = open_model(model)
    config = TrainConfig(model=str(opened.path), data="", out="", **options).for_model(opened)
    baseline = worker_baseline()
    rows = outlook(config, opened, baseline, own)
    family = list(largest_models(config, baseline, own))
    if json:
        from json import dumps

        say(dumps({"methods": [asdict(row) for row in rows], "largest": [list(row) for row in family]}))
        return
    asked = f"within {config.memory / 1e6:g} MB" if config.memory else "with nearly the least memory"
    say(
        f"{opened.path.name}, {config.seq_len * config.batch_size} tokens per batch, rank {config.rank}, "
        f"{config.optimizer}, {config.compute}: {asked}\n"
    )
    _print_methods(rows)
    say(
        "\nThe largest 4-bit Qwen2.5 shape that fits with all projections adapted, resident memory counted:\n"
    )
    names = [row.method for row in rows]
    say(f"{'memory':<10}" + "".join(f"{name:>8}" for name in names))
    for amount, sizes in family:
        say(f"{amount / 1e6:<7.0f}MB " + "".join(f"{sizes[name] or '-':>8}" for name in names))


def _print_methods(rows: list[MethodOutlook]) -> None:
    """A line per method."""
    from featherback.cli.preamble import describe_work

    say(f"{'method':<8}{'least --memory':>16}{'rss':>9}{'footprint':>11}{'s/step':>8}  layout")
    for row in rows:
        line = f"{row.method:<8}{row.least_memory_mb:>13} MB"
        if row.plan is None:
            say(line + "  does not fit")
            continue
        p = row.plan
        layout = (
            f"F by {p.mlp_tile}, vocabulary by {p.vocab_tile}, "
            f"{', '.join(describe_work(p))}, inputs in {p.checkpoints}, "
            f"adapter in {p.states}, weights {p.weights}"
        )
        say(
            f"{line}{p.predicted_rss_mb:>6.0f} MB{p.predicted_footprint_mb:>8.0f} MB"
            f"{p.predicted_step_seconds:>8.2f}  {layout}"
        )
