"""Options of the adapter: its form, and what it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from featherback.core.naming import argument
from featherback.core.options import Panel, option, spelled
from featherback.errors import FeatherbackError
from featherback.models import families
from featherback.models.architecture.names import parse_targets, short
from featherback.nn.adapters import KINDS, kind_of
from featherback.nn.block import adaptable
from featherback.runs import parse

if TYPE_CHECKING:
    from typing_extensions import Self

    from featherback.models.form import Form
    from featherback.models.model import Model

USUAL: Mapping[str, Any] = {
    "adapter": "lora", "rank": 8, "alpha": 16.0, "targets": ("all",), "rslora": False, "dora": False
}  # fmt: skip
"""The form of an adapter, where nothing is said of it and training starts from none."""

_option = partial(option, only_for="lora")


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(Panel):
    title = "Adapter"

    start: str | None = _option(
        None,
        help="Start from this run or adapter (PEFT, MLX or GGUF), with its rank, alpha, targets, rsLoRA and DoRA, not "
        "with its dropout. none: from no adapter.",
        parse=parse.start,
        flags=("--from",),
        is_path=True,
        metavar="PATH",
    )
    # None of those in USUAL stands for the value there, or that of the adapter of `start`: for_model settles it.
    adapter: str | None = _option(
        None,
        help="Kind of adapter. ia3: trained scales of keys, values and the inputs of down.",
        choices=KINDS.names,
        shown_default=USUAL["adapter"],
    )
    rank: int | None = _option(None, help="Rank of the LoRA matrices.", least=1, shown_default=str(USUAL["rank"]))
    alpha: float | None = _option(
        None, help="The adapter is scaled by alpha / rank.", above=0, shown_default=str(USUAL["alpha"])
    )
    rslora: bool | None = _option(
        None,
        help="Scale the adapter by alpha / sqrt(rank) instead (rsLoRA, for large ranks); the default --lr is divided "
        "by sqrt(rank).",
    )
    dora: bool | None = _option(
        None, help="Train the lengths of the weights' rows apart from their directions (DoRA); a step takes longer."
    )
    lora_dropout: float = _option(
        0.0, help="Share of the adapter's inputs that is dropped in training.", least=0, below=1
    )
    targets: tuple[str, ...] | None = _option(
        None,
        help="Projections to adapt: all, or a list such as q,v. "
        f"Some models have each of {short(families.PROJECTIONS, ', ')}.",
        parse=parse.targets,
        words=("all", *short(families.PROJECTIONS).split(",")),
        shown_default=",".join(USUAL["targets"]),
    )

    def check_rules(self) -> None:
        super().check_rules()
        chosen = self.adapter or USUAL["adapter"]
        others = set(KINDS[USUAL["adapter"]].own_options).difference(KINDS[chosen].own_options)
        for entry in fields(self):
            if entry.name in others and getattr(self, entry.name) not in (None, False, entry.default):
                name, kind = spelled(type(self), entry.name), argument("adapter", chosen)
                raise FeatherbackError(f"{name} means nothing with {kind}; leave one out.")
        if chosen == "dora":  # --dora says the same
            object.__setattr__(self, "dora", True)
            object.__setattr__(self, "adapter", USUAL["adapter"])
        if self.dora and self.lora_dropout:
            raise FeatherbackError(
                f"{argument('lora_dropout')} is not for DoRA, where it would also drop what the frozen weights read: "
                f"leave one out."
            )

    @property
    def form(self) -> Form:
        """Rank, alpha and targets of the adapter, where it starts from none or `starting_from` was asked."""
        from featherback.models.form import Form

        return Form.of(**self._named_form, dropout=self.lora_dropout)

    @property
    def _named_form(self) -> dict[str, Any]:
        """Rank, alpha and the others of USUAL."""
        named = {name: getattr(self, name) for name in USUAL}
        kind = kind_of(named)
        usual = {**kind().options(), "targets": kind.targets}
        return {name: usual[name] if value is None else value for name, value in named.items()}

    def starting_from(self, form: Form, model: Model) -> Self:
        """These options with what an adapter of `model` says, which is of this form; FeatherbackError for one that was
        named otherwise.
        """
        own = {name: form.options[name] for name in USUAL}
        for name, value in own.items():
            named = getattr(self, name)
            if name == "targets" and named is not None:
                named = parse_targets(named, adaptable(model.blocks))
            if named not in (None, value):
                option = spelled(type(self), name)
                raise FeatherbackError(
                    f"{option} is {written(named)}, but the adapter in {self.start} has {written(value)}; leave "
                    f"{option} out: training starts from an adapter as it is."
                )
        found = replace(self, **own)
        for block in model.blocks:
            for target in block.projections.keys() & set(form.targets):
                shape = block.projections[target]
                if form.widest.kind.parts(target, shape) != found.form.kind.parts(target, shape):
                    kind = argument("adapter", own["adapter"])
                    raise FeatherbackError(
                        f"The adapter in {self.start} adapts {target} in a way that {kind} does not; training cannot "
                        f"start from it."
                    )
        return found


def written(value: object) -> object:
    """As the user writes it."""
    return "left out" if value is None else short(value) if isinstance(value, tuple) else value
