"""`python -m benchmarks figures`: put the figures of `docs/results` into README and docs. Nothing is measured.

A page quotes a figure between comments, which no reader sees:

    <!--=memory:0.5b-256-mesp:footprint_mb-->34<!--/-->          one figure: part, row, field
    <!--=peft:0.5b-peft:step_s / peft:0.5b-ours:step_s-->2.0<!--/-->   a ratio
    <!--=budgets:@date-->23 November 2026<!--/-->               of the file itself: @date, @commit, @cpu, @machine
    <!--=derived:budgets-exceeded-->0<!--/-->                   one of DERIVED below

and a whole table between `<!-- table NAME -->` and `<!-- end of table -->`, with a NAME of TABLES below. A format may
follow a figure: `|.2f`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import published, results, terminal
from benchmarks.markdown import number, table
from benchmarks.measure import parts
from benchmarks.results import ROOT, Result, Row
from featherback.data.demo import TRAIN, pairs
from featherback.errors import FeatherbackError, expected

Results = Mapping[str, Result]
FIGURES = ROOT / "docs" / "figures"

_FIGURE = re.compile(r"<!--=(.+?)-->(.*?)<!--/-->", re.DOTALL)
_TABLE = re.compile(r"<!-- table (\S+) -->\n(.*?)<!-- end of table -->", re.DOTALL)


def pages() -> list[Path]:
    """The pages that may quote figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rendered(text: str, found: Results) -> str:
    """The text of a page with every figure and table as its result file has it.

    FeatherbackError for a figure that is in no result file.
    """
    text = _TABLE.sub(
        lambda match: f"<!-- table {match[1]} -->\n{_table(match[1], found)}\n<!-- end of table -->", text
    )
    return _FIGURE.sub(lambda match: f"<!--={match[1]}-->{figure(match[1], found)}<!--/-->", text)


def without_figures(text: str) -> str:
    """The text of a page without its quoted figures."""
    return _FIGURE.sub("", _TABLE.sub("", text))


def figure(asked: str, found: Results) -> str:
    """One figure as it stands in a sentence, for example "memory:0.5b-256-mesp:footprint_mb" or a ratio of two."""
    place, _, form = (part.strip() for part in asked.partition("|"))
    values = [value_of(term.strip(), found) for term in place.split(" / ")]
    if None in values:
        return "(not measured)"
    if len(values) == 1:
        value, field = values[0], place.rpartition(":")[2]
    else:
        value, field = values[0] / values[1], "ratio"
    return format(value, form) if form else shown(value, field)


def shown(value: Any, field: str) -> str:
    """A value as pages show it: sizes in whole MB, times and ratios with two or three digits, "-" for none."""
    if value is None:
        return "-"
    if not isinstance(value, (float, int)):
        return str(value)
    if field.endswith("_mb"):
        return f"{value:,.0f}"
    if field.endswith("_s"):
        return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
    if field.endswith("ratio"):
        return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def value_of(place: str, found: Results) -> Any:
    """The value at "part:row:field", "part:@fact" or "derived:NAME"."""
    part, _, rest = place.partition(":")
    if part == "derived":
        if rest not in DERIVED:
            raise FeatherbackError(f"unknown figure {place!r}; {expected(rest, DERIVED)}")
        return DERIVED[rest](found)
    if part == "published":
        row, _, field = rest.partition(":")
        return _at(_PUBLISHED, row, field, place)
    if part not in found:
        raise FeatherbackError(f"unknown result file {part!r} in {place!r}; {expected(part, found)}")
    if rest.startswith("@"):
        return _fact(found[part], rest[1:])
    row, _, field = rest.partition(":")
    return _at(found[part].rows, row, field, place)


