"""Options of training a whole model: its own weights, in a copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from featherback.core.options import Panel, option
from featherback.runs import parse

TRAINED = ("lora", "full")
"""What --train can be: an adapter, or the model's own weights."""
MASTER = "bf16"

_option = partial(option, only_for="full")


@dataclass(frozen=True, kw_only=True)
class WholeOptions(Panel):
    title = "Whole model"

    train: str = option(
        "lora",
        help="What is trained: an adapter beside the model, or the model's own weights, in a copy.",
        choices=TRAINED,
    )
    master: str | None = _option(
        None,
        help="How weights are held while they are trained; bf16 is rounded at random.",
        choices=("bf16", "fp32"),
        shown_default=MASTER,
    )
    dequantize: bool = _option(False, help="Train a quantised model: its copy is as --master has it, and as large.")
    freeze: tuple[str, ...] | None = _option(
        None,
        help="Weights that stay as they are: a list of names and patterns, such as embed_tokens,layers.0.*,*norm.",
        parse=parse.patterns,
        metavar="NAMES",
    )
