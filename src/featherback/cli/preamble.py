"""The output of `train` before the first step: the data as the model sees them, the machine and the plan."""

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
    from featherback.models.form import Form
    from featherback.models.model import Model
    from featherback.runs.config import TrainConfig
    from featherback.runs.run_directory import RunDirectory

_SAMPLE_LINES, _SAMPLE_BEGIN, _SAMPLE_WIDTH, _BAR = 12, 3, 500, 20
_WORTH = 0.98
"""A larger budget is mentioned only if a step then takes less than this share of its time."""
_BATCHES = 1000
"""Batches of an epoch from which the mean number of examples is computed."""
_LARGE = 10**9
"""Quantising is suggested for weights of at least this many bytes."""
_TRAINED, _CONTEXT, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


def print_preamble(run: RunDirectory, model: Model, sample: Preview | None = None) -> None:
    """Describe the run of a model on standard output, with an example of its data."""
    from featherback.cli.gradient import describe_gradient
    from featherback.data.report import also_trained_note
    from featherback.engine import kernels
    from featherback.engine.host.machine import memory_total
    from featherback.runs.held_out import was_split
    from featherback.runs.record import TokenCounts
    from featherback.runs.token_files import examples_of

    config = run.config
    row("model", describe_model(model))
    for note in describe_weights(model):
        row("", note)
    for name, report in run.record.data.items():
        label = "data" if name == "train" else "held-out"
        if isinstance(report, TokenCounts) and report.sequences_before is not None:
            row(label, f"{report.sequences} of the {report.sequences_before} sequences, {report.tokens} tokens")
            continue
        less = " without the held-out examples" if name == "train" and was_split(run) else ""
        if isinstance(report, TokenCounts):  # the data were given as tokens, from Python
            row(label, f"{report.tokens} tokens given{less}, {report.supervised_tokens} of them trained")
            for note in also_trained_note(report.also_trained, report.sequences, report.also_trained_exact):
                row("", note)
            continue
        row(label, describe_data(report, less))
        print_report(report)
    if (replayed := run.record.replay) is not None:
        row("replay", f"{replayed.examples} general examples, {replayed.tokens} tokens, from {config.replay}")
    elif config.replay is not None:
        share = f"{100 * config.replay_share:.0f} % of the tokens"
        row("replay", f"the model writes general examples before it is trained, until they are {share}")
    if "eval" not in run.record.data and config.eval_share:
        row("held-out", "none: there are too few examples or steps to hold any out. Use --eval-data FILE")
    if sample is not None:
        print_sample(sample)
    card = config.use_machine()  # as in the process that trains
    row("kernels", kernels.describe())
    if card is not None:
        row("device", f"{card.name}, of which up to {shown_mb(card.memory)} are used")
    row(*describe_trained(config, model))
    for number, text in enumerate(describe_teacher(run)):
        row("" if number else "teacher", text)
    if note := describe_states(run, model):
        row("", note)
    tokens = examples_of(run, "train", complete=False)
    row("batch", describe_batches(config, tokens))
    if note := batch_note(config, tokens):
        row("", note)
    length, unit = (config.steps, "step") if config.steps else (config.epochs, "epoch")
    assert length is not None  # a run has steps or epochs
    row(
        "training",
        f"{several(length, unit)}, {config.method}, {describe_compute(run.plan.compute, run.plan.rates)}, "
        f"{config.optimizer} at {config.peak_learning_rate:g} ({config.schedule})",
    )
    if note := warmup_note(config, tokens):
        row("", note)
    held = "adapter and optimizer" if config.whole is None else "optimizer"
    row("memory", describe_plan(run.plan, held))
    for note in describe_choice(run.plan, named=config.memory is not None):
        row("", note)
    if config.budget is not None and config.budget > (limit := memory_total()):
        row(
            "",
            f"the budget is more than the {shown_mb(limit)} that a process can have here; the plan stays within this "
            "limit",
        )
    if about := describe_gradient(config, model, run.plan, run.record.gradient):
        row("gradient", about)
    row("run", f"{run.path}/")
    say()


