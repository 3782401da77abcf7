"""What a training step holds: shapes of real models, each row a training process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.place import SIZES
from benchmarks.training_run import Measured, train_synthetic

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

STEPS = 3
LONG = 2048
"""Sequences from here on, and models other than the 0.5B, do two steps: the second holds the most."""


@dataclass(frozen=True)
class Setting:
    """What is trained, and how."""

    model: str = "qwen2.5-0.5b"
    tokens: int = 256
    method: str = "mesp"
    rank: int = 8
    keeps_h: bool | None = None
    """Whether x A^T is kept in the backward pass of a layer; None: as the plan has it."""

    @property
    def key(self) -> str:
        """The row's name in the result file."""
        words = [self.model.removeprefix("qwen2.5-"), f"{self.tokens}", self.method]
        words += [f"rank{self.rank}"] if self.rank != 8 else []
        return "-".join(words if self.keeps_h is None else [*words, "h" if self.keeps_h else "again"])


METHODS = {"mesp": "adamw", "mebp": "sgd", "mezo": "sgd"}
"""Method -> optimiser. MeSP has the default, which keeps two numbers more for each parameter than the paper's SGD."""
TOKENS = {"mesp": (128, 512, 1024, 2048, 4096), "mebp": (128, 512, 1024)}
RANKS = (4, 16, 32)
SIDE_BY_SIDE = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b")


def settings() -> list[Setting]:
    """Everything that is measured, each setting once."""
    found = [Setting(size, method=name) for size in SIDE_BY_SIDE for name in METHODS]
    found += [Setting(tokens=tokens, method=name) for name, lengths in TOKENS.items() for tokens in lengths]
    found += [Setting(rank=rank, method=name) for name in TOKENS for rank in RANKS]
    found += [Setting("qwen2.5-3b", keeps_h=keeps) for keeps in (False, True)]
    found += [Setting("qwen2.5-7b")]
    return sorted(dict.fromkeys(found), key=lambda setting: SIZES[setting.model])  # a model is written once


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each setting."""
    return {setting.key: partial(row, setting, place) for setting in settings()}


def row(setting: Setting, place: Place) -> Row:
    """Train for a few steps with `--memory least`; peaks in MB, the median time of a step in seconds."""
    measured = train_synthetic(
        place.synthetic(setting.model),
        tokens=place.tokens(setting.tokens),
        steps=place.steps(STEPS if setting.model == "qwen2.5-0.5b" and setting.tokens < LONG else 2),
        folder=place.folder,
        memory="least",
        method=setting.method,
        optimizer=METHODS[setting.method],
        rank=setting.rank,
        keeps_h=setting.keeps_h,
    )
    return {
        "model": setting.model,
        "tokens": setting.tokens,
        "method": setting.method,
        "optimizer": METHODS[setting.method],
        "rank": setting.rank,
        **peaks(measured),
        "step_s": round(measured.step_seconds, 3),
    }


def peaks(measured: Measured) -> dict[str, float]:
    """The larger of what the run and an observer saw, and what was predicted."""
    footprint = max(measured.footprint_mb, measured.outside_footprint_mb or 0)
    rss = max(measured.rss_mb, measured.outside_rss_mb or 0)
    predicted = measured.predicted_rss_mb
    return {"footprint_mb": round(footprint, 1), "rss_mb": round(rss, 1), "predicted_rss_mb": round(predicted, 1)}
