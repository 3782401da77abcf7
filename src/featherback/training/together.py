"""What goes together among the options of a training run, whatever the model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING

from featherback import methods, optim
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError
from featherback.options import described, flags

if TYPE_CHECKING:
    from featherback.training.config import TrainConfig


EXCLUSIVE = (("steps", "epochs"), ("batch_size", "batch_tokens"))
"""Pairs of fields of which one may have a value: naming one replaces the other."""


def check_together(config: TrainConfig) -> None:
    """FeatherbackError, naming the options, for what does not go together; each was checked by itself."""
    for pair in EXCLUSIVE:
        if all(getattr(config, name) is not None for name in pair):
            raise FeatherbackError(f"Name {' or '.join(_flag(config, name) for name in pair)}, not both.")
    for name in ("eval_every", "patience"):
        if getattr(config, name) is not None and config.eval_data is None and not config.eval_share:
            raise FeatherbackError(f"{_flag(config, name)} needs --eval-data or --eval-share.")
    if config.train == "lora":
        _check_adapter(config)
    else:
        _check_whole(config)
    if config.dora and config.lora_dropout:
        raise FeatherbackError(
            "--lora-dropout is not for DoRA, where it would also drop what the frozen weights read: leave one out."
        )
    if (*(config.data or ()), *(config.eval_data or ())).count(STDIN) > 1:
        raise FeatherbackError("Standard input (-) can be named once.")


def replaced_by(named: Collection[str]) -> set[str]:
    """The fields that lose their value where these are named: those of the same pairs."""
    return {name for pair in EXCLUSIVE if set(pair) & set(named) for name in pair}


def without_meaning(options: type, train: str) -> list[str]:
    """The fields of a dataclass of options that mean nothing for what is trained."""
    return [name for name, about in described(options).items() if about.only_for not in (None, train)]


def _check_adapter(config: TrainConfig) -> None:
    if named := _named_in_vain(config):
        raise FeatherbackError(f"{named} is for --train full; leave it out, or name that.")
    if config.optimizer not in (able := optim.for_adapters()):
        raise FeatherbackError(
            f"--optimizer {config.optimizer} is for the matrices of whole models; for an adapter choose "
            f"{', '.join(able[:-1])} or {able[-1]}, or name --train full."
        )


def _check_whole(config: TrainConfig) -> None:
    if named := _named_in_vain(config):
        raise FeatherbackError(f"{named} is for adapters; leave it out, or leave --train full out.")
    if config.accumulate > 1:
        raise FeatherbackError(
            f"--accumulate is {config.accumulate}, but with --train full a weight changes as soon as its gradient is "
            f"there, and none is kept to be added to; name a larger --batch-size or --batch-tokens instead."
        )
    if not methods.METHODS[config.method].can_train_weights:
        able = [name for name in methods.METHODS.names if methods.METHODS[name].can_train_weights]
        raise FeatherbackError(
            f"--method {config.method} is for adapters; with --train full, choose {', '.join(able[:-1])} or {able[-1]}."
        )


def _named_in_vain(config: TrainConfig) -> str | None:
    """An option that has a value and means nothing for what is trained."""
    for given in (config, methods.OPTIONS.make(config.method, config.method_options)):
        usual = {entry.name: entry.default for entry in fields(given)}
        for name in without_meaning(type(given), config.train):
            if getattr(given, name) != usual[name]:
                return flags(type(given), name)[0]
    return None


def _flag(config: TrainConfig, name: str) -> str:
    return flags(type(config), name)[0]
