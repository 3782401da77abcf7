"""Write report.html: one self-contained file without scripts or links to the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from featherback.core.decode import encode
from featherback.core.files import atomic_file, write_bytes
from featherback.core.options import described, flags
from featherback.core.sizes import MB, shown_mb
from featherback.core.terminal import quoted
from featherback.data.report import PrepareReport
from featherback.methods.memory.plan import Plan
from featherback.runs.config import CHOICES, PANELS, TrainConfig, unused_options
from featherback.runs.outcome import held_out_measures, is_worse, repeat_command, worse_message
from featherback.runs.record import Machine, RunRecord, TokenCounts, Versions
from featherback.runs.run_directory import RunDirectory
from featherback.version import __version__
from featherback.view.report import escape_with_small_tokens, escaped
from featherback.view.report.chart import COLOURS, SMALL, STYLE, Line, chart, counted, loss_chart, loss_svg
from featherback.view.report.curves import MEASURES, ROLLOUTS, Curves
from featherback.view.reporter import duration

REPORT, PICTURE = "report.html", "loss.svg"
COUNTS = {
    "examples": "examples read",
    "sequences": "sequences",
    "tokens": "tokens",
    "supervised_tokens": "tokens to predict",
    "seq_len": "longest sequence allowed, in tokens",
    "longest": "longest example, in tokens",
    "truncated": "examples truncated",
    "truncated_tokens": "tokens removed by truncation",
    "dropped": "examples skipped: no tokens to predict",
    "skipped": "records skipped: unusable",
    "equal": "pairs skipped: equal answers",
    "duplicates": "duplicate examples",
    "empty_answers": "examples with an empty answer",
    "spelled_control": "examples that contain the text of a control token",
}
"""Counts of the data that the report shows -> their labels."""
_PAGE = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 48px}
h1{font-size:24px;line-height:1.25;margin:0;overflow-wrap:anywhere}h2{font-size:16px;margin:0 0 8px}
h3{font-size:13px;font-weight:600;color:var(--quiet);margin:0 0 2px}
p{margin:4px 0;color:var(--quiet);overflow-wrap:anywhere}.bad{color:var(--limit)}footer{margin-top:16px;font-size:13px}
.card{background:var(--card);border:1px solid var(--grid);border-radius:10px;padding:16px 18px;margin-top:16px;
min-width:0;overflow-x:auto}
.grid-4,.grid-3,.grid-2{display:grid;gap:16px;margin-top:16px}.grid-4>*,.grid-3>*{margin:0}
.grid-4{grid-template-columns:repeat(auto-fit,minmax(190px,1fr))}
.grid-3{grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr))}.grid-3>.card{padding:14px 10px}
.grid-2{grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:20px 40px;margin:0}
.tile b{display:block;font-size:21px;font-weight:600;white-space:nowrap}.tile span{color:var(--quiet);font-size:13px}
svg{display:block;width:100%;height:auto}.narrow{display:none}
table{border-collapse:collapse;width:100%;font-size:14px}
td,th{padding:4px 12px 4px 0;vertical-align:top;text-align:left;border-top:1px solid var(--grid);overflow-wrap:anywhere}
tr:first-child>*{border-top:0}td:first-child,th{color:var(--quiet);font-weight:400}
td:first-child{width:150px;min-width:130px;overflow-wrap:normal}
.answers td{white-space:pre-wrap}hr{border:0;height:20px}
small{font-size:11px;color:var(--quiet);opacity:.8;margin:0 .35em}
@media(max-width:640px){main{padding:20px 12px 32px}.card{padding:12px}.wide{display:none}.narrow{display:block}
td:first-child{width:104px;min-width:96px}.tile b{font-size:19px}
.grid-4{grid-template-columns:repeat(auto-fit,minmax(min(100%,150px),1fr));gap:12px}}
@media print{body{background:none}.card{break-inside:avoid}}
"""
_HEAD = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)


def write_report(run: RunDirectory) -> Path:
    """Write report.html and loss.svg into the run's directory, each atomically, and return the report's path.

    Raises FeatherbackError if the record or the metrics are damaged, or the disk is full.
    """
    run.make_private()
    curves = Curves(run)
    write_bytes(run.path / PICTURE, loss_svg(curves).encode())
    path = run.path / REPORT
    with atomic_file(path) as file:
        for part in page(run, curves):
            file.write(part.encode())
    return path


