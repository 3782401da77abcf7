"""What a training step holds: shapes of real models, each row a training process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    optimizer: str = "adamw"
    rank: int = 8

    @property
    def key(self) -> str:
        """The row's name in the result file."""
        words = [self.model.removeprefix("qwen2.5-"), f"{self.tokens}", self.method]
        return "-".join(words + ([f"rank{self.rank}"] if self.rank != 8 else []))


METHODS = (("mesp", "adamw"), ("mebp", "sgd"), ("mezo", "sgd"))
SETTINGS = (
    *(Setting(tokens=tokens) for tokens in (128, 256, 512, 1024, 2048, 4096)),
    *(Setting(method=method, optimizer=optimizer) for method, optimizer in METHODS[1:]),
    *(Setting(rank=rank) for rank in (4, 16, 32)),
    *(Setting("qwen2.5-1.5b", method=method, optimizer=optimizer) for method, optimizer in METHODS),
    Setting("qwen2.5-3b"),
    Setting("qwen2.5-7b"),
)


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """A row for each setting."""
    return {setting.key: lambda setting=setting: row(setting, place) for setting in SETTINGS}


def row(setting: Setting, place: Place) -> Row:
    """Train for a few steps with `--memory least`; peaks in MB, the median time of a step in seconds."""
    measured = train_synthetic(
        place.synthetic(setting.model),
        tokens=place.tokens(setting.tokens),
        steps=place.steps(STEPS if setting.model == "qwen2.5-0.5b" and setting.tokens < LONG else 2),
        folder=place.folder,
        memory="least",
        method=setting.method,
        optimizer=setting.optimizer,
        rank=setting.rank,
    )
    return {
        "model": setting.model,
        "tokens": setting.tokens,
        "method": setting.method,
        "optimizer": setting.optimizer,
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
