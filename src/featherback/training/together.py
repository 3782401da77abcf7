"""What goes together among the options of a training run, whatever the model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING

from featherback import methods, optim
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError
from featherback.naming import argument, argument_is, arguments
from featherback.options import described, spelled

if TYPE_CHECKING:
    from featherback.training.config import TrainConfig


EXCLUSIVE = (("steps", "epochs"), ("batch_size", "batch_tokens"))
"""Pairs of fields of which one may have a value: naming one replaces the other."""


def check_together(config: TrainConfig) -> None:
    """FeatherbackError, naming the options, for what does not go together; each was checked by itself."""
    for pair in EXCLUSIVE:
        if all(getattr(config, name) is not None for name in pair):
            raise FeatherbackError(f"Name {arguments(*pair)}, not both.")
    for name in ("eval_every", "patience"):
        if getattr(config, name) is not None and config.eval_data is None and not config.eval_share:
            raise FeatherbackError(f"{spelled(type(config), name)} needs {arguments('eval_data', 'eval_share')}.")
    if config.train == "lora":
        _check_adapter(config)
    else:
        _check_whole(config)
    if config.dora and config.lora_dropout:
        raise FeatherbackError(
            f"{argument('lora_dropout')} is not for DoRA, where it would also drop what the frozen weights read: leave "
            f"one out."
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
        raise FeatherbackError(f"{named} is for {_full()}; leave it out, or add {_full()}.")
    if config.optimizer not in (able := optim.for_adapters()):
        raise FeatherbackError(
            f"{argument('optimizer', config.optimizer)} is for the matrices of whole models; for an adapter choose "
            f"{', '.join(able[:-1])} or {able[-1]}, or add {_full()}."
        )


def _check_whole(config: TrainConfig) -> None:
    if named := _named_in_vain(config):
        raise FeatherbackError(f"{named} is for adapters; leave it out, or leave {_full()} out.")
    if config.accumulate > 1:
        raise FeatherbackError(
            f"{argument_is('accumulate', config.accumulate)}, but with {_full()} a weight changes as soon as its "
            f"gradient is there, and none is kept to be added to; name a larger "
            f"{arguments('batch_size', 'batch_tokens')} instead."
        )
    if not methods.METHODS[config.method].can_train_weights:
        able = [name for name in methods.METHODS.names if methods.METHODS[name].can_train_weights]
        raise FeatherbackError(
            f"{argument('method', config.method)} is for adapters; with {_full()}, choose {', '.join(able[:-1])} or "
            f"{able[-1]}."
        )


def _named_in_vain(config: TrainConfig) -> str | None:
    """An option that has a value and means nothing for what is trained."""
    for given in (config, methods.OPTIONS.make(config.method, config.method_options)):
        usual = {entry.name: entry.default for entry in fields(given)}
        for name in without_meaning(type(given), config.train):
            if getattr(given, name) != usual[name]:
                return spelled(type(given), name)
    return None


def _full() -> str:
    return argument("train", "full")
