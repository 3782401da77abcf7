"""Options of training a copy of the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from featherback.core.options import Panel, option
from featherback.runs import parse

TRAINED = ("lora", "full")
"""Values of --train: an adapter, or the model's own weights."""
MASTER = "bf16"

_option = partial(option, only_for="full")


@dataclass(frozen=True, kw_only=True)
class WholeOptions(Panel):
    title = "Whole model"

    train: str = option(
        "lora", help="lora: train a small adapter. full: train a copy of the whole model.", choices=TRAINED
    )
    master: str | None = _option(
        None,
        help="Number format of the weights while they are trained. bf16 uses stochastic rounding.",
        choices=("bf16", "fp32"),
        shown_default=MASTER,
    )
    dequantize: bool = _option(
        False,
        help="Train a quantised model: its weights are first copied in the format of --master, which takes more disk "
        "space.",
    )
    freeze: tuple[str, ...] | None = _option(
        None,
        help="Weights that are not trained: a list of names and patterns, such as embed_tokens,layers.0.*,*norm.",
        parse=parse.patterns,
        metavar="NAMES",
    )