def page(run: RunDirectory, curves: Curves) -> Iterator[str]:
    """Yield the report's HTML, piece by piece."""
    record, config = run.record, run.config
    title = escaped(run.path.absolute().name)
    yield f"{_HEAD}<title>{title} - Featherback</title>\n<style>{COLOURS}{STYLE}{_PAGE}</style></head>\n"
    yield f"<body><main>\n<header><h1>{title}</h1>\n<p>{escaped(_subtitle(record, config))}</p>"
    if (failure := failure_message(record)) is not None:
        yield f'<p class="bad">{escaped(failure)}</p>'
    if is_worse(record.summary):
        advice = f"Train again: {quoted(*repeat_command(record, str(run.path)))}"
        yield f'<p class="bad">{escaped(worse_message(record, advice))}</p>'
    yield '</header>\n<section class="grid-4">'
    for name, value, more in tiles(record, config, curves):
        words = f"<span>{escaped(name)}</span><b>{escaped(value)}</b><span>{escaped(more)}</span>"
        yield f'<div class="card tile">{words}</div>'
    yield f'</section>\n<section class="card"><div class="wide">{loss_chart(curves)}</div>'
    yield f'<div class="narrow">{loss_chart(curves, size=SMALL)}</div></section>\n<section class="grid-3">'
    for drawn in small_charts(config, curves):
        yield f'<div class="card">{drawn}</div>\n'
    yield f"</section>{_held_out_answers(record)}{_samples(record)}"
    yield f'<section class="card"><h2>Data</h2>{_data(record, config)}</section>\n'
    yield f'<section class="card"><h2>Options</h2><div class="grid-2">{"".join(_options(config))}</div></section>\n'
    yield '<section class="card"><h2>Made with</h2><div class="grid-2">'
    for title, part in (("Versions", record.versions), ("Machine", record.machine), ("Plan", record.plan)):
        yield f"<div><h3>{title}</h3>{_made_with(part)}</div>"
    yield "</div></section>\n<footer><p>Made from run.json and metrics.jsonl by Featherback "
    yield f"{escaped(__version__)}.</p></footer></main></body></html>\n"


def failure_message(record: RunRecord) -> str | None:
    """Return why a run failed; None if it did not."""
    failed = record.failure
    return None if failed is None else f"Failed after step {failed.step}: {failed.reason}"


def _subtitle(record: RunRecord, config: TrainConfig) -> str:
    base, begun = Path(record.base_model).name, record.created[:16].replace("T", " ")
    trained = "all weights" if config.train == "full" else config.form.kind.briefly
    if config.teacher is not None:
        trained += f", teacher {Path(config.teacher).name}"
    return f"{base}, {trained}, {config.method}; {record.status}; started {begun} UTC"


def small_charts(config: TrainConfig, curves: Curves) -> Iterator[str]:
    """Yield the charts below the loss: memory, speed, learning rate, and measures of the objective."""
    yield _memory_chart(config, curves)
    yield chart("Speed, tokens per second", [Line("mean", "", curves.speed.points)], from_zero=True)
    yield chart("Learning rate", [Line("mean", "", curves.rates.points)], from_zero=True)
    yield from _measure_charts(curves)