def _at(rows: Mapping[str, Row], row: str, field: str, place: str) -> Any:
    if row not in rows:
        raise FeatherbackError(f"there is no row {row!r} for the figure {place!r}; {expected(row, rows)}")
    value: Any = rows[row]
    for key in field.split("."):
        if not isinstance(value, dict) or key not in value:
            raise FeatherbackError(f"the row {row!r} has no {field!r} for the figure {place!r}")
        value = value[key]
    return value


def _published() -> dict[str, Row]:
    """The MeSP paper's figures, under the names that our rows have."""
    rows: dict[str, Row] = {}
    for name, known in published.MODELS.items():
        size = name.removeprefix("qwen2.5-")
        rows[f"{size}-256-mesp"] = {"footprint_mb": known.mesp_mb, "step_s": known.mesp_seconds}
        rows[f"{size}-256-mebp"] = {"footprint_mb": known.mebp_mb, "step_s": known.mebp_seconds}
    for tokens, known in published.SEQUENCES.items():
        rows.setdefault(f"0.5b-{tokens}-mesp", {"footprint_mb": known.mesp_mb})
    for rank, known in published.RANKS.items():
        rows.setdefault(f"0.5b-256-mesp-rank{rank}", {"footprint_mb": known.mesp_mb})
    return rows


_PUBLISHED = _published()


def _fact(result: Result, name: str) -> str:
    machine = result.machine
    if name == "date":
        day = date.fromisoformat(result.date)
        return f"{day.day} {day:%B %Y}"
    if name == "commit":
        return result.commit[:7] + (", with uncommitted changes" if result.modified else "")
    if name == "cpu":
        return str(machine["cpu"])
    if name == "machine":
        memory = f", {machine['memory_gb']} GB" if "memory_gb" in machine else ""
        sets = f" ({machine['kernels']})" if machine.get("kernels") else ""
        return f"{machine['cores']} cores of {machine['cpu']}{sets}{memory}, {machine['system']}"
    if name in result.versions:
        return result.versions[name]
    raise FeatherbackError(
        f"unknown fact @{name} of {result.name}; {expected(name, ['date', 'commit', 'cpu', 'machine'])}"
    )


def _errors(found: Results) -> list[float]:
    """Errors of the predicted peak RSS, relative to the measured one."""
    rows = [*found["memory"].rows.values(), *(row for row in found["budgets"].rows.values() if not row["refused"])]
    return [row["predicted_rss_mb"] / row["rss_mb"] - 1 for row in rows]


def _trained(found: Results) -> list[Row]:
    return [row for row in found["budgets"].rows.values() if not row["refused"]]


def _ratios(found: Results) -> list[float]:
    return [ratio for row in found["products"].rows.values() for pair in row["ratios"].values() for ratio in pair]


def _geometric_mean(values: list[float]) -> float:
    from math import exp, fsum, log

    return exp(fsum(log(value) for value in values) / len(values))


def _answer(found: Results) -> tuple[str, str, str]:
    """The last sample of the recorded run: the request, and the answers before and after training."""
    lines = list(reversed(terminal.plain(found["run"].rows["train"]["screen"])))
    right, before, after = (
        next(line.removeprefix(name).strip() for line in lines if line.startswith(f"{name} "))
        for name in ("expected", "before", "after")
    )
    request = next(request for request, command in pairs(TRAIN) if command == right)
    return request, before, after


DERIVED: dict[str, Callable[[Results], Any]] = {
    "budgets-runs": lambda found: len(found["budgets"].rows),
    "budgets-refused": lambda found: sum(row["refused"] for row in found["budgets"].rows.values()),
    "budgets-exceeded": lambda found: sum(row["rss_mb"] > row["budget_mb"] for row in _trained(found)),
    "prediction-least": lambda found: f"{100 * min(_errors(found)):.1f} %",
    "prediction-most": lambda found: f"{100 * max(_errors(found)):.1f} %",
    "products-mean": lambda found: f"{_geometric_mean(_ratios(found)):.2f}",
    "products-least": lambda found: f"{min(_ratios(found)):.2f}",
    "answer-request": lambda found: _answer(found)[0],
    "answer-before": lambda found: _answer(found)[1],
    "answer-after": lambda found: f"`{_answer(found)[2]}`",
}
"""Figures that need more than one row."""


