"""What `train` shows before the first step: the data as the model will see them, the machine, the plan."""

from __future__ import annotations

import os
import sys
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from featherback.core.naming import argument
from featherback.core.sizes import shown_mb
from featherback.core.terminal import clean, columns_of, folded, say, say_styled, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from featherback.data.preview import Preview
    from featherback.data.report import PrepareReport
    from featherback.data.token_file import TokenFile
    from featherback.methods.memory.plan import Plan
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.run_directory import RunDirectory

_SAMPLE_LINES, _SAMPLE_BEGIN, _SAMPLE_WIDTH, _BAR = 12, 3, 500, 20
_WORTH = 0.98
"""Times as long that a step must at most take to be worth a word."""
_BATCHES = 1000
"""Of an epoch, whose examples are counted."""
_LARGE = 10**9
"""Bytes of weights from which quantising them is worth a word."""
_TRAINED, _CONTEXT, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


def print_preamble(run: RunDirectory, sample: bool = True) -> None:
    """Describe the run on standard output; `sample`: with an example of the data, if they are in a file."""
    from featherback import models
    from featherback.data.preview import preview
    from featherback.data.report import PrepareReport, also_trained_note
    from featherback.data.token_file import TokenFile
    from featherback.engine import kernels
    from featherback.engine.host.machine import memory_total
    from featherback.runs.held_out import was_split

    config = run.config
    model = models.load(config.model, config.quantize)
    row("model", describe_model(model))
    for note in describe_weights(model):
        row("", note)
    for name, values in run.record["data"].items():
        label = "data" if name == "train" else "held-out"
        if before := values.get("sequences_before"):
            row(label, f"{values['sequences']} of the {before} sequences, {values['tokens']} tokens")
            continue
        less = " without those held out" if name == "train" and was_split(run) else ""
        if "paths" not in values:  # given as tokens, from Python
            row(label, f"{values['tokens']} tokens given{less}, {values['supervised_tokens']} of them trained")
            also = values.get("also_trained", 0), values["sequences"], values.get("also_trained_exact", True)
            for note in also_trained_note(*also):
                row("", note)
            continue
        report = PrepareReport.from_json(values)
        row(label, describe_data(report, less))
        print_report(report)
    if "eval" not in run.record["data"] and config.eval_share:
        row("held-out", "none: there are too few examples or steps to spare any; --eval-data names others")
    if sample and config.data is not None and "train" in run.record.get("sources", {}):
        print_sample(preview(model.path, config.source(config.data), config.sequence)[0])
    kernels.set_threads(config.threads or kernels.default_threads())  # as the process that will train does
    row("kernels", kernels.describe())
    row(*describe_trained(config, model))
    tokens = TokenFile(run.tokens / "train.tokens")
    row("batch", describe_batches(config, tokens))
    if note := batch_note(config, tokens):
        row("", note)
    length, unit = (config.steps, "step") if config.steps else (config.epochs, "epoch")
    assert length is not None  # a run has one of them
    row(
        "training",
        f"{several(length, unit)}, {config.method}, {describe_compute(run.plan.compute, run.plan.rates)}, "
        f"{config.optimizer} at {config.peak_learning_rate:g} ({config.schedule})",
    )
    held = "adapter and optimizer" if config.whole is None else "optimizer"
    row("memory", describe_plan(run.plan, held))
    for note in describe_choice(run.plan, named=config.memory is not None):
        row("", note)
    if config.budget is not None and config.budget > (limit := memory_total()):
        row(
            "",
            f"the budget is more than the {shown_mb(limit)} that a process can have here; the plan stays within those",
        )
    row("run", f"{run.path}/")
    say()


def describe_trained(config: TrainConfig, model: Model) -> tuple[str, str]:
    """A label, and one line: the adapter, or how the model's own weights are trained."""
    from featherback.models.architecture.names import parse_targets, short
    from featherback.nn.block import adaptable

    if (whole := config.whole) is not None:
        count = sum(rows * cols for rows, cols in whole.trained(model.config, model.blocks).values())
        frozen = f"; {','.join(whole.frozen)} stay as they are" if whole.frozen else ""
        return "weights", f"{count / 1e6:.0f}M trained as {whole.kind.name}, in a copy of the model{frozen}"
    form = config.form
    targets = short(parse_targets(form.targets, adaptable(model.blocks)))
    origin = "" if config.start is None else f", continued from {_short(config.start)}"
    return "adapter", f"{form.kind.describe()}, on {targets}{origin}"


