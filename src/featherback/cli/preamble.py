"""What `train` shows before the first step: the data as the model will see them, the machine, the plan."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from featherback.terminal import clean, say, say_styled

if TYPE_CHECKING:
    from featherback.data.preview import Preview
    from featherback.data.report import PrepareReport
    from featherback.memory.plan import Plan
    from featherback.models.model import Model
    from featherback.training.run_directory import RunDirectory

_SAMPLE_LINES = 12
_TRAINED, _CONTEXT, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


def print_preamble(run: RunDirectory, sample: bool = True) -> None:
    """Describe the run on standard output; `sample`: with an example of the data, if they are in a file."""
    from featherback import kernels, models
    from featherback.architecture.names import parse_targets, short
    from featherback.cli.options import set_threads
    from featherback.data.preview import preview
    from featherback.data.report import PrepareReport
    from featherback.host.machine import memory_limit

    config = run.config
    model = models.load(config.model)
    row("model", describe_model(model))
    for name, values in run.record["data"].items():
        label = "data" if name == "train" else "held-out"
        if name not in run.record.get("sources", {}):  # begun from Python
            row(label, f"{values['tokens']} tokens given, {values['supervised_tokens']} of them trained")
            continue
        report = PrepareReport.from_json(values)
        row(label, describe_data(report))
        for note in report.notes():
            row("", note)
    if sample and config.data is not None and "train" in run.record.get("sources", {}):
        print_sample(preview(model.path, config.data, config.seq_len)[0])
    set_threads(config.threads)  # as the process that will train does
    row("kernels", kernels.describe())
    targets = short(parse_targets(config.targets, model.blocks[0].projections))
    row("adapter", f"rank {config.rank}, alpha {config.alpha:g}, on {targets}")
    length = f"{config.steps} steps" if config.steps else f"{config.epochs} epochs"
    row(
        "training",
        f"{length}, {config.method}, {config.compute}, "
        f"{config.optimizer} at {config.peak_learning_rate:g} ({config.schedule})",
    )
    row("memory", describe_plan(run.plan))
    if config.memory is not None and config.memory > (limit := memory_limit()):
        row(
            "",
            f"the budget is more than the {limit / 1e6:.0f} MB that a process can have here; "
            f"the plan stays within those",
        )
    row("run", f"{run.path}/")
    say()


def row(name: str, text: str) -> None:
    """A labelled line."""
    say(f"{name:<9} {text}")


def describe_model(model: Model) -> str:
    """One line: name, family, size, formats."""
    from featherback.cli.model_facts import formats, parameters

    config = model.config
    return (
        f"{model.path.name}: {config.architecture}, {config.num_hidden_layers} layers, "
        f"{parameters(model) / 1e6:.0f}M parameters ({', '.join(formats(model))})"
    )


def describe_data(report: PrepareReport) -> str:
    """One line: how much there is and how long it is."""
    shapes = " + ".join(f"{count} {shape}" for shape, count in report.shapes.items())
    return (
        f"{_short(report.data)}: {shapes}, {report.tokens} tokens, {report.supervised_tokens} of them "
        f"trained, longest {report.longest}"
    )


def describe_plan(plan: Plan) -> str:
    """One line: the predicted peaks and where things are kept."""
    predicted = (
        f"footprint {plan.predicted_footprint_mb:.0f} MB, rss {plan.predicted_rss_mb:.0f} MB predicted"
    )
    policies = [
        *describe_work(plan),
        f"block inputs in {'RAM' if plan.checkpoints == 'ram' else 'a file'}",
        f"adapter and optimizer in {'RAM' if plan.states == 'ram' else 'files'}",
        f"weights {plan.weights}",
    ]
    return f"{predicted}; {', '.join(policies)}"


def describe_work(plan: Plan) -> list[str]:
    """What is recomputed, and the tokens per chunk where there are chunks."""
    kept = ", ".join(f"{name} in {layers} layers" for name, layers in plan.keep.items())
    chunks = [f"{plan.chunk_tokens} tokens at a time"] if plan.chunked else []
    return [*chunks, f"blocks recomputed but for {kept}" if kept else "blocks recomputed"]


def _short(path: str) -> str:
    """The path as seen from here, where that is shorter."""
    try:
        return min(path, os.path.relpath(path), key=len)
    except OSError:  # the working directory is gone
        return path


def print_sample(sample: Preview) -> None:
    """An example, the trained tokens marked: green on a terminal, in [brackets] elsewhere."""
    colour = sys.stdout.isatty()
    row("sample", f"{_short(sample.where)}; " + ("green" if colour else "[brackets]") + " = trained")
    marks = (
        {True: (_TRAINED, _PLAIN), False: (_CONTEXT, _PLAIN)}
        if colour
        else {True: ("[", "]"), False: ("", "")}
    )
    lines = "".join(_mark(clean(text), *marks[trained]) for text, trained in sample.runs).splitlines()
    for line in lines[:_SAMPLE_LINES]:
        say_styled(f"  | {line}")
    if len(lines) > _SAMPLE_LINES:
        say(f"  | ... and {len(lines) - _SAMPLE_LINES} more lines")


def _mark(text: str, before: str, after: str) -> str:
    """Each line between its own marks, so that lines can be left out."""
    return "\n".join(f"{before}{line}{after}" if line else line for line in text.split("\n"))