# Tables


def _table(name: str, found: Results) -> str:
    if name not in TABLES:
        raise FeatherbackError(f"unknown table {name!r}; {expected(name, TABLES)}")
    return TABLES[name](found)


def _front(found: Results) -> str:
    """The comparison at the top of README."""

    def cell(place: str, unit: str) -> str:
        return f"{figure(place, found)} {unit}"

    least, default, peft = "peft:0.5b-ours-least", "peft:0.5b-ours", "peft:0.5b-peft-checkpointing"
    ours, theirs = cell(f"{least}:footprint_mb", "MB"), cell(f"{peft}:footprint_mb", "MB")
    lines = [["Least memory to train Qwen2.5-0.5B", f"**{ours}**", f"{theirs}"]]
    lines.append(["Time of a step with the least memory", cell(f"{least}:step_s", "s"), cell(f"{peft}:step_s", "s")])
    ours, theirs = cell(f"{default}:step_s", "s"), cell("peft:0.5b-peft:step_s", "s")
    size = figure(f"{default}:footprint_mb", found)
    lines.append([f"Time of a step by default (Featherback takes {size} MB)", f"**{ours}**", theirs])
    for key, what in (("demo", "chat job"), ("prefix", "chat job with a long shared prompt")):
        row = f"job:chats-{key}"
        steps = figure(f"{row}:steps", found)
        lines.append(
            [f"A whole {what}, {steps} steps", f"**{cell(f'{row}:ours.job_s', 's')}**", cell(f"{row}:peft.job_s", "s")]
        )
        lines.append(["Memory of this job", cell(f"{row}:ours.tree_mb", "MB"), cell(f"{row}:peft.tree_mb", "MB")])
    return _right(["On two CPU cores", "Featherback", "PyTorch + PEFT"], lines)


def _right(head: list[str], lines: list[list[str]]) -> str:
    """A table whose columns after the first are aligned right."""
    marks = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *lines))


def _fits(found: Results) -> str:
    lines = []
    for size in SIZES:
        if row := found["memory"].rows.get(f"{size}-256-mesp"):
            sizes = (shown(row[key], key) for key in ("footprint_mb", "rss_mb"))
            lines.append([f"Qwen2.5 {size.upper()}", *(f"{value} MB" for value in sizes)])
    return _right(["model", "footprint", "peak RSS"], lines)


SIZES = ("0.5b", "1.5b", "3b", "7b")
_HEAD = ["", "published MeSP, MB", "footprint, MB", "peak RSS, MB", "s per step"]


def _memory_line(name: str, key: str, found: Results) -> list[str]:
    row = found["memory"].rows[key]
    known = _PUBLISHED.get(key, {}).get("footprint_mb")
    return [
        name,
        number(known),
        f"**{row['footprint_mb']:.1f}**",
        f"{row['rss_mb']:.1f}",
        shown(row["step_s"], "step_s"),
    ]


def _memory(entries: dict[str, str]) -> Callable[[Results], str]:
    """A table of rows of the part `memory`: row -> name. Rows that were not measured are left out."""

    def made(found: Results) -> str:
        rows = found["memory"].rows
        lines = [_memory_line(name, key, found) for key, name in entries.items() if key in rows]
        published_ = any(line[1] != "-" for line in lines)
        return _right(
            [*_HEAD[: 1 + published_], *_HEAD[2:]], [line if published_ else [line[0], *line[2:]] for line in lines]
        )

    return made


def _methods_side_by_side(found: Results) -> str:
    lines = []
    for size in SIZES:
        for method in ("mesp", "mebp", "mezo"):
            if (key := f"{size}-256-{method}") in found["memory"].rows and f"{size}-256-mezo" in found["memory"].rows:
                optimizer = found["memory"].rows[key]["optimizer"]
                line = _memory_line(f"{size.upper()}, {method}, {optimizer}", key, found)
                lines.append(line)
    return _right(["", "published, MB", *_HEAD[2:]], lines)


