"""The options of a training run: the options of all panels, and the rules that involve two panels.

A field's type, default and `option` describe it once. The checks, the command line with its help, and the set of
options that a resumed run may change are derived from them. To add an option, add a field to the module of its panel.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from featherback import methods, optim
from featherback.core.naming import argument, argument_is, arguments
from featherback.core.options import described, option, spelled
from featherback.core.registry import OwnOptions
from featherback.data.packing import Batching
from featherback.data.prompts import check_vocabulary
from featherback.data.source import PLAIN
from featherback.engine import backend
from featherback.errors import FeatherbackError
from featherback.models.architecture.layer_choice import chosen_layers, written_layers
from featherback.models.architecture.names import parse_targets
from featherback.nn.block import adaptable
from featherback.nn.objectives.distilled import Distilled
from featherback.optim.average import Averaged
from featherback.optim.proximal import Proximal
from featherback.runs.panels.adapter import AdapterOptions
from featherback.runs.panels.data import SEQUENCE, TOGETHER, DataOptions
from featherback.runs.panels.distillation import DistillationOptions
from featherback.runs.panels.optimisation import CLIP, DEFAULT_EPOCHS, NEXT_TOKEN, OptimisationOptions
from featherback.runs.panels.rollouts import RolloutOptions
from featherback.runs.panels.run import MEASUREMENTS, MEASURING, RunOptions
from featherback.runs.panels.whole import MASTER, WholeOptions

if TYPE_CHECKING:
    from featherback.data.source import Source
    from featherback.methods.whole.settings import WholeModelSettings
    from featherback.models.architecture.config import ModelConfig
    from featherback.models.form import Form
    from featherback.models.model import Model
    from featherback.nn.objectives.base import Objective
    from featherback.nn.objectives.contrastive import Contrastive
    from featherback.nn.objectives.sampled import Sampled


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    DataOptions, AdapterOptions, WholeOptions, OptimisationOptions, RolloutOptions, DistillationOptions, RunOptions
):
    """The checked options of `featherback train`. FeatherbackError names a wrong option and its value."""

    model: str  # GGUF file, Hugging Face folder or MLX folder
    out: str = option(
        help="New directory for the adapter or the trained model, and the run's records.",
        brief="New directory for the adapter and the records of the run",
        aliases=("--output-dir",),
        metavar="DIR",
        is_path=True,
        free_on_resume=True,
    )

    @classmethod
    def of(cls, **values: Any) -> TrainConfig:
        """Return the configuration with these fields. The options of its optimiser (weight_decay, ...) or method
        (epsilon, ...) may be among them.
        """
        if values.keys() - {entry.name for entry in fields(cls)}:  # only then, because the entries take a megabyte
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
        if self.train == "full" and self.layers is not None:
            raise FeatherbackError(
                f"{argument('layers')} chooses the layers of an adapter, but {full} trains no adapter. To leave "
                f"layers of the model as they are, use {argument('freeze', 'layers.0.*,layers.1.*')} instead."
            )
        if named := self._unused_option():
            remedy = f"only works with {full}; add {full}, or remove {named}"
            if self.train == "full":
                remedy = f"only works with adapters; remove {named}, or remove {full}"
            raise FeatherbackError(f"{named} {remedy}.")
        if self.train == "lora" and not optim.RULES[self.optimizer].FOR_ADAPTERS:
            able = optim.for_adapters()
            raise FeatherbackError(
                f"{argument('optimizer', self.optimizer)} cannot train adapters; for an adapter choose "
                f"{', '.join(able[:-1])} or {able[-1]}, or train the whole model with {full}."
            )
        self._check_scores()
        self._check_rollouts()
        self._check_comparisons()
        if self.train == "full" and self.accumulate > 1:
            raise FeatherbackError(
                f"{argument_is('accumulate', self.accumulate)}, but {full} cannot accumulate gradients: it updates "
                f"each weight as soon as its gradient is computed. Use a larger "
                f"{arguments('batch_size', 'batch_tokens')} instead."
            )
        if self.train == "full" and not methods.METHODS[self.method].can_train_weights:
            able = [name for name in methods.METHODS.names if methods.METHODS[name].can_train_weights]
            raise FeatherbackError(
                f"{argument('method', self.method)} only trains adapters; with {full}, choose "
                f"{', '.join(able[:-1])} or {able[-1]}."
            )

        if self.replay is not None and self.criterion.data_form != PLAIN:
            raise FeatherbackError(
                f"{argument('objective', self.objective)} cannot be combined with {argument('replay')}, whose examples "
                f"are answers to imitate. Remove one of them."
            )
        if self.replay == "auto" and self.teacher is not None:
            raise FeatherbackError(
                f"{argument('replay', 'auto')} cannot be combined with {argument('teacher')}, which reads the examples "
                f"before training. Give a file: {argument('replay', 'PATH')}."
            )
        if self.teacher is not None and self.objective != NEXT_TOKEN:
            raise FeatherbackError(
                f"{argument('objective', self.objective)} cannot be combined with {argument('teacher')}; remove one of "
                f"them. A teacher works with {argument('objective', NEXT_TOKEN)}."
            )
        if self.teacher is not None and self.train == "full" and self.temperature != 1:
            raise FeatherbackError(
                f"{argument_is('temperature', self.temperature)}, but with {full} it must be 1: the output head is "
                f"trained for one softmax. Remove {argument('temperature')}, or remove {full}."
            )

    def _unused_option(self) -> str | None:
        """Return an option that the user gave although it has no effect with this `train`; None if there is none."""
        for given in (self, *(own.make(getattr(self, own.choice), getattr(self, own.field)) for own in CHOICES)):
            usual = {entry.name: entry.default for entry in fields(given)}
            for name in unused_options(type(given), self.train):
                if getattr(given, name) != usual[name]:
                    return spelled(type(given), name)
        return None

    def starting_from(self, form: Form, model: Model) -> TrainConfig:
        found = super().starting_from(form, model)
        reads = self.criterion.scores
        if (reads is None) != (not form.outputs) or (reads == "reward" and len(form.outputs) != 1):
            ends = f"a head with {len(form.outputs)} scores" if form.outputs else "no trained head"
            raise FeatherbackError(
                f"The adapter in {self.start} has {ends}, so {argument('objective', self.objective)} cannot continue "
                f"it. Start a new adapter: remove {argument('from')}."
            )
        if reads == "label" and self.labels not in (None, form.outputs):
            raise FeatherbackError(
                f"{argument('labels')} is {','.join(self.labels)}, but the adapter in {self.start} has the labels "
                f"{','.join(form.outputs)}. Remove {argument('labels')}: an existing adapter keeps its labels."
            )
        return replace(found, labels=form.outputs) if reads == "label" else found

    def _check_scores(self) -> None:
        """Raise FeatherbackError if options of labels contradict the objective, or the objective the other options."""
        reads, objective = self.criterion.scores, argument("objective", self.objective)
        if self.labels is not None and reads != "label":
            wanted = argument("objective", "classify")
            raise FeatherbackError(f"{argument('labels')} only works with {wanted}; add {wanted}, or remove it.")
        if reads is not None and self.train == "lora" and self.form.kind.is_branch:
            raise FeatherbackError(
                f"{objective} trains a head that only PEFT's files can hold, and they cannot hold "
                f"{self.form.kind.title}. Choose another {argument('adapter')}, such as {argument('adapter', 'lora')}."
            )
        if reads is not None and self.train == "full":
            raise FeatherbackError(
                f"{objective} trains a head beside an adapter, which {argument('train', 'full')} does not have. "
                f"Remove {argument('train', 'full')}."
            )

    def _check_rollouts(self) -> None:
        """Raise FeatherbackError if options of rollouts are given without, or do not go with them."""
        objective = argument("objective", self.objective)
        if not self.writes:
            named = ("reward", "reward_seconds", "reward_memory")
            for name in named:
                if getattr(self, name) != RolloutOptions.__dataclass_fields__[name].default:
                    raise FeatherbackError(
                        f"{argument(name)} only works with an objective on the model's own answers; add "
                        f"{argument('objective', 'grpo')}, or remove it."
                    )
            return
        if self.reward is None:
            raise FeatherbackError(
                f"{objective} needs something that judges answers: add {argument('reward', 'numeric')}, for example."
            )
        if self.device != backend.USUAL:
            raise FeatherbackError(
                f"{objective} writes answers on the CPU only, and does not work with "
                f"{argument('device', self.device)}. Remove {argument('device')}."
            )
        if self.train == "full":
            raise FeatherbackError(
                f"{objective} trains an adapter, because the model writes the answers that it learns from. Remove "
                f"{argument('train', 'full')}."
            )
        if self.accumulate > 1:
            raise FeatherbackError(
                f"{argument_is('accumulate', self.accumulate)}, but a step of {objective} has all of its answers: for "
                f"more of them, use {argument('prompts', 8 * self.accumulate)}."
            )

    def _check_comparisons(self) -> None:
        """Raise FeatherbackError if options do not go with an objective on embeddings."""
        if not self.compares:
            return
        objective = argument("objective", self.objective)
        if not methods.METHODS[self.method].needs_checkpoints:
            raise FeatherbackError(
                f"{objective} needs exact gradients of each text, which {argument('method', self.method)} does not "
                f"compute. Use {argument('method', 'mesp')}."
            )
        if self.accumulate > 1:
            raise FeatherbackError(
                f"{argument_is('accumulate', self.accumulate)}, but a step of {objective} compares all of its texts: "
                f"for more of them, use {argument('pairs', 64 * self.accumulate)}."
            )
        if self.batch_size is not None:
            raise FeatherbackError(
                f"{argument('batch_size', self.batch_size)} does not work with {objective}. The number of pairs that "
                f"are compared is {argument('pairs', self.batch_size)}; how many tokens pass together is "
                f"{argument('batch_tokens')}."
            )

    @property
    def compares(self) -> bool:
        """Whether the model learns embeddings, by comparing the texts of a step."""
        return self.criterion.pooling is not None

    @property
    def writes(self) -> bool:
        """Whether the model learns from answers that it writes itself."""
        return self.criterion.room > 0

    @property
    def rollouts(self) -> Sampled:
        """The objective of a run that `writes`."""
        from featherback.nn.objectives.sampled import Sampled

        assert isinstance(self.criterion, Sampled)
        return self.criterion

    @property
    def batching(self) -> Batching:
        found = super().batching
        if self.writes and found.examples is None and found.tokens is None:
            return replace(found, tokens=SEQUENCE)  # answers are short, and several of them pass together
        if self.compares and found.tokens is None:
            return replace(found, tokens=max(TOGETHER, self.sequence))  # texts are short, too
        return found

    @property
    def step_batching(self) -> Batching:
        """How examples are grouped into what the loss of a step sees, which may be more than passes together."""
        if self.writes:
            return Batching(self.batching.seq_len, None, self.rollouts.prompts)
        if self.compares:
            return Batching(self.batching.seq_len, None, self.comparison.pairs)
        return self.batching

    @property
    def comparison(self) -> Contrastive:
        """The objective of a run that `compares`."""
        from featherback.nn.objectives.contrastive import Contrastive

        assert isinstance(self.criterion, Contrastive)
        return self.criterion

    @property
    def criterion(self) -> Objective:
        if self.teacher is None:
            return super().criterion
        return Distilled(weight=self.distill_weight, temperature=self.temperature, top_k=self.teacher_top_k)

    @property
    def most_answers(self) -> int:
        return self.criterion.most_answers

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the scores of a trained head; empty without one. Before the labels are known: a stand-in."""
        return self.criterion.outputs(self.labels)

    @property
    def form(self) -> Form:
        return replace(super().form, outputs=self.outputs)

    def source(self, paths: tuple[str, ...]) -> Source:
        return replace(super().source(paths), form=self.criterion.data_form, room=self.criterion.room)

    def source_for(self, model: Model, paths: tuple[str, ...]) -> Source:
        """The data in `paths`, as `model` can compute them: not every model can share a prompt among answers."""
        longest = self.seq_len or model.config.max_position_embeddings
        return replace(self.source(paths), shares_prompts=shares_prompts(model, longest))

    def _check_family(self, model: Model) -> None:
        """Raise FeatherbackError if the objective and the pooling do not fit what tokens of the model see."""
        family, wanted = model.family, argument("objective", "contrastive")
        if family.is_encoder and not self.compares:
            raise FeatherbackError(
                f"{self.model} is an encoder ({family.called}), which writes no text, so "
                f"{argument('objective', self.objective)} cannot train it. Use {wanted} with pairs of texts."
            )
        width, sizes = model.config.hidden_size, self.comparison.sizes if self.compares else ""
        if sizes and int(sizes.split(",")[0]) > width:
            raise FeatherbackError(f"{argument('sizes', sizes)}: an embedding of this model has {width} numbers.")
        if self.compares and not family.is_encoder and self.criterion.pooling != "last":
            raise FeatherbackError(
                f"Tokens of {family.called} see only earlier ones, so only the last one has seen the whole text: add "
                f"{argument('pooling', 'last')}."
            )

    def _check_sizes(self, model: ModelConfig) -> None:
        if self.seq_len is not None and self.seq_len > model.max_position_embeddings:
            raise FeatherbackError(
                f"{argument('seq_len', self.seq_len)} is longer than the context length of "
                f"{self.model}: {model.max_position_embeddings} tokens."
            )
        if (rank := self.form.kind.width) > model.hidden_size:
            raise FeatherbackError(
                f"{argument_is('rank', rank)}; it must be at most the model's width, {model.hidden_size}."
            )

    @property
    def most_step_tokens(self) -> int:
        """The maximum number of tokens in an optimiser step, given the sequence length known so far."""
        if self.writes:
            return self.rollouts.prompts * self.rollouts.answers * self.sequence
        if self.compares:
            return 2 * self.comparison.pairs * self.sequence
        return self.accumulate * self.batching.full

    def step_tokens(self, mean: float) -> float:
        """Return the tokens of an optimiser step, for examples of mean length `mean`. Packed batches count as full."""
        if self.compares:
            return self.comparison.pairs * mean
        if self.batch_size is None or self.writes:
            return self.most_step_tokens
        return self.accumulate * self.batch_size * mean

    def default_peak_rate(self, model: ModelConfig) -> float:
        """Return the default peak learning rate; docs/decisions/defaults.md derives it."""
        if self.train == "full":
            own = methods.METHODS[self.method].FULL_LEARNING_RATE
            found = own or optim.full_learning_rate(self.optimizer, model.hidden_size)
        else:
            width = self.form.kind.rate_width or model.hidden_size
            found = optim.default_learning_rate(self.optimizer, width, self.form.growth, self.loraplus_ratio)
        return float(f"{found * self.criterion.rate:.2g}")

    @property
    def clip_norm(self) -> float:
        """The norm that gradients are clipped to; 0 means no clipping."""
        usual = 0.0 if self.train == "full" else CLIP
        return usual if self.max_grad_norm is None else self.max_grad_norm

    @property
    def averages(self) -> bool:
        """Whether the run averages its adapter over the steps and may keep the mean."""
        return self.train == "lora" and self.keep == "better"

    @property
    def rule(self) -> optim.Rule:
        """The update rule, wrapped so that it includes the proximal term or keeps the mean if the options say so."""
        rule = optim.OPTIONS.make(self.optimizer, self.optimizer_options)
        if self.proximal:
            rule = Proximal(rule=rule, mu=self.proximal)
        return Averaged(rule=rule) if self.averages else rule

    @property
    def whole(self) -> WholeModelSettings | None:
        """The settings for training the model's own weights; None for an adapter."""
        if self.train != "full":
            return None
        from featherback.engine.formats.types import TensorType
        from featherback.methods.whole.settings import WholeModelSettings

        kind = {"bf16": TensorType.BF16, "fp32": TensorType.F32}[self.master or MASTER]
        return WholeModelSettings(self.rule, kind, self.freeze or ())

    def measured_every(self, steps: int, held_out: int, mean: float) -> int:
        """Return the number of steps between two measurements of the held-out loss.

        `steps`: steps of the run. `held_out`: held-out tokens. `mean`: mean length of a training example, in tokens.
        """
        if self.eval_every is not None:
            return self.eval_every
        rare = math.ceil(held_out / 3 / MEASURING / self.step_tokens(mean))
        return max(1, math.ceil(steps / MEASUREMENTS), rare)

    def most_held_out(self, tokens: int, mean: float) -> int:
        """Return how many of `tokens` can be held out if measuring them before and after training may take at most the
        share MEASURING of the run's time. `mean`: the mean length of an example, in tokens.
        """
        trained = (self.epochs or DEFAULT_EPOCHS) * tokens
        if self.steps is not None:
            trained = self.steps * self.step_tokens(mean)
        return int(MEASURING * 3 * int(trained) / (3 if self.averages else 2))

    def for_model(self, model: Model) -> TrainConfig:
        """Return these options with the defaults and targets of `model`.

        Raises FeatherbackError if they do not fit it.
        """
        self._check_sizes(model.config)
        self._check_family(model)
        if self.writes:
            check_vocabulary(model.config.vocab_size)
        few = min(self.sequence, model.config.max_position_embeddings)  # the context may be shorter than the default
        own: dict[str, Any] = {"master": self.master or MASTER}
        if self.train == "lora":
            own = self._named_form
            if not self.form.kind.is_branch:
                own["targets"] = parse_targets(own["targets"], adaptable(model.blocks))
            count = len(model.blocks)
            own["layers"] = written_layers(chosen_layers(own["layers"], count), count)
        return replace(
            self,
            learning_rate=self.default_peak_rate(model.config) if self.learning_rate is None else self.learning_rate,
            max_grad_norm=self.clip_norm,
            **own,
            seq_len=few if self.seq_len is None and few < self.sequence else self.seq_len,
        )

    def fixed(self) -> dict[str, Any]:
        """Return the options that a resumed run must not change, including those of its optimiser and method.

        The model's path is not among them: its contents are compared instead.
        """
        free = {name for name, about in described(TrainConfig).items() if about.free_on_resume} | {"model"}
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in free}
        values |= self._named_form
        if self.batch_size is None:
            values["batch_tokens"] = self.batching.full
        for own in CHOICES:
            values = values.pop(own.field) | values
        return values


