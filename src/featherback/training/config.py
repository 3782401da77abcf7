"""The options of a training run. A field's type, default and `option` describe it once:
checks, the command line with its help, and what a resumed run may change are derived from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from featherback import families, kernels, methods, optim
from featherback.architecture.names import parse_targets, short
from featherback.data.packing import Batching
from featherback.data.source import Source, columns_of, what_is_long
from featherback.errors import FeatherbackError, shown
from featherback.host.priority import LOWEST
from featherback.host.sensors import KINDS
from featherback.layers import objectives
from featherback.layers.block import adaptable
from featherback.layers.objectives.base import Objective
from featherback.memory.plan import BUDGETS
from featherback.models.converted import NONE, QUANTIZE
from featherback.naming import argument, argument_is
from featherback.optim.average import Averaged
from featherback.options import check, described, option, spelled
from featherback.training import parse
from featherback.training.loggers import LOGGERS
from featherback.training.together import check_together

if TYPE_CHECKING:
    from featherback.adapters.form import Form
    from featherback.architecture.config import ModelConfig
    from featherback.models.model import Model
    from featherback.whole.settings import Whole

COMPUTE = tuple(kernels.OPERANDS)
NEXT_TOKEN = "next_token"
"""The objective of runs that name none, and of all runs of versions that had no other."""
AUTO = "auto"
"""The --compute that is chosen by measuring (training.choose)."""
DEFAULT_EPOCHS = 3
SEQUENCE = 256
"""Tokens of a sequence, unless examples need more."""
MOST_EPOCHS = 10_000  # their batches are counted before the first step
_SMALL, _LARGE = 576, 4096  # widths, of models of 0.1B and 8B parameters

USUAL: Mapping[str, Any] = {"rank": 8, "alpha": 16.0, "targets": ("all",), "rslora": False, "dora": False}
"""The form of an adapter, where nothing is said of it and training starts from none."""

PLANNED = ("memory", "threads", "log_to")
"""Options that a run may change and its plan depends on."""

CHOICES = (methods.OPTIONS, optim.OPTIONS, objectives.OPTIONS)
"""Fields whose value has options of its own: `optimizer`'s are in the field `optimizer_options`."""

TRAINED = ("lora", "full")
"""What --train can be: an adapter, or the model's own weights."""
MASTER = "bf16"
CLIP = 1.0
"""Norm that the gradient of an adapter is clipped to."""

MEASUREMENTS = 10
"""Of the held-out loss in a run, unless named otherwise."""
MEASURING = 0.2
"""Most of a run's time that they may take then: a forward pass is a third of a step."""
PATIENCE = 3
"""Of those measurements without a new best, after which a run ends."""

DATA, ADAPTER, WHOLE, OPTIMISATION, RUN = PANELS = ("Data", "Adapter", "Whole model", "Optimisation", "Run")
"""Groups of options in the help, in this order."""


