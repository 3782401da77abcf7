"""What the page shows of a run, read from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featherback.core.terminal import quoted
from featherback.data.report import PrepareReport
from featherback.errors import FeatherbackError
from featherback.runs.checkpoint import latest_step
from featherback.runs.finish import FINISHED, STOPPED_EARLY
from featherback.runs.outcome import chat_command, is_worse, repeat_command, worse_message
from featherback.runs.record import Part, RunRecord, TokenCounts
from featherback.runs.run_directory import RunDirectory
from featherback.view.report import between_tokens, escape_with_small_tokens, escaped
from featherback.view.report.chart import LARGE, SMALL, Line, chart, loss_chart
from featherback.view.report.curves import Curves
from featherback.view.report.page import COUNTS, failure_message, options_of, small_charts, text_of, tiles
from featherback.view.reporter import duration

RUNNING, STARTING, STOPPING, INTERRUPTED = "running", "starting", "stopping", "interrupted"
FAILED = "failed"
UNDERWAY = (RUNNING, STARTING, STOPPING)
_RECORDED_UNDERWAY = ("prepared", RUNNING)
_ANSWERING, _ROLES = ("assistant", "model"), ("system", "developer", "user", "human", "assistant", "model")


def status_of(run: RunDirectory, alive: bool = False, stopping: bool = False) -> str:
    """Return the status of a run now: it is interrupted if its process was killed.

    `alive`: its process is there. `stopping`: that process was asked to save and stop. A process of a run that was
    interrupted or has failed is about to resume it.
    """
    recorded = run.record.status
    if alive and recorded in (*_RECORDED_UNDERWAY, INTERRUPTED, FAILED):
        if stopping:
            return STOPPING
        return RUNNING if recorded == RUNNING else STARTING
    if recorded not in _RECORDED_UNDERWAY:
        return recorded
    if run.is_locked:
        return RUNNING if recorded == RUNNING else STARTING
    return INTERRUPTED


def brief(run: RunDirectory, alive: bool, stopping: bool = False) -> dict[str, Any]:
    """Return a run's line in the list of runs."""
    config, summary, status = run.config, run.record.summary, status_of(run, alive, stopping)
    has_result = status in (FINISHED, STOPPED_EARLY) or has_adapter(run)
    return {
        "status": status,
        "created": run.record.created,
        "base": run.record.base_model.rsplit("/", 1)[-1],
        "held_out": summary and summary.best_eval_loss,
        "before": summary and summary.first_eval_loss,
        "worse": is_worse(summary),
        "can_chat": config.train == "lora" and not config.outputs and has_adapter(run),
        "can_export": has_result and status not in UNDERWAY,
    }


def has_adapter(run: RunDirectory) -> bool:
    """Whether a run has written its adapter."""
    return any(path.name.startswith("adapter_model") for path in run.path.iterdir())


def state(run: RunDirectory, name: str, alive: bool, stopping: bool = False) -> dict[str, Any]:
    """Return everything that the page shows of a run."""
    record, config, curves = run.record, run.config, Curves(run)
    status, steps = status_of(run, alive, stopping), record.steps
    total = max(steps, curves.steps) if steps is not None else None
    left = duration(curves.pace.left(total - curves.steps)) if status == RUNNING and total and curves.steps else None
    underway = status in UNDERWAY
    return {
        **brief(run, alive, stopping),
        "step": curves.steps,
        "steps": total,
        "left": left,
        "tiles": [dict(zip(("name", "value", "more"), tile)) for tile in tiles(record, config, curves)],
        "charts": {
            "large": loss_chart(curves, size=LARGE),
            "small": loss_chart(curves, size=SMALL),
            "more": list(small_charts(config, curves)),
        },
        "failure": None if underway else failure_message(record),
        "worse_message": worse_message(record, f"Train again: {quoted(*repeat_command(record, name))}")
        if is_worse(record.summary)
        else None,
        "samples": samples(record),
        "can_resume": not underway and status != FINISHED,
        "saved": latest_step(run.path),
        "chat": quoted(*chat_command(record, name)),
        "notes": notes(record.data),
    }


def samples(record: RunRecord) -> list[dict[str, str]]:
    """Return the answers before and after training, as HTML, and the question in each prompt."""
    return [
        {name: escape_with_small_tokens(text) for name, text in each.values().items()}
        | {"question": escaped(question(each.prompt))}
        for each in record.samples
    ]


def question(prompt: str) -> str:
    """Return what the user said last in a prompt of a chat; the whole prompt if it is not one."""
    found, role = "", ""
    for part in between_tokens(prompt):
        first, _, rest = part.partition("\n")
        if first in _ROLES:
            role, part = first, rest.strip()
        if part and role not in ("system", "developer", *_ANSWERING):
            found = part
    return found or prompt


def notes(data: Mapping[Part, PrepareReport | TokenCounts]) -> list[str]:
    """Return the notes about a run's data."""
    return [note for report in data.values() if isinstance(report, PrepareReport) for note in report.notes()]


def counts(report: PrepareReport) -> list[dict[str, Any]]:
    """Return the counts of prepared data that are not zero, with their labels."""
    return [{"label": label, "value": value} for name, label in COUNTS.items() if (value := getattr(report, name))]


def comparison(runs: Mapping[str, RunDirectory]) -> dict[str, Any]:
    """Return the curves of two runs in one chart, the options in which they differ, and their results."""
    curves = {name: Curves(run) for name, run in runs.items()}
    lines, held = [], []
    for kind, (name, each) in zip(("a", "b"), curves.items()):
        lines.append(Line(kind, name, each.averages.points))
        held.append(Line(f"{kind} held-out", name, each.held_out, dots=True))
    ways = (("Training loss", lines), ("Held-out loss", held))
    return {
        "charts": [
            {"large": chart(title, drawn, LARGE, by_ratio=True), "small": chart(title, drawn, SMALL, by_ratio=True)}
            for title, drawn in ways
        ],
        "options": _differences([run.config for run in runs.values()]),
        "tiles": {
            name: [dict(zip(("name", "value", "more"), tile)) for tile in tiles(run.record, run.config, curves[name])]
            for name, run in runs.items()
        },
        "held_out": {name: each.best for name, each in curves.items()},
        "comparable": _is_comparable([run.config for run in runs.values()]),
    }


def _is_comparable(configs: list[Any]) -> bool:
    """Whether runs measure their held-out losses with the same model on the same examples."""
    first = configs[0]
    fields = ("model", "eval_data") if first.eval_data else ("model", "eval_data", "data", "eval_share", "seed")
    return all(getattr(each, field) == getattr(first, field) for each in configs for field in fields)


def _differences(configs: list[Any]) -> list[dict[str, Any]]:
    """Return the options whose values differ: flag, and the value of each run."""
    values = [
        {"MODEL": config.model, "--data": config.data, "--eval-data": config.eval_data}
        | {flag: value for rows in options_of(config).values() for flag, value in rows}
        for config in configs
    ]
    flags = dict.fromkeys(flag for each in values for flag in each)
    return [
        {"flag": flag, "values": ["" if each.get(flag) is None else text_of(each[flag]) for each in values]}
        for flag in flags
        if any(each.get(flag) != values[0].get(flag) for each in values)
    ]


def damaged(error: FeatherbackError) -> dict[str, Any]:
    """Return the line of a run that cannot be read."""
    return {"status": "damaged", "failure": str(error), "can_chat": False, "can_export": False}