def _peft(found: Results) -> str:
    names = {
        "ours-least": "Featherback, `--memory least`",
        "ours": "Featherback, default",
        "peft-checkpointing": "PEFT, bf16, gradient checkpointing",
        "peft": "PEFT, bf16",
    }
    rows = found["peft"].rows
    lines = []
    for model, title in (("0.5b", "Qwen2.5-0.5B"), ("smollm2-135m", "SmolLM2-135M")):
        for side, name in names.items():
            if row := rows.get(f"{model}-{side}"):
                ratio = row["step_s"] / rows[f"{model}-ours"]["step_s"]
                values = [shown(row[key], key) for key in ("footprint_mb", "rss_mb", "step_s")]
                lines.append([f"{title}: {name}", *values, f"{ratio:.2f}"])
    return _right(["256 tokens", "footprint, MB", "peak RSS, MB", "s per step", "relative to our default"], lines)


def _job(found: Results) -> str:
    names = {"demo": "short chats", "prefix": "chats with a shared system prompt of 200 tokens"}
    lines = []
    for key, title in names.items():
        row = found["job"].rows[f"chats-{key}"]
        peft = row["peft"]
        for side in ("ours", "ours-tenth", "peft"):
            if job := row.get(side):
                values = [shown(job[field], field) for field in ("job_s", "prepare_s", "steps_s", "rest_s", "tree_mb")]
                losses = [f"{job['before']:.3f}", f"{job['after']:.3f}"]
                ratio = shown(peft["job_s"] / job["job_s"], "ratio")
                lines.append([f"{title}, {row['steps']} steps: {job['what']}", *values, *losses, ratio])
    head = ["", "s", "preparing", "steps", "rest", "MB", "loss before", "after", "times as fast as PEFT"]
    return _right(head, lines)


def _curve(found: Results) -> str:
    rows = list(found["curve"].rows.values())
    lines = []
    for row in rows:
        kept = ", ".join(f"{name} {layers}" for name, layers in row["kept"].items()) or "nothing"
        relative = [f"{row[key] / rows[0][key]:.2f}" for key in ("step_s", "predicted_step_s")]
        sizes = [shown(row[key], key) for key in ("footprint_mb", "rss_mb", "step_s")]
        lines.append([f"{row['budget_mb']} MB", *sizes, *relative, kept])
    head = ["`--memory`", "footprint, MB", "peak RSS, MB", "s per step", "relative", "predicted", "kept (layers)"]
    return _right(head, lines)


def _learning(found: Results) -> str:
    lines = []
    for row in found["methods"].rows.values():
        sizes = [shown(row[key], key) for key in ("footprint_mb", "rss_mb", "disk_mb")]
        loss = f"{row['before']:.3f} → {row['after']:.3f}"
        lines.append([row["row"], f"{row['learning_rate']:g}", loss, f"{row['steps_s'] / row['steps']:.2f}", *sizes])
    head = ["", "learning rate", "held-out loss", "s per step", "footprint, MB", "peak RSS, MB", "disk, MB"]
    return _right(head, lines)


def _gradients(found: Results) -> str:
    lines = []
    for key, row in found["gradients"].rows.items():
        cosines = [layer["cosine"] for layer in row["layers"]]
        figures = [f"{value:.6f}" for value in (row["cosine"], min(cosines), max(cosines))]
        lines.append([_way(key), *figures, f"{row['signs']:.2%}", f"{row['error']:.2e}"])
    return _right(["method", "cosine", "worst layer", "best layer", "signs agree", "relative error"], lines)


