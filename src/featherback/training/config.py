"""What a training run is asked to do."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from featherback.errors import FeatherbackError
from featherback.methods import NAMES as METHODS
from featherback.architecture.config import ModelConfig
from featherback.architecture.names import TARGETS, parse_targets
from featherback.optim import OPTIMIZERS, SCHEDULES, default_learning_rate

COMPUTE = ("bf16", "fp32")
DEFAULT_EPOCHS = 3
# What a resumed run may change without becoming another run.
_FREE_ON_RESUME = (
    "out",
    "data",
    "eval_data",
    "memory",
    "threads",
    "steps",
    "epochs",
    "eval_every",
    "save_every",
    "patience",
)
_WHOLE = (
    "rank",
    "seq_len",
    "batch_size",
    "accumulate",
    "save_every",
    "steps",
    "epochs",
    "eval_every",
    "patience",
    "warmup",
    "threads",
    "memory",
    "seed",
)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of `featherback train`, checked: FeatherbackError names the option that cannot be right."""

    model: str  # GGUF file or Hugging Face folder
    data: str  # what was trained on, for the record; the run keeps its own token file
    out: str  # run directory
    method: str = "mesp"
    memory: int | None = None  # cap of the peak RSS, bytes
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = TARGETS  # or what names.parse_targets reads
    seq_len: int = 256
    batch_size: int = 1  # a batch holds at most batch_size * seq_len tokens
    accumulate: int = 1  # batches a step
    steps: int | None = None  # at most one of steps and epochs; neither = DEFAULT_EPOCHS
    epochs: int | None = None
    learning_rate: float | None = None  # peak; None = the optimiser's default
    optimizer: str = "adamw"
    schedule: str = "cosine"
    warmup: int = 0  # steps
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0  # 0 = no clipping
    compute: str = "bf16"
    threads: int | None = None  # None = all cores
    seed: int = 0
    eval_data: str | None = None
    eval_every: int | None = None  # steps; None = only before the first and after the last
    save_every: int = 50  # steps between checkpoints, which also come at the end and on interruption
    patience: int | None = None  # evaluations without a new best before the run stops early

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", parse_targets(self.targets))
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise FeatherbackError(f"{_option(name)} is {value!r}; it must be a whole number.")
            self._at_least(name, {"warmup": 0, "seed": 0, "seq_len": 2}.get(name, 1))
        for name in ("weight_decay", "max_grad_norm"):
            self._at_least(name, 0)
            if math.isinf(getattr(self, name)):
                raise FeatherbackError(f"{_option(name)} is infinite; it must be a number.")
        for name in ("alpha", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise FeatherbackError(f"{_option(name)} is {value}; it must be a positive number.")
        for name, choices in (
            ("method", METHODS),
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
            ("compute", COMPUTE),
        ):
            if getattr(self, name) not in choices:
                raise FeatherbackError(
                    f"{_option(name)} is {getattr(self, name)!r}; choose from {', '.join(choices)}."
                )
        if self.steps is not None and self.epochs is not None:
            raise FeatherbackError("Name --steps or --epochs, not both.")
        for name in ("eval_every", "patience"):
            if getattr(self, name) is not None and self.eval_data is None:
                raise FeatherbackError(f"{_option(name)} needs --eval-data.")
        if self.patience is not None and self.eval_every is None:
            raise FeatherbackError("--patience needs --eval-every.")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not value >= least:
            raise FeatherbackError(f"{_option(name)} is {value}; it must be at least {least}.")

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up."""
        return default_learning_rate(self.optimizer) if self.learning_rate is None else self.learning_rate

    def check_model(self, model: ModelConfig) -> None:
        """FeatherbackError if this model cannot be trained with these options."""
        if self.seq_len > model.max_position_embeddings:
            raise FeatherbackError(
                f"--seq-len {self.seq_len} is beyond the {model.max_position_embeddings} tokens "
                f"that {self.model} was made for."
            )
        if self.rank > model.hidden_size:
            raise FeatherbackError(
                f"--rank is {self.rank}; more than the model's width, {model.hidden_size}, can add nothing."
            )

    def check_resume(self, earlier: TrainConfig) -> None:
        """FeatherbackError naming every option that differs from the run's and must not."""
        differing = [
            f"{_option(name)} was {getattr(earlier, name)}, not {getattr(self, name)}"
            for name in (field.name for field in fields(self))
            if name not in _FREE_ON_RESUME and getattr(self, name) != getattr(earlier, name)
        ]
        if differing:
            raise FeatherbackError(f"Cannot resume {self.out} with other options: {'; '.join(differing)}.")

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return asdict(self) | {"targets": list(self.targets)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of to_json; FeatherbackError for options this version does not know."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise FeatherbackError(f"The run is of another version of Featherback ({', '.join(unknown)}).")
        return cls(**{**values, "targets": tuple(values["targets"])})


def parse_memory(text: str) -> int:
    """Bytes from "96MB", "1.5 GB", "64MiB" (decimal or binary units); FeatherbackError if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None:
        raise FeatherbackError(f"--memory is {text!r}; write an amount such as 96MB or 1.5GB.")
    return int(float(match[1]) * unit)


def _option(name: str) -> str:
    return "--" + {"learning_rate": "lr"}.get(name, name).replace("_", "-")
