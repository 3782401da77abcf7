"""`python -m benchmarks memory`: the tables of the MeSP paper, each run a fresh process on real shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import published
from benchmarks.ablation import measure_kept_h
from benchmarks.markdown import number, table
from benchmarks.synthetic import made
from benchmarks.training_run import Measured, train_synthetic

Say = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]

MAIN = "qwen2.5-0.5b"  # the model of the paper's Tables 2 and 3
LONG = (2048, 4096)  # beyond the paper
BUDGETS = (60, 72, 96, 160, 400)  # MB, for the table of predictions


@dataclass(frozen=True)
class Setting:
    """One row: what is trained, and how."""

    table: str  # "models" | "sequences" | "ranks" | "budgets"
    model: str
    method: str = "mesp"
    optimizer: str = "adamw"
    tokens: int = 256
    rank: int = 8
    budget_mb: int | None = None

    def run(self, path: Path, steps: int, folder: Path) -> Measured:
        """Measure it; large models take one step less, but two at least: some memory comes only with the second."""
        return train_synthetic(
            path,
            tokens=self.tokens,
            steps=max(2, steps - 1) if self.model in ("qwen2.5-3b", "qwen2.5-7b") else steps,
            folder=folder,
            memory=None if self.budget_mb is None else self.budget_mb * 10**6,
            method=self.method,
            optimizer=self.optimizer,
            rank=self.rank,
        )


@dataclass(frozen=True)
class Row:
    """A setting and what it took."""

    setting: Setting
    measured: Measured


def settings(models: list[str], quick: bool) -> Iterator[Setting]:
    """All rows, the smallest model's first; `quick`: one row per table."""
    rivals = [("mesp", "adamw"), ("mesp", "sgd"), ("mebp", "sgd"), ("mezo", "sgd")]
    for model in models:
        for method, optimizer in rivals[:1] if quick else rivals:
            yield Setting("models", model, method, optimizer)
        if model != MAIN:
            continue
        for tokens in (128,) if quick else (*published.SEQUENCES, *LONG):
            for method, optimizer in rivals[:1] if quick else rivals[:3]:
                if tokens != 256 and not (method == "mebp" and tokens in LONG):
                    yield Setting("sequences", model, method, optimizer, tokens=tokens)
        for rank in (16,) if quick else published.RANKS:
            for method, optimizer in rivals[:1] if quick else rivals[1:3]:
                if rank != 8:
                    yield Setting("ranks", model, method, optimizer, rank=rank)
        for budget in BUDGETS[2:3] if quick else BUDGETS:
            yield Setting("budgets", model, budget_mb=budget)


def run(models: list[str], cache: Path, steps: int, quick: bool, keep: bool, say: Say, save: Save) -> dict[str, Any]:
    """Run every setting; the results as JSON values and as Markdown. Model files are made in `cache`.

    `keep`: leave them there; otherwise each goes when its rows are done. `save` gets what there is after every row.
    """
    cache.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    kept: dict[bool, Measured] = {}
    for model in models:
        with made(model, cache, keep, say) as path:
            for setting in settings(models, quick):
                if setting.model != model:
                    continue
                rows.append(Row(setting, setting.run(path, steps, cache)))
                say(_progress(rows[-1]))
                save(_results(rows, kept))
            if model == "qwen2.5-3b" or quick:
                kept = {keep_h: measure_kept_h(path, keep_h, cache) for keep_h in (True, False)}
    return _results(rows, kept)


def _results(rows: list[Row], kept: dict[bool, Measured]) -> dict[str, Any]:
    return {"rows": [_json(row) for row in rows], "kept_h": _kept_json(kept), "markdown": markdown(rows, kept)}


def _progress(row: Row) -> str:
    s, m = row.setting, row.measured
    what = f"{s.model} {s.method}/{s.optimizer} {s.tokens} tokens, rank {s.rank}"
    if s.budget_mb:
        what += f", --memory {s.budget_mb}MB"
    return (
        f"{what}: footprint {m.footprint_mb:.1f}, RSS {m.rss_mb:.1f} MB "
        f"(predicted {m.predicted_rss_mb:.1f}), {m.step_seconds:.2f} s"
    )