def _exactness(found: Results) -> str:
    names = {
        "ours-fp32": "Featherback, `--compute fp32`",
        "ours-int16": "Featherback, `--compute int16`",
        "ours-bf16": "Featherback, `--compute bf16`",
        "peft-float32": "PyTorch and PEFT, float32",
        "peft-bfloat16": "PyTorch and PEFT, bf16",
    }
    lines = []
    for key, name in names.items():
        if (row := found["exactness"].rows.get(key)) is None:
            continue
        errors = [f"{row[f'error_{which}']:.1e}" for which in ("median", "worst")]
        lines.append([name, *errors, *(f"{row[f'cosine_{which}']:.6f}" for which in ("median", "worst"))])
    return _right(["", "median error", "worst error", "median cosine", "worst cosine"], lines)


def _way(key: str) -> str:
    method, what = key.split("-")
    return f"{method}, {what} direction{'s' * (what != '1')}" if what.isdigit() else f"{method}, {what}"


def _products(found: Results) -> str:
    rows = found["products"].rows
    types = list(dict.fromkeys(name for row in rows.values() for name in row["ratios"]))
    lines = []
    for key, row in rows.items():
        pairs = [row["ratios"].get(name) for name in types]
        cells = ["-" if pair is None else f"{pair[0]:.2f} / {pair[1]:.2f}" for pair in pairs]
        lines.append([key.replace("x", " x "), " / ".join(map(str, row["rival_gflops"])), *cells])
    return _right(["weight", "oneDNN, GFLOP/s", *types], lines)


def _serving(found: Results) -> str:
    rows = found["serving"].rows
    counts = list(next(iter(rows.values()))["ratios"])
    lines = []
    names = {"base": "no adapter", "one-adapter": "one adapter", "adapter-each": "an adapter each"}
    for key, row in rows.items():
        lines.append([names[key], *(f"{row['tokens_per_second'][n]:.0f} ({row['ratios'][n]:.2f})" for n in counts)])
    return _right(["requests at once", *counts], lines)


def _llama(found: Results) -> str:
    lines = []
    for key, row in found["llama"].rows.items():
        for what, title in (
            ("prefill256", "prefill, 256 tokens"),
            ("prefill1024", "prefill, 1024 tokens"),
            ("decoding", "decoding"),
            ("decoding_exact", "decoding, exact"),
            ("decoding_fast", "decoding, fast"),
        ):
            if f"{what}_ratio" in row:
                rates = [f"{row[f'{what}_{side}']:.0f}" for side in ("ours", "theirs")]
                lines.append([f"{key}, {title}", *rates, f"{row[f'{what}_ratio']:.2f}"])
    return _right(["two threads", "Featherback, tokens/s", "llama.cpp, tokens/s", "ratio"], lines)


def _sources(found: Results) -> str:
    lines = [
        [f"[{name}](results/{name}.json)", _fact(found[name], "date"), _fact(found[name], "commit"), f"`{part.run_by}`"]
        for name, part in parts().items()
        if name in found
    ]
    return table(["figures", "measured on", "commit", "command"], lines)


_SEQUENCES = (128, 256, 512, 1024, 2048, 4096)
_RANKS = {4: "-rank4", 8: "", 16: "-rank16", 32: "-rank32"}
TABLES: dict[str, Callable[[Results], str]] = {
    "front": _front,
    "fits": _fits,
    "models": _memory({f"{size}-256-mesp": f"Qwen2.5-{size.upper()}" for size in SIZES}),
    "sequences": _memory({f"0.5b-{tokens}-mesp": f"{tokens} tokens" for tokens in _SEQUENCES}),
    "ranks": _memory({f"0.5b-256-mesp{end}": f"rank {rank}" for rank, end in _RANKS.items()}),
    "methods-memory": _methods_side_by_side,
    "peft": _peft,
    "job": _job,
    "curve": _curve,
    "methods": _learning,
    "gradients": _gradients,
    "exactness": _exactness,
    "products": _products,
    "serving": _serving,
    "llama": _llama,
    "sources": _sources,
}


# Pictures