def tiles(record: RunRecord, config: TrainConfig, curves: Curves) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and remark of each tile at the top."""
    averages, summary = curves.averages.points, record.summary
    if averages:
        over = f"average of {counted(curves.span)} steps, " if curves.span > 1 else ""
        yield "Training loss", f"{averages[-1][1]:.4f}", f"{over}from {averages[0][1]:.4f}"
    if curves.before is not None and not curves.held_out_rewards:
        if curves.best is None:
            yield "Held-out loss", f"{curves.before:.4f}", "before training"
        else:
            step, best = curves.best
            before = f"{curves.before:.4f} before training"
            against = f"worse than the {before}" if best > curves.before else before
            yield "Held-out loss", f"{best:.4f}", f"at step {counted(int(step))}, kept; {against}"
    if (changed := held_out_measures(summary)) is not None:
        first, *others = changed.removeprefix("held-out ").split(", ")
        name, _, value = first.partition(" ")
        yield f"Held-out {name}", value, ", ".join(others)
    if (gradient := record.gradient) is not None:
        kept = ", ".join(f"{name} in {layers} layers" for name, layers in gradient.approximated.items())
        lowest = f"with the exact one, first batch; lowest layer {gradient.lowest_cosine:.3f}; codes of {kept}"
        yield "Approximate gradient, cosine", f"{gradient.cosine:.3f}", lowest
    if curves.rss.points:
        peak = max([y for _, y in curves.rss.extremes] + [summary.peak_rss_mb if summary else 0])
        of = "no budget set" if config.budget is None else f"budget {shown_mb(config.budget)}"
        yield "Peak memory, resident", f"{peak:.1f} MB", of
    if curves.speed.points:
        speeds = curves.speed.points
        whole = None if record.status == "running" else summary  # a resumed run has the summary of its first part
        mean = (whole and whole.tokens_per_second) or sum(y for _, y in speeds) / len(speeds)
        steps = f"{counted(curves.steps)} step{'s' if curves.steps != 1 else ''}" + (
            f" in {duration(whole.seconds)}" if whole else ""
        )
        yield "Speed", f"{counted(round(mean))} tokens/s", steps


def _measure_charts(curves: Curves) -> Iterator[str]:
    """Yield the charts of preferences, labels or distillation; none for other objectives."""
    chosen, rejected, accuracy, macro_f1, next_token, divergence = (curves.measures[name] for name in MEASURES)
    reward, length, repeated, entropy = (curves.measures[name] for name in ROLLOUTS)
    if reward.points:
        held_out = Line("held", "held-out", curves.held_out_rewards, dots=True)
        yield chart("Mean reward", [Line("mean", "training", reward.points), held_out])
        yield chart("Length of answers, tokens", [Line("mean", "", length.points)], from_zero=True)
        yield chart("Repeated share of answers", [Line("mean", "", repeated.points)], from_zero=True)
        yield chart("Entropy of answers, nats per token", [Line("mean", "", entropy.points)], from_zero=True)
        return
    if divergence.points:
        yield chart("Next-token loss on the training data", [Line("mean", "", next_token.points)])
        yield chart("Divergence from the teacher", [Line("mean", "", divergence.points)], from_zero=True)
    if macro_f1.points:
        lines = [Line("mean", "accuracy", accuracy.points), Line("second", "macro-F1", macro_f1.points)]
        yield chart("Labels", lines, from_zero=True)
        return
    if chosen.points or rejected.points:
        lines = [Line("mean", "chosen", chosen.points), Line("second", "rejected", rejected.points)]
        yield chart("Rewards", lines)
    if accuracy.points:
        yield chart("Pairs with the higher reward for chosen", [Line("mean", "", accuracy.points)], from_zero=True)


def _memory_chart(config: TrainConfig, curves: Curves) -> str:
    lines = [Line("mean", "resident", curves.rss.points), Line("second", "footprint", curves.footprint.points)]
    limits = [] if config.budget is None else [(f"budget {shown_mb(config.budget)}", config.budget / MB)]
    return chart("Memory, MB", lines, limits=limits, from_zero=True)


def _samples(record: RunRecord) -> str:
    """Return the section with answers before and after training."""
    parts = [_table(each.values().items(), escape_with_small_tokens) for each in record.samples]
    if not parts:
        return ""
    return f'<section class="card answers"><h2>Answers before and after</h2>{"<hr>".join(parts)}</section>'


def _held_out_answers(record: RunRecord) -> str:
    """Return the section with the answers that the model wrote to held-out prompts, one table for an evaluation."""
    tables = [
        f"<h3>Step {counted(each.step)}</h3>"
        + "<hr>".join(
            _table({**vars(one), "reward": f"{one.reward:g}"}.items(), escape_with_small_tokens) for one in each.answers
        )
        for each in record.evaluations
        if each.answers
    ]
    if not tables:
        return ""
    return f'<section class="card answers"><h2>Answers to held-out prompts</h2>{"".join(tables)}</section>'


def _data(record: RunRecord, config: TrainConfig) -> str:
    """Return the table of the prepared data: training data beside held-out data."""
    columns = {"train": ("trained on", config.data), "eval": ("held out", config.eval_data)}
    shown = [(*columns[name], counts) for name, counts in record.data.items()]
    heads = [f"<th>{name}: {escaped(_origin(paths, counts))}</th>" for name, paths, counts in shown]
    rows = [f"<tr><td></td>{''.join(heads)}</tr>"]
    for name, label in COUNTS.items():
        values = [getattr(counts, name, None) for _, _, counts in shown]
        if any(values):
            cells = "".join(f"<td>{'' if value is None else counted(value)}</td>" for value in values)
            rows.append(f"<tr><td>{escaped(label)}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _origin(paths: Sequence[str] | None, counts: PrepareReport | TokenCounts) -> str:
    """Describe where the examples come from."""
    if isinstance(counts, TokenCounts) and counts.sequences_before is not None:
        return f"{counts.sequences} of {counts.sequences_before} sequences"
    return "given from Python" if paths is None else text_of(paths)


def _options(config: TrainConfig) -> Iterator[str]:
    """Yield tables of the run's options."""
    places = {"MODEL": config.model, flags(TrainConfig, "out")[0]: config.out}
    yield f"<div><h3>Files</h3>{_table(places.items())}</div>"
    for title, rows in options_of(config).items():
        if named := [(name, value) for name, value in rows if value is not None]:
            yield f"<div><h3>{escaped(title)}</h3>{_table(named)}</div>"


def options_of(config: TrainConfig) -> dict[str, list[tuple[str, Any]]]:
    """Return the options that have an effect on a run, named and grouped as on the command line: title -> rows."""
    unused, values, found = unused_options(type(config), config.train), encode(config), {}
    for panel in PANELS:
        fields = [name for name in described(panel) if name not in unused]
        found[panel.title] = [(flags(panel, name)[0], values[name]) for name in fields]
        for own in (own for own in CHOICES if own.choice in fields):
            found[panel.title] += [(f"--{name.replace('_', '-')}", value) for name, value in values[own.field].items()]
    return found


def _made_with(part: Versions | Machine | Plan | None) -> str:
    entries = vars(part).items() if part else ()
    return _table((name.replace("_", " "), value) for name, value in entries if value not in (None, {}))


def _table(rows: Iterable[tuple[str, object]], shown: Callable[[str], str] = escaped) -> str:
    """Return an HTML table of names and values. `shown` escapes a value."""
    body = "".join(f"<tr><td>{escaped(name)}</td><td>{shown(text_of(value))}</td></tr>" for name, value in rows)
    return f"<table>{body}</table>"


def text_of(value: object) -> str:
    """Return the value of an option as the report shows it."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
