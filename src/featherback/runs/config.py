"""The options of a training run: those of every panel, and the rules that concern two of them.

A field's type, default and `option` describe it once: checks, the command line with its help, and what a resumed run
may change are derived from them. An option more is a field more in the module of its panel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from featherback import methods, optim
from featherback.core.naming import argument, argument_is, arguments
from featherback.core.options import described, option, spelled
from featherback.core.registry import OwnOptions
from featherback.errors import FeatherbackError
from featherback.models.architecture.names import parse_targets
from featherback.nn.block import adaptable
from featherback.optim.average import Averaged
from featherback.runs.panels.adapter import AdapterOptions
from featherback.runs.panels.data import SEQUENCE, DataOptions, packed_before
from featherback.runs.panels.optimisation import CLIP, DEFAULT_EPOCHS, OptimisationOptions
from featherback.runs.panels.run import MEASUREMENTS, MEASURING, RunOptions
from featherback.runs.panels.whole import MASTER, WholeOptions

if TYPE_CHECKING:
    from featherback.methods.whole.settings import Whole
    from featherback.models.architecture.config import ModelConfig
    from featherback.models.model import Model


@dataclass(frozen=True, kw_only=True)
class TrainConfig(DataOptions, AdapterOptions, WholeOptions, OptimisationOptions, RunOptions):
    """The options of `featherback train`, checked: FeatherbackError names the option that is wrong."""

    model: str  # GGUF file, Hugging Face folder or MLX folder
    out: str = option(
        help="New directory for the adapter, or the trained model, and the run's records.",
        metavar="DIR",
        is_path=True,
        free_on_resume=True,
    )

    @classmethod
    def of(cls, **values: Any) -> TrainConfig:
        """The configuration with these fields; options of its optimiser (weight_decay, ...) or method (epsilon, ...)
        may stand among them.
        """
        for own in CHOICES:
            named = {name: values.pop(name) for name in own.by_option() if name in values}
            values[own.field] = {**values.get(own.field, {}), **named}
        return cls(**values)

    def check_rules(self) -> None:
        settled = methods.OPTIONS.make(self.method, self.method_options).settled(self.train)
        object.__setattr__(self, "method_options", asdict(settled))
        super().check_rules()
        for name in ("eval_every", "patience"):
            if getattr(self, name) is not None and self.eval_data is None and not self.eval_share:
                raise FeatherbackError(f"{spelled(TrainConfig, name)} needs {arguments('eval_data', 'eval_share')}.")
        full = argument("train", "full")
        if named := self._named_in_vain():
            remedy = f"is for {full}; leave it out, or add {full}"
            if self.train == "full":
                remedy = f"is for adapters; leave it out, or leave {full} out"
            raise FeatherbackError(f"{named} {remedy}.")
        if self.train == "lora" and self.optimizer not in (able := optim.for_adapters()):
            raise FeatherbackError(
                f"{argument('optimizer', self.optimizer)} is for the matrices of whole models; for an adapter choose "
                f"{', '.join(able[:-1])} or {able[-1]}, or add {full}."
            )
        if self.train == "full" and self.accumulate > 1:
            raise FeatherbackError(
                f"{argument_is('accumulate', self.accumulate)}, but with {full} a weight changes as soon as its "
                f"gradient is there, and none is kept to be added to; name a larger "
                f"{arguments('batch_size', 'batch_tokens')} instead."
            )
        if self.train == "full" and not methods.METHODS[self.method].can_train_weights:
            able = [name for name in methods.METHODS.names if methods.METHODS[name].can_train_weights]
            raise FeatherbackError(
                f"{argument('method', self.method)} is for adapters; with {full}, choose {', '.join(able[:-1])} or "
                f"{able[-1]}."
            )

    def _named_in_vain(self) -> str | None:
        """An option that has a value and means nothing for what is trained."""
        for given in (self, *(own.make(getattr(self, own.choice), getattr(self, own.field)) for own in CHOICES)):
            usual = {entry.name: entry.default for entry in fields(given)}
            for name in without_meaning(type(given), self.train):
                if getattr(given, name) != usual[name]:
                    return spelled(type(given), name)
        return None

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

    @property
    def most_step_tokens(self) -> int:
        """Most tokens of an optimiser step, as far as the sequence length is known."""
        return self.accumulate * self.batching.full

    def step_tokens(self, mean: float) -> float:
        """Tokens of an optimiser step of examples whose mean length is `mean`; packed batches count as full."""
        if self.batch_size is None:
            return self.most_step_tokens
        return self.accumulate * self.batch_size * mean

    def usual_rate(self, model: ModelConfig) -> float:
        """The peak learning rate where none is named: docs/decisions/defaults.md derives it."""
        if self.train == "full":
            own = methods.METHODS[self.method].FULL_LEARNING_RATE
            return own or optim.full_learning_rate(self.optimizer, model.hidden_size)
        width = self.form.kind.rate_width or model.hidden_size
        return optim.default_learning_rate(self.optimizer, width, self.form.growth, self.loraplus_ratio)

    @property
    def clip_norm(self) -> float:
        """The norm that gradients are clipped to; 0: they are not."""
        usual = 0.0 if self.train == "full" else CLIP
        return usual if self.max_grad_norm is None else self.max_grad_norm

    @property
    def averages(self) -> bool:
        """Whether the mean of the steps' adapters may be kept."""
        return self.train == "lora" and self.keep == "better"

    @property
    def rule(self) -> optim.Rule:
        """The update rule, with the mean that is kept of an adapter."""
        rule = optim.OPTIONS.make(self.optimizer, self.optimizer_options)
        return Averaged(rule=rule) if self.averages else rule

    @property
    def whole(self) -> Whole | None:
        """How the model's own weights are trained, if they are."""
        if self.train != "full":
            return None
        from featherback.engine.formats.types import TensorType
        from featherback.methods.whole.settings import Whole

        kind = {"bf16": TensorType.BF16, "fp32": TensorType.F32}[self.master or MASTER]
        return Whole(self.rule, kind, self.freeze or ())

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

    def for_model(self, model: Model) -> TrainConfig:
        """These options with the targets that this model has; FeatherbackError if they do not fit the model."""
        self._check_sizes(model.config)
        few = min(SEQUENCE, model.config.max_position_embeddings)  # where no more can be had
        own: dict[str, Any] = {"master": self.master or MASTER}
        if self.train == "lora":
            own = self._named_form
            own["targets"] = parse_targets(own["targets"], adaptable(model.blocks))
        return replace(
            self,
            learning_rate=self.usual_rate(model.config) if self.learning_rate is None else self.learning_rate,
            max_grad_norm=self.clip_norm,
            **own,
            seq_len=few if self.seq_len is None and few < SEQUENCE else self.seq_len,
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
            values = values.pop(own.field) | values
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


PANELS = (DataOptions, AdapterOptions, WholeOptions, OptimisationOptions, RunOptions)
"""Groups of options in the help, in this order."""

CHOICES: tuple[OwnOptions[Any], ...] = tuple(about.own for about in described(TrainConfig).values() if about.own)
"""Fields whose value has options of its own: `optimizer`'s are in the field `optimizer_options`."""


def replaced_by(named: Collection[str]) -> set[str]:
    """The fields that lose their value where these are named, since one of both may have one; and these."""
    pairs = [{name, about.instead_of} for name, about in described(TrainConfig).items() if about.instead_of]
    return {name for pair in pairs if pair & set(named) for name in pair}


def without_meaning(options: type, train: str) -> list[str]:
    """The fields of a dataclass of options that mean nothing for what is trained."""
    return [name for name, about in described(options).items() if about.only_for not in (None, train)]