def head_objective(outputs: Sequence[str]) -> str:
    """Return the objective that trains an adapter whose head has these scores; the usual one without a head."""
    return NEXT_TOKEN if not outputs else "reward" if len(outputs) == 1 else "classify"


def shares_prompts(model: Model, longest: int) -> bool:
    """Return whether a model can compute the prompt of several answers of up to `longest` tokens once."""
    return all(branch.shares_prefixes(longest) for block in model.blocks for branch in block.branches)


PANELS = (
    DataOptions, AdapterOptions, WholeOptions, OptimisationOptions, RolloutOptions, DistillationOptions, RunOptions,
)  # fmt: skip
"""The groups of options in the help, in this order."""

CHOICES: tuple[OwnOptions[Any], ...] = tuple(about.own for about in described(TrainConfig).values() if about.own)
"""Choices that have options of their own: those of `optimizer` are in the field `optimizer_options`."""


def reset_fields(named: Collection[str]) -> set[str]:
    """Return the fields that are reset when `named` are given, with `named`: of a pair, only one may have a value."""
    pairs = [{name, about.instead_of} for name, about in described(TrainConfig).items() if about.instead_of]
    return {name for pair in pairs if pair & set(named) for name in pair}


def unused_options(options: type, train: str) -> list[str]:
    """Return the fields of a dataclass of options that have no effect with this `train`."""
    return [name for name, about in described(options).items() if about.only_for not in (None, train)]
