"""The options of a training run. A field's type, default and `option` describe it once:
checks, the command line with its help, and what a resumed run may change are derived from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from featherback import families, methods, optim
from featherback.architecture.names import parse_targets, short
from featherback.errors import FeatherbackError
from featherback.host.priority import LOWEST
from featherback.host.sensors import KINDS
from featherback.options import check, described, flags, option

if TYPE_CHECKING:
    from featherback.architecture.config import ModelConfig
    from featherback.models.model import Model

COMPUTE = ("bf16", "fp32")
DEFAULT_EPOCHS = 3
MOST_EPOCHS = 10_000  # their batches are counted before the first step
MOST_MEMORY = 1 << 60  # bytes
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

CHOICES = (methods.OPTIONS, optim.OPTIONS)
"""Fields whose value has options of its own: `optimizer`'s are in the field `optimizer_options`."""

DATA, ADAPTER, OPTIMISATION, RUN = PANELS = ("Data", "Adapter", "Optimisation", "Run")
"""Groups of options in the help, in this order."""


def parse_memory(text: str) -> int:
    """Bytes from "96MB", "1.5 GB", "64MiB" (decimal or binary units); FeatherbackError if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None:
        raise FeatherbackError(f"--memory is {text!r}; write an amount such as 96MB or 1.5GB.")
    amount = float(match[1]) * unit
    if amount >= MOST_MEMORY:
        raise FeatherbackError(
            "--memory is more than any machine has; write an amount such as 96MB or 1.5GB."
        )
    return int(amount)


def _bytes(amount: object) -> object:
    return parse_memory(amount) if isinstance(amount, str) else amount


def _targets(given: object) -> tuple[str, ...]:
    """Projections that some family has; "all" stays until the model is known."""
    if not isinstance(given, (str, list, tuple)) or not all(isinstance(name, str) for name in given):
        raise FeatherbackError(f"--targets is {given!r}; write all, or a list such as q,v.")
    names = given.split(",") if isinstance(given, str) else given
    if "all" in (name.strip() for name in names):
        return ("all",)
    return parse_targets(names, families.PROJECTIONS)


def _pauses(given: object) -> tuple[str, ...]:
    """Kinds of sensors; "none" is none of them."""
    names = given.split(",") if isinstance(given, str) else given
    if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
        named = [name.strip() for name in names if name.strip() != "none"]
        if not set(named) - set(KINDS):
            return tuple(kind for kind in KINDS if kind in named)
    raise FeatherbackError(f"--pause-on is {given!r}; write {', '.join(KINDS)}, {','.join(KINDS)} or none.")


def _learning_rates() -> str:
    """The default of --lr, in words."""
    return ", ".join(f"{optim.default_learning_rate(name):g} for {name}" for name in optim.RULES.names)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of `featherback train`, checked: FeatherbackError names the option that is wrong."""

    model: str  # GGUF file or Hugging Face folder
    data: str | None = option(  # kept for the record; the run has its own token file. None: only to resume
        None,
        metavar="PATH",
        panel=DATA,
        free_on_resume=True,
        help="JSONL with messages, prompt/completion or text; or a .txt file. A resumed run has its own.",
    )
    out: str = option(
        metavar="DIR", free_on_resume=True, help="New directory for the adapter and the run's records."
    )
    method: str = option(
        "mesp",
        choices=methods.METHODS.names,
        panel=OPTIMISATION,
        help="How gradients are computed or estimated.",
    )
    method_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its method
    memory: int | None = option(  # peak of the resident memory, bytes
        None,
        parse=_bytes,
        least=1,
        metavar="SIZE",
        panel=RUN,
        free_on_resume=True,
        help="Memory budget, never exceeded, e.g. 96MB.",
    )
    rank: int = option(8, least=1, panel=ADAPTER, help="Rank of the LoRA matrices.")
    alpha: float = option(16.0, above=0, panel=ADAPTER, help="The adapter is scaled by alpha / rank.")
    targets: tuple[str, ...] = option(
        "all",
        parse=_targets,
        panel=ADAPTER,
        help="Projections to adapt: all, or a list such as q,v. "
        f"Some models have each of {short(families.PROJECTIONS, ', ')}.",
    )
    seq_len: int = option(
        256, least=2, panel=DATA, help="Longest sequence, in tokens; longer examples are cut, and counted."
    )
    batch_size: int = option(
        1, least=1, panel=DATA, help="A batch holds whole sequences, up to this times --seq-len tokens."
    )
    accumulate: int = option(1, least=1, panel=OPTIMISATION, help="Batches per step.")
    steps: int | None = option(
        None, least=1, panel=OPTIMISATION, free_on_resume=True, help="Optimiser steps."
    )
    epochs: int | None = option(
        None,
        least=1,
        most=MOST_EPOCHS,
        panel=OPTIMISATION,
        free_on_resume=True,
        shown_default=lambda: str(DEFAULT_EPOCHS),
        help="Passes over the data, instead of --steps.",
    )
    learning_rate: float | None = option(
        None,
        above=0,
        flags=("--lr", "--learning-rate"),
        panel=OPTIMISATION,
        shown_default=_learning_rates,
        help="Peak learning rate.",
    )
    optimizer: str = option("adamw", choices=optim.RULES.names, panel=OPTIMISATION, help="Update rule.")
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its rule
    schedule: str = option(
        "cosine", choices=tuple(optim.SCHEDULES), panel=OPTIMISATION, help="Learning rate after the warm-up."
    )
    warmup: int = option(0, least=0, panel=OPTIMISATION, help="Steps over which the learning rate rises.")
    max_grad_norm: float = option(
        1.0, least=0, panel=OPTIMISATION, help="Clip the gradient to this norm. 0: never."
    )
    compute: str = option(
        "bf16", choices=COMPUTE, panel=RUN, help="Inputs of the matrix products; gradients are exact in fp32."
    )
    threads: int | None = option(
        None,
        least=1,
        panel=RUN,
        free_on_resume=True,
        shown_default=lambda: "one per core",
        help="Threads to compute with.",
    )
    seed: int = option(
        0, least=0, panel=RUN, help="Seed of the adapter's initial values and of the data's order."
    )
    eval_data: str | None = option(
        None,
        metavar="PATH",
        panel=DATA,
        free_on_resume=True,
        help="Held-out data: measured before and after; the best is kept.",
    )
    eval_every: int | None = option(
        None,
        least=1,
        panel=RUN,
        free_on_resume=True,
        help="Steps between further measurements of the held-out loss.",
    )
    patience: int | None = option(
        None,
        least=1,
        panel=RUN,
        free_on_resume=True,
        help="Stop after this many measurements without a new best.",
    )
    nice: int | None = option(
        None,
        least=0,
        most=LOWEST,
        panel=RUN,
        free_on_resume=True,
        help=f"Let other programs go first: the whole command's priority, 0 to {LOWEST} (the weakest).",
    )
    pause_on: tuple[str, ...] | None = option(
        None,
        parse=_pauses,
        metavar="WHAT",
        panel=RUN,
        free_on_resume=True,
        help=f"Wait, without losing anything, while the machine is on battery or too hot: {','.join(KINDS)}.",
    )
    save_every: int = option(50, least=1, panel=RUN, free_on_resume=True, help="Steps between checkpoints.")

    def __post_init__(self) -> None:
        check(self)
        for own in CHOICES:
            options = own.make(getattr(self, own.choice), getattr(self, f"{own.choice}_options"))
            object.__setattr__(self, f"{own.choice}_options", asdict(options))
        if self.steps is not None and self.epochs is not None:
            raise FeatherbackError("Name --steps or --epochs, not both.")
        for name in ("eval_every", "patience"):
            if getattr(self, name) is not None and self.eval_data is None:
                raise FeatherbackError(f"{_flag(name)} needs --eval-data.")
        if self.patience is not None and self.eval_every is None:
            raise FeatherbackError("--patience needs --eval-every.")

    @classmethod
    def of(cls, **values: Any) -> TrainConfig:
        """The configuration with these fields; options of its optimiser (weight_decay, ...) or method (epsilon, ...)
        may stand among them.
        """
        for own in CHOICES:
            named = {name: values.pop(name) for name in own.by_option() if name in values}
            values[f"{own.choice}_options"] = {**values.get(f"{own.choice}_options", {}), **named}
        return cls(**values)

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up."""
        return (
            optim.default_learning_rate(self.optimizer) if self.learning_rate is None else self.learning_rate
        )

    def for_model(self, model: Model) -> TrainConfig:
        """These options with the targets that this model has; FeatherbackError if they do not fit the model."""
        self._check_sizes(model.config)
        return replace(self, targets=parse_targets(self.targets, model.blocks[0].projections))

    def _check_sizes(self, model: ModelConfig) -> None:
        if self.seq_len > model.max_position_embeddings:
            raise FeatherbackError(
                f"--seq-len {self.seq_len} is beyond the {model.max_position_embeddings} tokens "
                f"that {self.model} was made for."
            )
        if self.rank > model.hidden_size:
            raise FeatherbackError(
                f"--rank is {self.rank}; it must be at most the model's width, {model.hidden_size}."
            )

    def continued(self, named: Mapping[str, Any], model: Model) -> TrainConfig:
        """These options of a run of `model`, with those that are `named` to resume it (None: not named).

        FeatherbackError naming every option that differs from the run's and must not.
        """
        named = {name: value for name, value in named.items() if value is not None}
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if "steps" in named or "epochs" in named:
            values |= {"steps": None, "epochs": None}
        for own in CHOICES:
            if named.get(own.choice, values[own.choice]) != values[own.choice]:
                values[f"{own.choice}_options"] = {}  # the other's own; it is refused below
        later = TrainConfig.of(**{**values, **named}).for_model(model)
        later.check_resume(self.for_model(model))
        return later

    def check_resume(self, earlier: TrainConfig) -> None:
        """FeatherbackError naming every option that differs from the run's and must not."""
        before = earlier.fixed()
        differing = [
            f"{_flag(name)} was {_written(before[name])}, not {_written(value)}"
            for name, value in self.fixed().items()
            if name in before and before[name] != value  # another optimizer or method may have other options
        ]
        if differing:
            raise FeatherbackError(f"Cannot resume {self.out} with other options: {'; '.join(differing)}.")

    def fixed(self) -> dict[str, Any]:
        """What a resumed run must not change: the fields, with the optimiser's and the method's options among them.

        Not where the model lies: its contents are compared instead.
        """
        free = {name for name, about in described(TrainConfig).items() if about.free_on_resume} | {"model"}
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in free}
        for own in CHOICES:
            values = values.pop(f"{own.choice}_options") | values
        return values

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return asdict(self) | {"targets": list(self.targets)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of to_json; FeatherbackError for options this version does not know."""
        known = {entry.name for entry in fields(cls)}.union(*(own.by_option() for own in CHOICES))
        if unknown := sorted(set(values) - known):
            raise FeatherbackError(f"The run is of another version of Featherback ({', '.join(unknown)}).")
        return cls.of(**values)


def _written(value: object) -> object:
    """As the user writes it."""
    return short(value) if isinstance(value, tuple) else value


def _flag(name: str) -> str:
    return flags(TrainConfig, name)[0]