def describe_batch(config: TrainConfig) -> str:
    """What a batch holds at most."""
    full = f"{config.batching.full} tokens"
    return full if config.batch_size is None else f"{several(config.batch_size, 'example')}, up to {full}"


def batch_note(config: TrainConfig, tokens: TokenFile) -> str:
    """That batches hold something else than the user named, if they do."""
    if config.batch_tokens is not None and config.batch_tokens < tokens.max_length:
        return (
            f"{argument('batch_tokens', config.batch_tokens)} is less than the longest example, "
            f"{tokens.max_length} tokens: a batch holds up to {config.batching.full}"
        )
    if config.batch_size is not None and config.batch_size > len(tokens):
        return (
            f"{argument('batch_size', config.batch_size)} is more than there are examples: a batch holds all "
            f"{len(tokens)}"
        )
    return ""


def describe_batches(config: TrainConfig, tokens: TokenFile) -> str:
    """One line: how batches are made of the examples of a run, and how many of these a step has."""
    from featherback.data.packing import rows

    if config.batch_size is None:
        sizes = [row.size for row in islice(rows(tokens, config.batching, config.seed), _BATCHES)]
        examples = sum(sizes) / len(sizes)
        text = f"up to {describe_batch(config)}, packed with whole examples: {examples:.3g} on average"
    else:
        examples = config.batch_size
        text = describe_batch(config)
    if config.accumulate > 1:
        text += f"; {config.accumulate} batches a step: {config.accumulate * examples:.3g} examples"
    return f"{text}; examples do not see each other"


def row(name: str, text: str) -> None:
    """A labelled line; on a terminal as many as it is wide, one under the other."""
    say(folded(text, columns_of(sys.stdout), f"{name:<9} "))


def describe_model(model: Model) -> str:
    """One line: name, family, size, formats."""
    from featherback.models.model import formats, parameters

    config = model.config
    return (
        f"{model.path.name}: {config.architecture}, {config.num_hidden_layers} layers, "
        f"{parameters(model) / 1e6:.0f}M parameters ({', '.join(formats(model))})"
    )


def describe_weights(model: Model) -> list[str]:
    """Where converted weights lie, or that they could be smaller."""
    from featherback.models.converted import QUANTIZE, ConvertedWeights
    from featherback.models.model import matrices

    if isinstance(model.store, ConvertedWeights):
        return [f"its weights are converted, in {_short(str(min(model.files)))}"]
    nbytes = sum(matrix.nbytes for matrix in matrices(model))
    if model.source != "hf" or nbytes < _LARGE:
        return []
    weights = sum(matrix.rows * matrix.cols for matrix in matrices(model))
    sizes = " or ".join(
        f"--quantize {label} {weights // kind.block_size * kind.block_bytes / 1e9:.1f} GB"
        for label, kind in QUANTIZE.items()
    )
    return [f"its weights take {nbytes / 1e9:.1f} GB of disk and page cache; with {sizes}"]


def describe_data(report: PrepareReport, less: str = "") -> str:
    """One line: how much there is, `less` what, and how long it is."""
    from featherback.data.source import called

    paths = ", ".join(_short(called(path)) for path in report.paths)
    mixed = len(report.shapes) > 1
    parts = f" in {report.sequences} sequences" if report.sequences > report.examples else ""
    shapes = ", ".join(f"{shape}: {count}" if mixed else shape for shape, count in report.shapes.items())
    return (
        f"{paths}: {several(report.examples, 'example')} ({shapes}){parts}, {report.tokens} tokens{less}, "
        f"{report.supervised_tokens} of them trained, longest {report.longest}"
    )


def print_report(report: PrepareReport) -> None:
    """How long the examples are, and what should be known of them."""
    most = max(report.lengths.values(), default=1)
    for bound in sorted(map(int, report.lengths)):
        count = report.lengths[str(bound)]
        bar = "\u2588" * max(1, round(_BAR * count / most))
        row("", f"up to {bound:>6} tokens {bar:<{_BAR}} {count}")
    for note in report.notes():
        row("", note)