def _json(row: Row) -> dict[str, Any]:
    return {"table": row.setting.table, "model": row.setting.model, **row.measured.to_json()}


def _kept_json(kept: dict[bool, Measured]) -> dict[str, Any]:
    return {"stored" if keep else "recomputed": value.to_json() for keep, value in kept.items()}


def markdown(rows: list[Row], kept: dict[bool, Measured]) -> str:
    """The tables, published columns beside ours."""
    parts = []
    for name, title, key in (
        ("models", "Models (the paper's Table 1)", lambda s: s.model),
        ("sequences", "Sequence length (Table 2)", lambda s: f"{s.tokens} tokens"),
        ("ranks", "Rank (Table 3)", lambda s: f"rank {s.rank}"),
    ):
        chosen = [row for row in rows if _belongs(row.setting, name)]
        if chosen:
            parts.append(f"### {title}\n\n{_paper_table(chosen, key)}")
    if kept:
        parts.append(f"### h stored or recomputed (Table 5, published for the 3B model)\n\n{_kept_table(kept)}")
    parts.append(f"### Predicted and measured RSS\n\n{_prediction_table(rows)}")
    return "\n\n".join(parts)


def _belongs(setting: Setting, name: str) -> bool:
    """The main model's rows at 256 tokens and rank 8 stand in all three tables."""
    shared = setting.table == "models" and setting.model == MAIN and setting.method != "mezo"
    return setting.table == name or (name in ("sequences", "ranks") and shared)


def _paper_table(rows: list[Row], key: Callable[[Setting], str]) -> str:
    head = ["", "method", "published MB", "footprint MB", "RSS MB", "published s", "s per step", "goal MB (RSS)"]
    ordered = sorted(rows, key=lambda row: (row.setting.tokens, row.setting.rank))
    return table(head, [_paper_line(row, key) for row in ordered])


def _paper_line(row: Row, key: Callable[[Setting], str]) -> list[str]:
    s, m = row.setting, row.measured
    known = published.MODELS.get(s.model) if s.tokens == 256 else None
    if s.model == "qwen2.5-0.5b" and s.tokens != 256:
        known = published.SEQUENCES.get(s.tokens)
    if s.model == "qwen2.5-0.5b" and s.rank != 8:
        known = published.RANKS.get(s.rank)
    megabytes = known and {"mesp": known.mesp_mb, "mebp": known.mebp_mb}.get(s.method)
    seconds = known and {"mesp": known.mesp_seconds, "mebp": known.mebp_seconds}.get(s.method)
    goal = published.GOALS.get((s.model, s.tokens)) if s.method == "mesp" and s.rank == 8 else None
    return [
        key(s),
        f"{s.method}, {s.optimizer}",
        number(megabytes),
        f"**{max(m.footprint_mb, m.outside_footprint_mb or 0):.1f}**",
        f"{max(m.rss_mb, m.outside_rss_mb or 0):.1f}",
        number(seconds, 2),
        f"{m.step_seconds:.2f}",
        "" if goal is None else f"{goal[0]} ({goal[1]})",
    ]


def _kept_table(kept: dict[bool, Measured]) -> str:
    lines = []
    for keep, measured in kept.items():
        megabytes, seconds = published.KEEP_H[keep]
        name = "stored" if keep else "recomputed"
        lines.append(
            [name, f"{megabytes}", f"**{measured.footprint_mb:.1f}**", f"{seconds}", f"{measured.step_seconds:.2f}"]
        )
    return table(["h", "published MB", "footprint MB", "published s", "s per step"], lines)


def _prediction_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        s, m = row.setting, row.measured
        budget = "" if s.budget_mb is None else f"{s.budget_mb}"
        what = [s.model, f"{s.method}, {s.optimizer}", f"{s.tokens}", f"{s.rank}", budget]
        lines.append([*what, f"{m.predicted_rss_mb:.1f}", f"{m.rss_mb:.1f}", f"{m.error:+.1%}"])
    head = ["model", "method", "tokens", "rank", "budget MB", "predicted", "measured", "error"]
    return table(head, lines)
