"""`featherback plan`"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from featherback.cli.options import JSON, MODEL
from featherback.core.options import option
from featherback.core.sizes import MB
from featherback.core.terminal import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.outlook import Combination, MethodOutlook

# Options that affect memory and time. The method is not among them, because all methods are shown.
FIELDS = (
    "memory", "device", "vram", "quantize", "rank", "targets", "seq_len", "batch_size", "batch_tokens", "optimizer",
    "compute", "threads", "train", "master", "freeze", "objective", "labels", "teacher", "distill_weight",
    "temperature", "teacher_top_k",
)  # fmt: skip
OWN_OF = ("method", "objective")
"""Choices whose own options are among FIELDS."""
SHORT = {
    "Options": ("model", "memory", "seq_len", "batch_size", "rank", "train", "optimizer", "threads", "everything",
                "json"),
}  # fmt: skip
"""The options that `featherback plan --help` shows."""

WITHOUT_BUDGET = "reads the header of the model; its `--memory` is the budget to plan for"
"""Why the command has no memory budget, as docs/memory.md says it."""


def plan(
    model: str = MODEL,
    json: bool = JSON,
    everything: bool = option(
        False, flags=("--all",), help="Show every method with every optimizer, for adapters and for whole models."
    ),
    **options: Any,
) -> None:
    """Predict the memory and time of training MODEL, without training.

    There is one line per gradient method. Options of a method affect only that method. With --train full, the memory is
    that of the dequantised model.

    Example: featherback plan model.gguf --memory 96MB --seq-len 512
    """
    from featherback.cli.options import open_model, set_threads
    from featherback.cli.preamble import describe_batch, describe_size
    from featherback.core.naming import argument
    from featherback.engine.backend import USUAL
    from featherback.errors import FeatherbackError
    from featherback.methods import OPTIONS
    from featherback.models.converted import NONE
    from featherback.runs.config import TrainConfig
    from featherback.runs.outlook import combinations, largest_models, outlook
    from featherback.runs.teacher import outlook_of_teacher, with_teacher
    from featherback.runs.worker_process import worker_baseline

    own = {name: options.pop(name) for name in OPTIONS.by_option() if name in options}
    set_threads(options.get("threads"))
    on_card = options.get("device", USUAL) != USUAL
    if everything and on_card:
        raise FeatherbackError(
            f"{argument('all')} shows plans for the CPU. Remove {argument('all')}, or remove {argument('device')}."
        )
    opened, _ = open_model(model, quantize=options.get("quantize", NONE))
    config = with_teacher(TrainConfig.of(model=str(opened.path), out="", **options), opened).for_model(opened)
    baseline = worker_baseline()
    if everything:
        _print_all(combinations(config, opened, baseline, own), config, json)
        return
    rows = outlook(config, opened, baseline, own)
    family = [] if on_card else list(largest_models(config, baseline, own))
    teacher = outlook_of_teacher(config, lambda: baseline)
    if json:
        from json import dumps

        found = {"methods": [asdict(row) for row in rows], "largest": [list(row) for row in family]}
        say(dumps(found if teacher is None else {**found, "teacher": asdict(teacher)}))
        return
    whole = config.whole
    trained = f"all weights in {whole.kind.name}" if whole is not None else config.form.kind.briefly
    if whole is None and (size := describe_size(config.form, opened)):
        trained += f" with {size}"
    asked = _describe_budget(config)
    say(
        f"{opened.path.name}, {describe_batch(config)} per batch, {trained}, "
        f"{config.optimizer}, {config.compute}: {asked}\n"
    )
    _print_methods([*rows, *([] if teacher is None else [teacher])], "--vram" if on_card else "--memory")
    if teacher is not None:
        say("\nThe teacher's pass comes before training, in a process of its own: the larger of both is needed.")
    if on_card:
        say("\nThis machine's memory holds PyTorch, the adapter with its states, and streamed weights.")
    else:
        say(
            "\nPreparing the data may need more memory than training: `featherback train --dry-run` prints the minimum "
            "of the whole command."
        )
    for note in _gradient_notes(rows, config, own, opened):
        say(f"\n{note}")
    if on_card:
        return
    shape = "4-bit Qwen2.5 model, all projections adapted," if whole is None else "Qwen2.5 model"
    say(f"\nThe largest {shape} that fits in this resident memory:\n")
    names = [row.method for row in rows]
    widths = {name: max(8, len(name) + 2) for name in names}
    say(f"{'memory':<10}" + "".join(f"{name:>{width}}" for name, width in widths.items()))
    for amount, sizes in family:
        say(f"{amount / MB:<7.0f}MB " + "".join(f"{sizes[name] or '-':>{width}}" for name, width in widths.items()))


def _describe_budget(config: TrainConfig) -> str:
    """The memory budget in words."""
    from featherback.engine.backend import USUAL

    if config.device != USUAL:
        limit = f"within {config.vram / MB:g} MB" if config.vram else "without a limit"
        return f"on {config.device} {limit}"
    if isinstance(config.memory, str):
        return f"with --memory {config.memory} for each method"
    return f"within {config.memory / MB:g} MB" if config.memory else "without a budget"


def _print_all(found: Iterable[Combination], config: TrainConfig, json: bool) -> None:
    """Print one line per combination, as soon as it is known."""
    if json:
        from json import dumps

        say(dumps({"combinations": [asdict(row) for row in found]}))
        return
    largest = "largest Qwen2.5" if config.budget else "largest Qwen2.5 here"
    say(f"{'train':<6}{'method':<13}{'optimizer':<13}{'least --memory':>15}{'disk':>10}{'s/step':>8}  {largest}")
    for row in found:
        seconds = "-" if row.plan is None else f"{row.plan.predicted_step_seconds:.2f}"
        say(
            f"{row.train:<6}{row.method:<13}{row.optimizer:<13}{row.least_memory_mb:>12} MB{row.disk_mb:>7.0f} MB"
            f"{seconds:>8}  {row.largest or '-'}"
        )


def _gradient_notes(
    rows: Iterable[MethodOutlook], config: TrainConfig, own: dict[str, Any], model: Model
) -> Iterator[str]:
    """Yield a line for each method whose options allow approximated gradients."""
    from featherback.cli.gradient import describe_gradient
    from featherback.methods import OPTIONS

    for row in rows:
        options = {name: value for name, value in own.items() if row.method in OPTIONS.by_option()[name]}
        if row.plan is not None and options:
            chosen = replace(config, method=row.method, method_options=options)
            if about := describe_gradient(chosen, model, row.plan, None):
                yield f"gradient of {row.method}: {about}"


def _print_methods(rows: list[MethodOutlook], limit: str) -> None:
    """Print one line per gradient method. `limit`: the option that limits the memory."""
    from featherback.cli.preamble import describe_work

    wide = max(8, *(len(row.method) + 2 for row in rows))
    titles = f"{'vram':>9}" if limit == "--vram" else f"{'rss':>9}{'footprint':>11}"
    say(f"{'method':<{wide}}{f'least {limit}':>16}{titles}{'s/step':>8}  layout")
    for row in rows:
        line = f"{row.method:<{wide}}{row.least_memory_mb:>13} MB"
        if row.plan is None:
            say(line + "  does not fit")
            continue
        p = row.plan
        places = f"block inputs in {p.checkpoints}, adapter in {p.states}"
        if p.predicted_vram_mb is not None:
            places = "block inputs on the device" if p.checkpoints == "ram" else "block inputs in a file"
        layout = (
            f"tiles of {p.mlp_tile} (MLP) and {p.vocab_tile} (vocabulary), "
            f"{', '.join(describe_work(p))}, {places}, weights {p.weights}"
        )
        if p.predicted_reading_seconds:
            layout += f", {p.predicted_reading_seconds:.2f} s of a step read from the disk"
        amounts = f"{p.predicted_vram_mb:>6.0f} MB" if p.predicted_vram_mb is not None else ""
        amounts = amounts or f"{p.predicted_rss_mb:>6.0f} MB{p.predicted_footprint_mb:>8.0f} MB"
        say(f"{line}{amounts}{p.predicted_step_seconds:>8.2f}  {layout}")