def describe_trained(config: TrainConfig, model: Model) -> tuple[str, str]:
    """A label, and one line: the adapter, or how the model's own weights are trained."""
    from featherback.models.architecture.layer_choice import EVERY
    from featherback.models.architecture.names import parse_targets, short
    from featherback.nn.block import adaptable

    if (whole := config.whole) is not None:
        count = sum(rows * cols for rows, cols in whole.trained(model.config, model.blocks).values())
        frozen = f"; {','.join(whole.frozen)} stay as they are" if whole.frozen else ""
        return "weights", f"{count / 1e6:.0f}M trained as {whole.kind.name}, in a copy of the model{frozen}"
    form = config.form
    where = "behind each block"
    if not form.kind.is_branch:
        where = f"on {short(parse_targets(form.targets, adaptable(model.blocks)))}"
    chosen = "" if form.layers == EVERY else f", in layers {','.join(form.layers)} of {len(model.blocks)}"
    origin = "" if config.start is None else f", continued from {_short(config.start)}"
    size = describe_size(form, model)
    return "adapter", f"{size and f'{size}, '}{form.kind.describe()}, {where}{chosen}{origin}"


def describe_size(form: Form, model: Model) -> str:
    """The size of an adapter that changes experts, which can be very large; empty for other adapters."""
    from featherback.models.architecture.names import on_request
    from featherback.models.form import Layout

    layout = Layout(model.blocks, form)
    if not any(on_request(target) for target in layout.form.targets):
        return ""
    return f"{layout.values / 1e6:.4g}M weights ({shown_mb(4 * layout.values)})"


def describe_teacher(run: RunDirectory) -> Iterator[str]:
    """Lines about the teacher and its pass; none without a teacher."""
    from featherback import models

    config, about = run.config, run.record.teacher
    if config.teacher is None or about is None:
        return
    share = "the loss is" if config.distill_weight == 1 else f"{config.distill_weight:g} of the loss is"
    warm = "" if config.temperature == 1 else f" at temperature {config.temperature:g}"
    yield (
        f"{describe_model(models.load(config.teacher, without_converting=True))}; {share} the divergence from it{warm}"
    )
    yield (
        f"its {config.teacher_top_k} most likely tokens after each trained token take "
        f"{shown_mb(about.disk_bytes, 1)} of disk"
    )
    if about.taken is not None:
        yield "its pass over the data is complete"
    else:
        yield (
            f"its pass before training: {describe_prediction(about.plan)}; weights "
            f"{about.plan.weights.replace('_', ' ')}"
        )


def describe_states(run: RunDirectory, model: Model) -> str:
    """A note about the hidden states that the run may keep on its disk; empty if it keeps none."""
    from featherback.data.token_file import TokenFile
    from featherback.models.form import Layout
    from featherback.runs.entry import states_bytes
    from featherback.runs.panels.adapter import DISK

    config = run.config
    if config.train != "lora" or config.hidden_states != DISK:
        return ""
    if not (lowest := Layout(model.blocks, config.form).lowest):
        return ""
    files = [TokenFile(run.tokens / f"{name}.tokens") for name in run.record.data]
    size = shown_mb(states_bytes(files, model.config.hidden_size), 1)
    return (
        f"no backward pass below layer {lowest}; later epochs begin there, with hidden states read from the disk "
        f"(up to {size})"
    )


def describe_batch(config: TrainConfig) -> str:
    """The most that a batch can hold."""
    full = f"{config.batching.full} tokens"
    return full if config.batch_size is None else f"{several(config.batch_size, 'example')}, up to {full}"


def batch_note(config: TrainConfig, tokens: TokenFile) -> str:
    """A note if batches hold something else than the user asked for; empty otherwise."""
    if config.batch_tokens is not None and config.batch_tokens < tokens.max_length:
        return (
            f"{argument('batch_tokens', config.batch_tokens)} is less than the longest example, "
            f"{tokens.max_length} tokens: a batch holds up to {config.batching.full}"
        )
    if config.batch_size is not None and config.batch_size > len(tokens):
        return (
            f"{argument('batch_size', config.batch_size)} is more than the number of examples: a batch "
            f"holds all {len(tokens)}"
        )
    return ""


