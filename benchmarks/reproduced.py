"""The tables of `docs/reproduced.md`: what a paper reports, and what the same setting takes here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import published
from benchmarks.markdown import aligned_right
from benchmarks.published import Published

Rows = Mapping[str, Mapping[str, Any]]


def models(found: Rows) -> str:
    """Table 1 of the MeSP paper: three sizes."""
    return _mesp_beside_mebp({f"{size}-256-{{}}": _name(size) for size in ("0.5b", "1.5b", "3b")}, found)


def sequences(found: Rows) -> str:
    """Table 2: lengths."""
    return _mesp_beside_mebp({f"0.5b-{tokens}-{{}}": f"{tokens}" for tokens in (128, 256, 512, 1024)}, found)


def ranks(found: Rows) -> str:
    """Table 3: ranks."""
    return _mesp_beside_mebp(
        {"0.5b-256-{}" + (f"-rank{rank}" if rank != 8 else ""): f"{rank}" for rank in (4, 8, 16, 32)}, found
    )


def stored_h(found: Rows) -> str:
    """Table 5: x A^T stored or computed again."""
    kinds = {"3b-256-mesp-h": "stored", "3b-256-mesp-again": "computed again"}
    reported = published.MESP | {"3b-256-mesp-again": published.MESP["3b-256-mesp"]}
    lines = [[name, *_cells(reported[key]), *_cells(_ours(found, key))] for key, name in kinds.items()]
    return aligned_right(["x Aᵀ", "published, MB", "s", "here, MB", "s"], lines)


def _mesp_beside_mebp(kinds: Mapping[str, str], found: Rows) -> str:
    """MeBP and MeSP in each setting: `kinds` is key without the method -> name."""
    lines = []
    for key, name in kinds.items():
        mebp, mesp = key.format("mebp"), key.format("mesp")
        theirs = _compared(published.MESP[mebp], published.MESP[mesp])
        ours = _compared(_ours(found, mebp), _ours(found, mesp))
        lines.append([name, *theirs, *ours])
    columns = ["MeBP, MB", "MeSP, MB", "memory", "time"]
    head = ["", *(f"published {column}" for column in columns), *(f"{column} here" for column in columns)]
    return aligned_right(head, lines)


def _compared(mebp: Published, mesp: Published) -> list[str]:
    """Both sizes, and MeSP's memory and time relative to MeBP's."""
    times = _change(mesp.seconds / mebp.seconds) if mesp.seconds and mebp.seconds else "-"
    return [f"{mebp.mb:,.1f}", f"{mesp.mb:,.1f}", _change(mesp.mb / mebp.mb), times]


def _change(ratio: float) -> str:
    return f"{round(ratio - 1, 2) + 0.0:+.0%}"  # never -0%


def _cells(each: Published) -> list[str]:
    size = f"{each.mb:,.1f}" if each.mb % 1 else f"{each.mb:,.0f}"
    return [size, "-" if each.seconds is None else f"{each.seconds:.2f}"]


def _ours(found: Rows, key: str) -> Published:
    return Published(found[key]["footprint_mb"], found[key]["step_s"])


def _name(size: str) -> str:
    return f"Qwen2.5-{size.upper()}"


TABLES: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "mesp-models": ("memory", models),
    "mesp-sequences": ("memory", sequences),
    "mesp-ranks": ("memory", ranks),
    "mesp-h": ("memory", stored_h),
}
"""Name -> the part that it shows, and what makes it."""