def run_picture(found: Results) -> str:
    """The recorded run as a terminal."""
    row = found["run"].rows["train"]
    return terminal.picture(row["typed"], row["screen"], row["columns"])


def _curve_picture(found: Results) -> str:
    from benchmarks.pictures import Panel, layers_figure, svg

    rows = list(found["curve"].rows.values())
    label = f"{rows[0]['model']}, {rows[0]['tokens']} tokens"
    relative = {label: [row["step_s"] / rows[0]["step_s"] for row in rows]}
    budgets = {label: [float(row["budget_mb"]) for row in rows]}
    panels = [
        Panel("time of a step, relative to the least budget's", relative, (0.4, 0.6, 0.8, 1.0)),
        Panel("--memory, MB", budgets),
    ]
    return svg(layers_figure("Memory buys time", panels, "budget, from the least to the largest that is of use"))


def _gradients_picture(found: Results) -> str:
    from benchmarks.pictures import Panel, layers_figure, svg

    rows = found["gradients"].rows

    def lines(key: str, factor: float = 1) -> dict[str, list[float]]:
        return {_way(name): [factor * layer[key] for layer in row["layers"]] for name, row in rows.items()}

    panels = [
        Panel("cosine", lines("cosine"), (0, 0.25, 0.5, 0.75, 1)),
        Panel("signs that agree, %", lines("signs", 100), (50, 75, 100)),
        Panel("relative error", lines("error")),
    ]
    return svg(layers_figure("LoRA gradients against MeSP's in fp32, layer by layer", panels))


def _methods_picture(found: Results) -> str:
    from benchmarks.pictures import learning_figure, svg

    rows = found["methods"].rows.values()
    curves = {row["row"]: [(seconds, loss) for _, seconds, loss in row["curve"]] for row in rows}
    ends = {row["row"]: (row["footprint_mb"], row["after"]) for row in rows}
    steps = next(iter(rows))["steps"]
    return svg(learning_figure(f"What {steps} steps teach, over time and over memory", curves, ends))


PICTURES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "curve": ("curve", _curve_picture),
    "gradients": ("gradients", _gradients_picture),
    "methods": ("methods", _methods_picture),
    "run": ("run", run_picture),
}
"""Name -> the part that it shows, and what draws it."""


def digest(result: Result) -> str:
    """What a picture says that it was drawn from: a hash of the rows."""
    return hashlib.sha256(json.dumps(result.rows, sort_keys=True).encode()).hexdigest()[:16]


def drawn_from(picture: Path) -> str | None:
    """The hash in a picture's last line."""
    match = (
        re.search(r"<!-- drawn from rows (\w+) -->", picture.read_text(encoding="utf-8")) if picture.exists() else None
    )
    return match[1] if match else None


def outdated(found: Results) -> list[str]:
    """Pages and pictures that differ from the result files, as paths relative to the repository."""
    wrong = [page for page in pages() if rendered(text := page.read_text(encoding="utf-8"), found) != text]
    pictures = (
        FIGURES / f"{name}.svg"
        for name, (part, _) in PICTURES.items()
        if part in found and drawn_from(FIGURES / f"{name}.svg") != digest(found[part])
    )
    return [path.relative_to(ROOT).as_posix() for path in (*wrong, *pictures)]


def update(say: Callable[[str], None]) -> None:
    """Write the figures of `docs/results` into pages and pictures that differ from them."""
    found = results.read_all()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := rendered(text, found)) != text:
            page.write_text(new, encoding="utf-8")
            say(f"updated {page.relative_to(ROOT)}")
    for name, (part, draw) in PICTURES.items():
        path = FIGURES / f"{name}.svg"
        if part in found and drawn_from(path) != digest(found[part]):
            path.write_text(
                f"{draw(found).rstrip()}\n<!-- drawn from rows {digest(found[part])} -->\n", encoding="utf-8"
            )
            say(f"updated {path.relative_to(ROOT)}")