def describe_compute(compute: str, rates: Mapping[str, float]) -> str:
    """What products compute in, and why if it was chosen by their rates."""
    from featherback.runs.choose import best

    if not rates:
        return compute
    short = "" if compute == best(rates) else " for want of memory"
    measured = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    return f"{compute}{short} (products here, GFLOP/s: {measured})"


def describe_plan(plan: Plan, held: str = "adapter and optimizer") -> str:
    """One line: the predicted peaks, what is recomputed, and what does not lie in RAM, `held` among it."""
    predicted = f"footprint {plan.predicted_footprint_mb:.0f} MB, rss {plan.predicted_rss_mb:.0f} MB predicted"
    policies = describe_work(plan)
    if plan.checkpoints != "ram":
        policies.append("block inputs in a file")
    if plan.states != "ram":
        policies.append(f"{held} in files")
    if plan.weights != "resident":
        policies.append(f"weights {plan.weights.replace('_', ' ')}")
    return f"{predicted}; {', '.join(policies)}"


def describe_choice(plan: Plan, named: bool) -> Iterator[str]:
    """What a smaller and a larger budget would give; `named`: whether the user named this one."""
    chosen, least, fastest = plan.predicted_step_seconds, plan.least_step_seconds, plan.fastest_step_seconds
    from featherback.methods.memory.planner import SPARE

    if not (chosen and least and fastest):
        return
    if not named:
        yield f"no --memory is named: up to {SPARE:.0%} of the machine's memory is taken for speed"
    if plan.free_mb is not None:
        yield (
            f"only {plan.free_mb} MB are free now, and the plan is made for these: with more, another run may differ "
            f"from this one in the last bits"
        )
    if least > chosen:
        yield f"--memory {plan.least_mb}MB, the least, makes steps {least / chosen:.2f} times as long"
    if fastest < _WORTH * chosen:
        yield f"--memory {plan.fastest_mb}MB, the most that helps, makes steps {fastest / chosen:.2f} times as long"


def describe_work(plan: Plan) -> list[str]:
    """What is recomputed, and the tokens per chunk where there are chunks."""
    from featherback.nn.encodings import ENCODINGS

    names: dict[int, list[str]] = {}
    for name, layers in plan.keep.items():
        stored = f" in {ENCODINGS[plan.encodings[name]].precision}" if name in plan.encodings else ""
        names.setdefault(layers, []).append(f"{name}{stored}")
    kept = "; ".join(f"{', '.join(same)} of {several(layers, 'block')}" for layers, same in names.items())
    chunks = [f"{plan.chunk_tokens} tokens at a time"] if plan.chunked else []
    return [*chunks, f"kept for the backward pass: {kept}" if kept else "blocks recomputed"]


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
    marks = {True: (_TRAINED, _PLAIN), False: (_CONTEXT, _PLAIN)} if colour else {True: ("[", "]"), False: ("", "")}
    lines = "".join(_mark(clean(text), *marks[trained]) for text, trained in sample.runs).splitlines()
    asked = "".join(clean(text) for text, _ in takewhile(lambda run: not run[1], sample.runs))
    answer = len(f"{asked}.".splitlines()) - 1  # the line that is trained first
    begin, end = _SAMPLE_BEGIN, _SAMPLE_LINES
    if len(lines) > end and answer > end // 2:  # what is trained is to be seen
        begin, end = answer - 1, min(answer - 1 + _SAMPLE_LINES - _SAMPLE_BEGIN, len(lines))
    if end == len(lines) - 1:
        end = len(lines)  # a line takes no more room than word of it
    columns = columns_of(sys.stdout)
    for line in lines[:_SAMPLE_BEGIN]:
        say_styled(folded(line, columns, "  | "))
    if begin > _SAMPLE_BEGIN:
        say(f"  | ... {begin - _SAMPLE_BEGIN} lines more")
    for line in lines[begin:end]:
        say_styled(folded(line, columns, "  | "))
    if len(lines) > end:
        say(f"  | ... {len(lines) - end} lines more")


def _mark(text: str, before: str, after: str) -> str:
    """Each line between its own marks, so that lines can be left out."""
    return "\n".join(f"{before}{_cut(line)}{after}" if line else line for line in text.split("\n"))


def _cut(line: str) -> str:
    """A line, or its beginning and how much more there is."""
    more = len(line) - _SAMPLE_WIDTH
    return line if more <= 0 else f"{line[:_SAMPLE_WIDTH]}... ({several(more, 'character')} more)"