def warmup_note(config: TrainConfig, tokens: TokenFile) -> str:
    """A note if the warm-up, in steps, takes the whole run; empty otherwise."""
    from featherback.runs.stream import planned_steps, stream_of

    if config.warmup < 1 or config.warmup < (steps := planned_steps(config, stream_of(config, tokens))):
        return ""
    highest = config.peak_learning_rate * steps / config.warmup
    return (
        f"{argument('warmup', f'{config.warmup:g}')} takes all {several(steps, 'step')} of the run: the learning rate "
        f"rises to {highest:.2g} and never falls"
    )


def describe_batches(config: TrainConfig, tokens: TokenFile) -> str:
    """One line: how examples are grouped into batches, and how many examples a step has."""
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
    """Print a labelled line, wrapped to the width of the terminal."""
    say(folded(text, columns_of(sys.stdout), f"{name:<9} "))


def describe_model(model: Model) -> str:
    """One line: the model's name, family, size and formats."""
    from featherback.models.model import formats, parameters

    config = model.config
    return (
        f"{model.path.name}: {config.architecture}, {config.num_hidden_layers} layers, "
        f"{parameters(model) / 1e6:.0f}M parameters ({', '.join(formats(model))})"
    )


def describe_weights(model: Model) -> list[str]:
    """Notes: the path of converted weights, or how much smaller the weights could be."""
    from featherback.models.converted import QUANTIZE, ConvertedWeights
    from featherback.models.model import matrices

    if isinstance(model.store, ConvertedWeights):
        return [f"its converted weights are in {_short(str(min(model.files)))}"]
    nbytes = sum(matrix.nbytes for matrix in matrices(model))
    if model.source != "hf" or nbytes < _LARGE:
        return []
    weights = sum(matrix.rows * matrix.cols for matrix in matrices(model))
    sizes = " or ".join(
        f"--quantize {label} {weights // kind.block_size * kind.block_bytes / 1e9:.1f} GB"
        for label, kind in QUANTIZE.items()
    )
    return [f"its weights take {nbytes / 1e9:.1f} GB of disk and page cache. Smaller: {sizes}"]


def describe_data(report: PrepareReport, less: str = "") -> str:
    """One line: number and length of the examples. `less`: a remark after the number of tokens."""
    from featherback.data.source import display_name

    paths = ", ".join(_short(display_name(path)) for path in report.paths)
    mixed = len(report.shapes) > 1
    parts = f" in {report.sequences} sequences" if report.sequences > report.examples else ""
    shapes = ", ".join(f"{shape}: {count}" if mixed else shape for shape, count in report.shapes.items())
    return (
        f"{paths}: {several(report.examples, 'example')} ({shapes}){parts}, {report.tokens} tokens{less}, "
        f"{report.supervised_tokens} of them trained, longest {report.longest}"
    )


def print_report(report: PrepareReport) -> None:
    """Print a histogram of the examples' lengths, and notes about the data."""
    most = max(report.lengths.values(), default=1)
    for bound in sorted(map(int, report.lengths)):
        count = report.lengths[str(bound)]
        bar = "\u2588" * max(1, round(_BAR * count / most))
        row("", f"up to {bound:>6} tokens {bar:<{_BAR}} {count}")
    for note in report.notes():
        row("", note)


def describe_compute(compute: str, rates: Mapping[str, float]) -> str:
    """The number format of matrix products, and their measured speeds if it was chosen by them."""
    from featherback.runs.choose import best

    if not rates:
        return compute
    short = "" if compute == best(rates) else " because memory is short"
    measured = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    return f"{compute}{short} (measured here, GFLOP/s: {measured})"


def describe_plan(plan: Plan, held: str = "adapter and optimizer") -> str:
    """One line: the predicted memory, what is recomputed, and what is kept in files. `held`: a name for the states."""
    predicted = describe_prediction(plan)
    policies = describe_work(plan)
    if plan.checkpoints != "ram":
        policies.append("block inputs in a file")
    if plan.states != "ram":
        policies.append(f"{held} in files")
    if plan.weights != "resident":
        policies.append(f"weights {plan.weights.replace('_', ' ')}")
    return f"{predicted}; {', '.join(policies)}"


