"""Options of the adapter: its form, and the adapter it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from featherback.core.naming import argument
from featherback.core.options import Panel, choice, option, spelled
from featherback.errors import FeatherbackError
from featherback.models.architecture.layer_choice import EVERY, chosen_layers, written_layers
from featherback.models.architecture.names import EXPERTS, ROUTER, parse_targets, short
from featherback.models.families import projections
from featherback.nn.adapters import KINDS, OPTIONS, kind_of
from featherback.nn.block import adaptable
from featherback.runs import parse

if TYPE_CHECKING:
    from typing_extensions import Self

    from featherback.models.form import Form
    from featherback.models.model import Model

USUAL: Mapping[str, Any] = {
    "adapter": "lora", "rank": 8, "alpha": 16.0, "targets": ("all",), "layers": EVERY, "rslora": False, "dora": False
}  # fmt: skip
"""The default form of an adapter that does not start from another one."""

DISK = "disk"
"""The value of --hidden-states that keeps them."""

_option = partial(option, only_for="lora")


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(Panel):
    title = "Adapter"

    start: str | None = _option(
        None,
        help="Continue from this run or adapter (PEFT, MLX or GGUF). Its rank, alpha, targets, layers, rsLoRA and DoRA "
        "are used, but not its dropout. none: start a new adapter.",
        parse=parse.start,
        flags=("--from",),
        is_path=True,
        metavar="PATH",
    )
    # For the names in USUAL, None means the value there, or the value of the adapter in `start`. for_model decides.
    adapter: str | None = choice(
        None,
        help="Kind of adapter. ia3 trains one scale per key, value and input of down. spartan adds a small memory "
        "behind each block; it cannot be merged or exported.",
        own=OPTIONS,
        only_for="lora",
        shown_default=USUAL["adapter"],
        takes_start=True,
    )
    adapter_options: Mapping[str, Any] = field(default_factory=dict)  # once checked: all options of the kind
    rank: int | None = _option(
        None,
        help="Rank of the LoRA matrices. A larger rank trains more parameters.",
        brief="LoRA rank; more trains more parameters",
        least=1,
        shown_default=str(USUAL["rank"]),
        aliases=("--lora-r", "--lora-rank"),
    )
    alpha: float | None = _option(
        None,
        help="LoRA alpha. The adapter's output is multiplied by alpha / rank.",
        above=0,
        shown_default=f"{USUAL['alpha']:g}",
        aliases=("--lora-alpha",),
    )
    rslora: bool | None = _option(
        None,
        help="Multiply the adapter's output by alpha / sqrt(rank) instead (rsLoRA, for large ranks). The default --lr "
        "is then divided by sqrt(rank).",
    )
    dora: bool | None = _option(
        None, help="Train the length and the direction of each weight row separately (DoRA). Steps take longer."
    )
    lora_dropout: float = _option(
        0.0, help="Probability of dropping each input of the adapter during training.", least=0, below=1
    )
    targets: tuple[str, ...] | None = _option(
        None,
        help=lambda: (
            f"Target modules: all, or a list such as q,v. Known names: {short(projections(), ', ')}; experts "
            "and router, which all does not include. Not every model has all of them."
        ),
        aliases=("--target-modules",),
        parse=parse.targets,
        metavar="LIST",
        words=lambda: ("all", *short(projections()).split(","), EXPERTS, ROUTER),
        shown_default=",".join(USUAL["targets"]),
    )
    layers: tuple[str, ...] | None = _option(
        None,
        help="Layers that get an adapter: all, last:8, last:25%, or a list such as 0,5,10-20, counted from 0. The "
        "layers below the lowest one need no backward pass.",
        brief="Layers that get an adapter, such as last:25%",
        parse=parse.layers,
        words=("all",),
        metavar="LAYERS",
        shown_default=",".join(USUAL["layers"]),
    )

    hidden_states: str = _option(
        DISK,
        help="With --layers: how later epochs begin. disk: with the inputs of the lowest trained layer, which the "
        "first epoch writes to the run's directory (4 bytes per token and unit of the model's width). recompute: "
        "with all layers, as in the first epoch.",
        choices=(DISK, "recompute"),
        free_on_resume=True,
    )

    def check_rules(self) -> None:
        super().check_rules()
        chosen = self.adapter or USUAL["adapter"]
        others = set(KINDS[USUAL["adapter"]].own_options).difference(KINDS[chosen].own_options)
        others |= {"targets"} if KINDS[chosen].is_branch else set()
        for entry in fields(self):
            if entry.name in others and getattr(self, entry.name) not in (None, False, ("all",), entry.default):
                name, kind = spelled(type(self), entry.name), argument("adapter", chosen)
                raise FeatherbackError(f"{name} has no effect with {kind}. Remove one of the two.")
        if chosen == "dora":  # the same as --dora
            object.__setattr__(self, "dora", True)
            object.__setattr__(self, "adapter", USUAL["adapter"])
        if self.dora and self.lora_dropout:
            raise FeatherbackError(
                f"{argument('lora_dropout')} does not work with DoRA, because it would also drop inputs of the frozen "
                f"weights. Remove one of the two."
            )

    @property
    def form(self) -> Form:
        """Rank, alpha and targets of a new adapter, or of the one that `starting_from` has filled in."""
        from featherback.models.form import Form

        return Form.of(**self._named_form, **self.adapter_options, dropout=self.lora_dropout)

    @property
    def _named_form(self) -> dict[str, Any]:
        """The values of the options in USUAL. An option that was not given has its default."""
        named = {name: getattr(self, name) for name in USUAL}
        kind = kind_of(named)
        usual = {**kind().options(), "targets": kind.targets, "layers": USUAL["layers"]}
        return {name: usual[name] if value is None else value for name, value in named.items()}

    def starting_from(self, form: Form, model: Model) -> Self:
        """These options with the form of an existing adapter of `model` filled in.

        Raises FeatherbackError if the user set one of its values to something else.
        """
        own = {name: form.options[name] for name in USUAL}
        for name, value in own.items():
            named = getattr(self, name)
            if name == "targets" and named is not None and not form.kind.is_branch:
                named = parse_targets(named, adaptable(model.blocks))
            if name == "layers" and named is not None:
                named = written_layers(chosen_layers(named, len(model.blocks)), len(model.blocks))
            if named not in (None, value):
                option = spelled(type(self), name)
                raise FeatherbackError(
                    f"{option} is {written(named)}, but the adapter in {self.start} has {written(value)}. Remove "
                    f"{option}: an existing adapter keeps its form."
                )
        settings = {entry.name: form.options[entry.name] for entry in fields(form.kind.settings)}
        usual = OPTIONS.make(own["adapter"], {})
        for name, value in settings.items():
            if self.adapter_options and self.adapter_options[name] not in (value, getattr(usual, name)):
                option = spelled(type(usual), name)
                raise FeatherbackError(
                    f"{option} is {self.adapter_options[name]}, but the adapter in {self.start} has {value}. Remove "
                    f"{option}: an existing adapter keeps its form."
                )
        found = replace(self, **own, adapter_options=settings)
        for block in form.extended(model.blocks):
            for target in block.places.keys() & set(form.targets):
                shape = block.shape(target)
                if form.widest.kind.parts(target, shape) != found.form.kind.parts(target, shape):
                    kind = argument("adapter", own["adapter"])
                    raise FeatherbackError(
                        f"The adapter in {self.start} adapts {target} in a way that {kind} does not support. Training "
                        f"cannot start from it."
                    )
        return found


def written(value: object) -> object:
    """An option's value as the user would write it."""
    return "unset" if value is None else short(value) if isinstance(value, tuple) else value