def _learning_rates() -> str:
    """The default of --lr, in words."""
    names: dict[str, list[str]] = {}
    whole: dict[str, list[str]] = {}
    for found, rules, usual in (
        (names, optim.for_adapters(), optim.default_learning_rate),
        (whole, optim.RULES.names, optim.full_learning_rate),
    ):
        for name in rules:
            small, large = (f"{usual(name, width):g}" for width in (_SMALL, _LARGE))
            rate = small if small == large else f"{small} at a width of {_SMALL} to {large} at {_LARGE}"
            found.setdefault(rate, []).append(name)
    adapters, models = (
        "; ".join(f"{', '.join(named)}: {rate}" for rate, named in rates.items()) for rates in (names, whole)
    )
    own = {name: methods.METHODS[name].FULL_LEARNING_RATE for name in methods.METHODS.names}
    whichever = "; ".join(
        f"{name}: {rate:g} with any" for name, rate in own.items() if rate and methods.METHODS[name].can_train_weights
    )
    return f"{adapters}. Whole models: {models}; {whichever}"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of `featherback train`, checked: FeatherbackError names the option that is wrong."""

    model: str  # GGUF file, Hugging Face folder or MLX folder
    data: tuple[str, ...] | None = option(  # for the record; the run has its own token file. None: only to resume
        None,
        parse=partial(parse.paths, "data"),
        is_path=True,
        several=True,
        metavar="PATH",
        panel=DATA,
        free_on_resume=True,
        help="Chats, prompts with answers, or text, in JSON, CSV, Parquet, .txt, a folder, or - (standard input). "
        "May be named again. A resumed run has its own.",
    )
    out: str = option(
        metavar="DIR",
        is_path=True,
        free_on_resume=True,
        help="New directory for the adapter, or the trained model, and the run's records.",
    )
    train: str = option(
        "lora",
        choices=TRAINED,
        panel=WHOLE,
        help="What is trained: an adapter beside the model, or the model's own weights, in a copy.",
    )
    master: str | None = option(
        None,
        choices=("bf16", "fp32"),
        panel=WHOLE,
        only_for="full",
        shown_default=lambda: MASTER,
        help="How weights are held while they are trained; bf16 is rounded at random.",
    )
    dequantize: bool = option(
        False,
        panel=WHOLE,
        only_for="full",
        help="Train a quantised model: its copy is as --master has it, and as large.",
    )
    freeze: tuple[str, ...] | None = option(
        None,
        parse=partial(parse.patterns, "freeze"),
        panel=WHOLE,
        only_for="full",
        metavar="NAMES",
        help="Weights that stay as they are: a list of names and patterns, such as embed_tokens,layers.0.*,*norm.",
    )
    method: str = option(
        "mesp", choices=methods.METHODS.names, panel=OPTIMISATION, help="How gradients are computed or estimated."
    )
    method_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its method
    objective: str = option(
        NEXT_TOKEN,
        choices=objectives.OBJECTIVES.names,
        panel=OPTIMISATION,
        help="The loss that training minimises. Held-out data are measured by next-token loss.",
    )
    objective_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its objective
    # Peak of the resident memory, in bytes; a word of `Plan.budget` until there is a plan, then what that came to.
    memory: int | str | None = option(
        None,
        parse=parse.size,
        given=parse.megabytes,
        written=parse.written_size,
        words=lambda: BUDGETS,
        least=1,
        metavar="SIZE",
        panel=RUN,
        free_on_resume=True,
        help="Memory budget, never exceeded: 96MB, 1.5GB; a number alone means MB. least: the least that will do; max: "
        "all that gives speed.",
    )
    quantize: str = option(
        NONE,
        choices=(NONE, *QUANTIZE),
        panel=RUN,
        help="Quantise the weights of a Hugging Face folder, once, into a file in the cache.",
    )
    start: str | None = option(
        None,
        parse=parse.start,
        flags=("--from",),
        is_path=True,
        metavar="PATH",
        panel=ADAPTER,
        only_for="lora",
        help="Start from this run or adapter (PEFT, MLX or GGUF), with its rank, alpha, targets, rsLoRA and DoRA, not "
        "with its dropout. none: from no adapter.",
    )
    # Of these four None stands for USUAL, or for what the adapter of `start` has; for_model settles it.
    rank: int | None = option(
        None,
        least=1,
        panel=ADAPTER,
        only_for="lora",
        shown_default=lambda: str(USUAL["rank"]),
        help="Rank of the LoRA matrices.",
    )
    alpha: float | None = option(
        None,
        above=0,
        panel=ADAPTER,
        only_for="lora",
        shown_default=lambda: str(USUAL["alpha"]),
        help="The adapter is scaled by alpha / rank.",
    )
    rslora: bool | None = option(
        None,
        panel=ADAPTER,
        only_for="lora",
        help="Scale the adapter by alpha / sqrt(rank) instead (rsLoRA, for large ranks); the default --lr is divided "
        "by sqrt(rank).",
    )
    dora: bool | None = option(
        None,
        panel=ADAPTER,
        only_for="lora",
        help="Train the lengths of the weights' rows apart from their directions (DoRA); a step takes longer.",
    )
    lora_dropout: float = option(
        0.0,
        least=0,
        below=1,
        panel=ADAPTER,
        only_for="lora",
        help="Share of the adapter's inputs that is dropped in training.",
    )
    targets: tuple[str, ...] | None = option(
        None,
        parse=parse.targets,
        words=lambda: ("all", *short(families.PROJECTIONS).split(",")),
        panel=ADAPTER,
        only_for="lora",
        shown_default=lambda: ",".join(USUAL["targets"]),
        help="Projections to adapt: all, or a list such as q,v. "
        f"Some models have each of {short(families.PROJECTIONS, ', ')}.",
    )
    seq_len: int | None = option(  # None: until the data are known
        None,
        least=2,
        panel=DATA,
        shown_default=lambda: f"what the longest example needs, and at least {SEQUENCE} unless --batch-size is named",
        help="Longest sequence, in tokens. Text is cut into such; a longer chat is refused, unless --cut.",
    )
    cut: bool = option(False, panel=DATA, help="Cut chats that are too long at the end, and say how many.")
    batch_size: int | None = option(
        None,
        least=1,
        panel=DATA,
        shown_default=lambda: "as many as fit into --batch-tokens",
        help="Examples in a batch, whatever their lengths; a piece of a text counts as one.",
    )
    batch_tokens: int | None = option(
        None,
        least=2,
        panel=DATA,
        shown_default=lambda: "--seq-len",
        help="Packing, in place of --batch-size: a batch holds as many whole examples as fit into this many tokens, "
        "and at least one. They do not see each other.",
    )
    accumulate: int = option(1, least=1, panel=OPTIMISATION, help="Batches per step.")
    steps: int | None = option(None, least=1, panel=OPTIMISATION, free_on_resume=True, help="Optimiser steps.")
    epochs: float | None = option(
        None,
        above=0,
        most=MOST_EPOCHS,
        panel=OPTIMISATION,
        free_on_resume=True,
        shown_default=lambda: str(DEFAULT_EPOCHS),
        help="Passes over the data, instead of --steps; 0.5 is half of them.",
    )
    learning_rate: float | None = option(
        None,
        above=0,
        flags=("--lr", "--learning-rate"),
        panel=OPTIMISATION,
        shown_default=_learning_rates,
        help="Peak learning rate.",
    )
    loraplus_ratio: float = option(
        1.0,
        above=0,
        panel=OPTIMISATION,
        only_for="lora",
        help="B's learning rate is this times A's, which is --lr (LoRA+, whose authors take 16); the default --lr is "
        "divided by the root of this.",
    )
    optimizer: str = option("adamw", choices=optim.RULES.names, panel=OPTIMISATION, help="Update rule.")
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # in the end all those of its rule
    schedule: str = option(
        "cosine", choices=tuple(optim.SCHEDULES), panel=OPTIMISATION, help="Learning rate after the warm-up."
    )
    warmup: float = option(
        0,
        parse=parse.warmup,
        least=0,
        metavar="STEPS|SHARE",
        panel=OPTIMISATION,
        help="Steps over which the learning rate rises; below 1, that share of all steps.",
    )
    keep: str = option(
        "better",
        choices=("better", "last"),
        panel=OPTIMISATION,
        only_for="lora",
        help="What is kept: the mean of the steps' adapters, or the last if that is better in the end; or always "
        "the last.",
    )
    max_grad_norm: float | None = option(
        None,
        least=0,
        panel=OPTIMISATION,
        shown_default=lambda: f"{CLIP:g}; 0 with --train full",
        help="Clip the gradient to this norm. 0: never. A whole model's takes a second backward pass.",
    )
    compute: str = option(
        AUTO,
        choices=(AUTO, *COMPUTE),
        panel=RUN,
        help="What the matrix products multiply: bf16, fixed point of 16 bits, or float32, the most exact. "
        "auto: the most exact of the fastest.",
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
        0,
        least=0,
        panel=RUN,
        help="Seed of an adapter's initial values, of the data's order, and of all else that is drawn.",
    )
    eval_data: tuple[str, ...] | None = option(
        None,
        parse=partial(parse.paths, "eval_data"),
        is_path=True,
        several=True,
        metavar="PATH",
        panel=DATA,
        free_on_resume=True,
        help="Held-out data, whose loss is measured; the best adapter, or model, is kept.",
    )
    eval_share: float = option(
        0.05,
        least=0,
        below=1,
        panel=DATA,
        help="Share of the data that is held out where no --eval-data are named: 4 to 64 examples, of 40 or more.",
    )
    columns: tuple[str, ...] | None = option(
        None,
        flags=("--map",),
        parse=parse.columns,
        several=True,
        metavar="KEY=COLUMN",
        panel=DATA,
        help="What a key is called in the data: --map prompt=question, and again for others.",
    )
    skip_bad: bool = option(
        False,
        panel=DATA,
        help="Leave out examples that cannot be used, and list them, instead of ending with the first.",
    )
    eval_every: int | None = option(
        None,
        least=1,
        panel=RUN,
        free_on_resume=True,
        shown_default=lambda: f"{MEASUREMENTS} times in all, or less often if that takes long",
        help="Steps between measurements of the held-out loss.",
    )
    patience: int | None = option(
        None,
        least=1,
        panel=RUN,
        free_on_resume=True,
        shown_default=lambda: f"{PATIENCE}, unless --eval-every is named",
        help="Stop after this many measurements without a new best, or far above the loss before training.",
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
        parse=partial(parse.listed, "pause_on", KINDS, f"{', '.join(KINDS)}, {','.join(KINDS)} or none"),
        words=lambda: (*KINDS, "none"),
        metavar="WHAT",
        panel=RUN,
        free_on_resume=True,
        help=f"Wait, without losing anything, while the machine is on battery or too hot: {','.join(KINDS)}.",
    )
    log_to: tuple[str, ...] | None = option(
        None,
        parse=partial(parse.listed, "log_to", LOGGERS.names, f"none, or a list of {', '.join(LOGGERS.names)}"),
        words=lambda: (*LOGGERS.names, "none"),
        metavar="WHAT",
        panel=RUN,
        free_on_resume=True,
        help=f"Record the run with other programs as well: {','.join(LOGGERS.names)}.",
    )
    samples: int = option(
        2,
        least=0,
        panel=RUN,
        free_on_resume=True,
        help="How many examples (held-out ones, if any) the model answers before and after, for the report; 0: none.",
    )
    save_every: int = option(50, least=1, panel=RUN, free_on_resume=True, help="Steps between checkpoints.")
    keep_checkpoints: bool = option(
        False,
        panel=RUN,
        free_on_resume=True,
        help="Keep the last checkpoints when all steps are done, so that the run can be resumed to more.",
    )

    def __post_init__(self) -> None:
        check(self)
        for own in CHOICES:
            options = own.make(getattr(self, own.choice), getattr(self, f"{own.choice}_options"))
            object.__setattr__(self, f"{own.choice}_options", asdict(options))
        settled = methods.OPTIONS.make(self.method, self.method_options).settled(self.train)
        object.__setattr__(self, "method_options", asdict(settled))
        check_together(self)

    @classmethod
    def of(cls, **values: Any) -> TrainConfig:
        """The configuration with these fields; options of its optimiser (weight_decay, ...) or method (epsilon, ...)
        may stand among them.
        """
        for own in CHOICES:
            named = {name: values.pop(name) for name in own.by_option() if name in values}
            values[f"{own.choice}_options"] = {**values.get(f"{own.choice}_options", {}), **named}
        return cls(**values)

    def source(self, paths: tuple[str, ...]) -> Source:
        """How data are read."""
        long = what_is_long(self.seq_len, self.cut)
        return Source(paths, columns_of(self.columns or ()), self.skip_bad, long)

    @property
    def budget(self) -> int | None:
        """Bytes that the run may take; None: none is named, or a word whose amount is not known before the plan."""
        return None if isinstance(self.memory, str) else self.memory

    @property
    def sequence(self) -> int:
        """The longest sequence, as far as it is known."""
        return SEQUENCE if self.seq_len is None else self.seq_len

    @property
    def batching(self) -> Batching:
        """Which examples make a batch, as far as the sequence length is known."""
        return Batching(self.sequence, self.batch_tokens, self.batch_size)

    @property
    def batch_in_checksums(self) -> dict[str, int | None]:
        """The batch's fields in the checksums of a run. Where it is packed into whole sequence lengths, they are as
        versions that knew nothing else recorded it, so that their checksums stay.
        """
        lengths, rest = divmod(self.batching.full, self.sequence)
        if self.batch_size is None and not rest:
            return {"batch_size": lengths}
        return {"batch_size": self.batch_size, "batch_tokens": self.batching.full}

    @property
    def most_step_tokens(self) -> int:
        """Most tokens of an optimiser step, as far as the sequence length is known."""
        return self.accumulate * self.batching.full

    def step_tokens(self, mean: float) -> float:
        """Tokens of an optimiser step of examples whose mean length is `mean`; packed batches count as full."""
        if self.batch_size is None:
            return self.most_step_tokens
        return self.accumulate * self.batch_size * mean

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up, once the model is known; FeatherbackError if a record has lost it."""
        if self.learning_rate is None:
            raise FeatherbackError(
                "The run's configuration has no learning rate: it is of an earlier version of Featherback, or damaged."
            )
        return self.learning_rate

    def usual_rate(self, model: ModelConfig) -> float:
        """The peak learning rate where none is named: docs/decisions/defaults.md derives it."""
        if self.train == "full":
            own = methods.METHODS[self.method].FULL_LEARNING_RATE
            return own or optim.full_learning_rate(self.optimizer, model.hidden_size)
        return optim.default_learning_rate(self.optimizer, model.hidden_size, self.form.growth, self.loraplus_ratio)

    @property
    def clip_norm(self) -> float:
        """The norm that gradients are clipped to; 0: they are not."""
        usual = 0.0 if self.train == "full" else CLIP
        return usual if self.max_grad_norm is None else self.max_grad_norm

    def warmup_steps(self, steps: int) -> int:
        """Those over which the learning rate rises, in a run of so many."""
        return int(self.warmup) if self.warmup >= 1 else round(self.warmup * steps)

    def measured_every(self, steps: int, held_out: int, mean: float) -> int:
        """Steps between two measurements of the loss on `held_out` tokens, in a run of so many steps of examples whose
        mean length is `mean`.
        """
        if self.eval_every is not None:
            return self.eval_every
        rare = math.ceil(held_out / 3 / MEASURING / self.step_tokens(mean))
        return max(1, math.ceil(steps / MEASUREMENTS), rare)

    def most_held_out(self, tokens: int, mean: float) -> int:
        """Tokens that can be held out of so many where measuring before and after must take no more than MEASURING;
        `mean`: the mean length of an example.
        """
        trained = (self.epochs or DEFAULT_EPOCHS) * tokens
        if self.steps is not None:
            trained = self.steps * self.step_tokens(mean)
        return int(MEASURING * 3 * int(trained) / (3 if self.averages else 2))

    @property
    def stops_after(self) -> int | None:
        """Measurements without a new best after which the run ends; None: never."""
        return PATIENCE if self.patience is None and self.eval_every is None else self.patience

    def for_model(self, model: Model) -> TrainConfig:
        """These options with the targets that this model has; FeatherbackError if they do not fit the model."""
        self._check_sizes(model.config)
        few = min(SEQUENCE, model.config.max_position_embeddings)  # where no more can be had
        form = self.form
        own: dict[str, Any] = {"master": self.master or MASTER}
        if self.train == "lora":
            own = self._named_form
            own["targets"] = parse_targets(form.targets, adaptable(model.blocks))
        return replace(
            self,
            learning_rate=self.usual_rate(model.config) if self.learning_rate is None else self.learning_rate,
            max_grad_norm=self.clip_norm,
            **own,
            seq_len=few if self.seq_len is None and few < SEQUENCE else self.seq_len,
        )

    def starting_from(self, form: Form, model: Model) -> TrainConfig:
        """These options with what an adapter of `model` says, which is of this form; FeatherbackError for one that was
        named otherwise.
        """
        own = {name: form.options[name] for name in USUAL}
        for name, value in own.items():
            named = getattr(self, name)
            if name == "targets" and named is not None:
                named = parse_targets(named, adaptable(model.blocks))
            if named not in (None, value):
                raise FeatherbackError(
                    f"{spelled(TrainConfig, name)} is {written(named)}, but the adapter in {self.start} has "
                    f"{written(value)}; leave {spelled(TrainConfig, name)} out: "
                    f"training starts from an adapter as it is."
                )
        return replace(self, **own)

    @property
    def form(self) -> Form:
        """Rank, alpha and targets of the adapter, where it starts from none or `starting_from` was asked."""
        from featherback.adapters.form import Form

        return Form.of(**self._named_form, dropout=self.lora_dropout)

    @property
    def _named_form(self) -> dict[str, Any]:
        """Rank, alpha and the others of USUAL."""
        named = {name: getattr(self, name) for name in USUAL}
        return {name: USUAL[name] if value is None else value for name, value in named.items()}

    @property
    def whole(self) -> Whole | None:
        """How the model's own weights are trained, if they are."""
        if self.train != "full":
            return None
        from featherback.weights.types import TensorType
        from featherback.whole.settings import Whole

        kind = {"bf16": TensorType.BF16, "fp32": TensorType.F32}[self.master or MASTER]
        return Whole(self.rule, kind, self.freeze or ())

    @property
    def criterion(self) -> Objective:
        """The objective with its options."""
        return objectives.OPTIONS.make(self.objective, self.objective_options)

    @property
    def averages(self) -> bool:
        """Whether the mean of the steps' adapters may be kept."""
        return self.train == "lora" and self.keep == "better"

    @property
    def rule(self) -> optim.Rule:
        """The update rule, with the mean that is kept of an adapter."""
        rule = optim.OPTIONS.make(self.optimizer, self.optimizer_options)
        return Averaged(rule=rule) if self.averages else rule

    def _check_sizes(self, model: ModelConfig) -> None:
        if self.seq_len is not None and self.seq_len > model.max_position_embeddings:
            raise FeatherbackError(
                f"{argument('seq_len', self.seq_len)} is beyond the {model.max_position_embeddings} tokens "
                f"that {self.model} was made for."
            )
        if (rank := self.form.kind.width) > model.hidden_size:
            raise FeatherbackError(
                f"{argument_is('rank', rank)}; it must be at most the model's width, {model.hidden_size}."
            )

    def fixed(self) -> dict[str, Any]:
        """What a resumed run must not change: the fields, with the optimiser's and the method's options among them.

        Not where the model lies: its contents are compared instead.
        """
        free = {name for name, about in described(TrainConfig).items() if about.free_on_resume} | {"model"}
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in free}
        values |= self._named_form
        if self.batch_size is None:
            values["batch_tokens"] = self.batching.full
        for own in CHOICES:
            values = values.pop(f"{own.choice}_options") | values
        return values

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of to_json; FeatherbackError for options this version does not know."""
        known = {entry.name for entry in fields(cls)}.union(*(own.by_option() for own in CHOICES))
        if unknown := sorted(set(values) - known):
            raise FeatherbackError(f"The run is of another version of Featherback ({', '.join(unknown)}).")
        if "keep" not in values and values.get("train", "lora") == "lora":
            values = {**values, "keep": "last"}  # of a version that knew no other
        if "batch_tokens" not in values:
            values = {**values, **packed_before(values.get("batch_size"), values.get("seq_len"))}
        return cls.of(**values)


def packed_before(batch_size: Any, seq_len: Any) -> dict[str, int | None]:
    """The fields of a batch as versions without --batch-tokens recorded it, all of whose batches were packed: their
    batch size counted sequence lengths. FeatherbackError if the length is unknown and needed.
    """
    if batch_size in (None, 1):
        return {"batch_size": None, "batch_tokens": None}
    if isinstance(batch_size, int) and isinstance(seq_len, int):
        return {"batch_size": None, "batch_tokens": batch_size * seq_len}
    raise FeatherbackError(
        f"An earlier version of Featherback wrote batch_size: {shown(batch_size)}, which meant so many times seq_len "
        f"tokens, and no seq_len is there; begin another run, with {argument('batch_tokens')}."
    )


def written(value: object) -> object:
    """As the user writes it."""
    return "left out" if value is None else short(value) if isinstance(value, tuple) else value