def describe_prediction(plan: Plan) -> str:
    """The predicted memory of a plan, of this machine or of a card."""
    if plan.predicted_vram_mb is not None:
        return f"{plan.predicted_vram_mb:.0f} MB of the device's memory predicted"
    return f"footprint {plan.predicted_footprint_mb:.0f} MB, rss {plan.predicted_rss_mb:.0f} MB predicted"


def describe_choice(plan: Plan, named: bool) -> Iterator[str]:
    """Notes: how fast a smaller and a larger budget would be. `named`: whether the user gave a budget."""
    chosen, least, fastest = plan.predicted_step_seconds, plan.least_step_seconds, plan.fastest_step_seconds
    from featherback.methods.memory.planner import SPARE

    if not (chosen and least and fastest):
        return
    if (reading := plan.predicted_reading_seconds or 0) > chosen / 2:
        yield (
            f"the model does not fit in memory: a step of {chosen:.1f} s reads from the disk for {reading:.1f} s. A "
            f"larger --batch-size reads the same weights for more tokens"
        )
    if not named:
        yield f"without --memory, a run uses up to {SPARE:.0%} of the machine's memory to be fast"
    if plan.free_mb is not None:
        yield (
            f"only {plan.free_mb} MB are free now, so the plan is smaller than usual. A run with more free memory may "
            f"differ in the last bits"
        )
    if least > chosen:
        yield f"--memory {plan.least_mb}MB is the minimum: steps take {least / chosen:.2f} times as long"
    if fastest < _WORTH * chosen:
        yield (
            f"--memory {plan.fastest_mb}MB is the largest useful budget: steps take {fastest / chosen:.2f} times as "
            f"long"
        )


def describe_work(plan: Plan) -> list[str]:
    """Phrases that state the tokens per chunk, if there are chunks, and which intermediates are kept or recomputed."""
    from featherback.nn.encodings import ENCODINGS

    names: dict[int, list[str]] = {}
    for name, layers in plan.keep.items():
        stored = f" in {ENCODINGS[plan.encodings[name]].precision}" if name in plan.encodings else ""
        names.setdefault(layers, []).append(f"{name}{stored}")
    kept = "; ".join(f"{', '.join(same)} of {several(layers, 'block')}" for layers, same in names.items())
    chunks = [f"{plan.chunk_tokens} tokens at a time"] if plan.chunked else []
    return [*chunks, f"kept for the backward pass: {kept}" if kept else "blocks recomputed"]


def _short(path: str) -> str:
    """The path relative to the working directory, if that is shorter."""
    try:
        return min(path, os.path.relpath(path), key=len)
    except OSError:  # the working directory was deleted
        return path


def print_sample(sample: Preview) -> None:
    """Print an example with its trained tokens marked: green on a terminal, in [brackets] elsewhere."""
    colour = sys.stdout.isatty()
    row("sample", f"{_short(sample.where)}; " + ("green" if colour else "[brackets]") + " = trained")
    marks = {True: (_TRAINED, _PLAIN), False: (_CONTEXT, _PLAIN)} if colour else {True: ("[", "]"), False: ("", "")}
    lines = "".join(_mark(clean(text), *marks[trained]) for text, trained in sample.runs).splitlines()
    asked = "".join(clean(text) for text, _ in takewhile(lambda run: not run[1], sample.runs))
    answer = len(f"{asked}.".splitlines()) - 1  # the first trained line
    begin, end = _SAMPLE_BEGIN, _SAMPLE_LINES
    if len(lines) > end and answer > end // 2:  # the trained text must be visible
        begin, end = answer - 1, min(answer - 1 + _SAMPLE_LINES - _SAMPLE_BEGIN, len(lines))
    if end == len(lines) - 1:
        end = len(lines)  # one line takes no more room than the remark about it
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
    """The text with marks around every line, so that lines can be omitted."""
    return "\n".join(f"{before}{_cut(line)}{after}" if line else line for line in text.split("\n"))


def _cut(line: str) -> str:
    """A line, truncated with a remark if it is long."""
    more = len(line) - _SAMPLE_WIDTH
    return line if more <= 0 else f"{line[:_SAMPLE_WIDTH]}... ({several(more, 'character')} more)"
