"""Combines recorded options with the user's: those given beside `--config FILE`, or when a run is resumed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from featherback import methods, optim
from featherback.core.naming import argument
from featherback.core.options import spelled
from featherback.errors import FeatherbackError
from featherback.models.hub.locate import locate
from featherback.models.model import Model
from featherback.nn.adapters import KINDS
from featherback.runs.config import CHOICES, TrainConfig, reset_fields, unused_options
from featherback.runs.panels.adapter import USUAL, written

_SAME = "Use the options of the run, or start a new run."


def with_overrides(values: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `values`, overridden by `named`, without options that no longer apply. Keys are fields."""
    left, usual = dict(values), {entry.name: entry.default for entry in fields(TrainConfig)}
    gone = reset_fields(named.keys())
    if named.get("start") is not None:
        gone |= USUAL.keys()
    for own in CHOICES:
        before = left.get(own.choice, usual[own.choice])
        if named.get(own.choice, before) != before:
            gone |= own.by_option().keys()
            if own is optim.OPTIONS:
                gone.add("learning_rate")
    old, new = (KINDS[options.get("adapter") or USUAL["adapter"]] for options in (left, {**left, **named}))
    if old.targets != new.targets:
        gone |= {"targets", *old.own_options}
    stay = {name: value for name, value in left.items() if name not in gone}
    if _rate_dependencies({**usual, **left}) != _rate_dependencies({**usual, **stay, **named}):
        gone.add("learning_rate")
    gone |= _options_tied_to_training({**usual, **left}, {**usual, **left, **named})
    return {name: value for name, value in left.items() if name not in gone} | dict(named)


def _rate_dependencies(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the options, besides the optimiser, that determine an adapter's default learning rate."""
    rank = USUAL["rank"] if options["rank"] is None else options["rank"]
    return (rank if options["rslora"] else None), options["loraplus_ratio"], options["adapter"] or USUAL["adapter"]


def _options_tied_to_training(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Return the options whose meaning or default changes with `train` or `method` between `before` and `after`."""
    train, method = before["train"], before["method"]
    if after["train"] != train:
        own = methods.OPTIONS.make(method, {})
        settled = own.settled(train)
        return {
            *unused_options(TrainConfig, after["train"]),
            *unused_options(type(own), after["train"]),
            *(entry.name for entry in fields(own) if getattr(settled, entry.name) != getattr(own, entry.name)),
            "learning_rate",
            "max_grad_norm",
        }
    rates = {methods.METHODS[name].FULL_LEARNING_RATE for name in (method, after["method"])}
    return {"learning_rate"} if train == "full" and len(rates) > 1 else set()


def resumed_options(run: TrainConfig, named: Mapping[str, Any], model: Model) -> TrainConfig:
    """Return the options of a resumed run: those of `run`, overridden by `named`.

    A value of None in `named` means "not given", except for `start`, where it is `--from none`. FeatherbackError lists
    every option that differs from the run's and must not.
    """
    if run.start and "start" in named and named["start"] is None:  # given as --from none
        raise FeatherbackError(
            f"Cannot resume {run.out} with other options: {argument('from')} was {run.start}, not none. {_SAME}"
        )
    named = {name: value for name, value in named.items() if value is not None}
    if "start" in named and run.start and os.path.abspath(named["start"]) == os.path.abspath(run.start):
        named["start"] = run.start  # run.yaml has the absolute path
    if named.get("teacher") and run.teacher and os.path.abspath(locate(named["teacher"])) == run.teacher:
        named["teacher"] = run.teacher
    if named.get("replay") and run.replay and os.path.abspath(named["replay"]) == run.replay:
        named["replay"] = run.replay
    if (trains := named.get("train", run.train)) != run.train:  # other options would not fit either
        raise FeatherbackError(
            f"Cannot resume {run.out} with other options: {argument('train')} was {run.train}, not {trains}. {_SAME}"
        )
    values = {entry.name: getattr(run, entry.name) for entry in fields(run)}
    values |= dict.fromkeys(reset_fields(named.keys()))
    for own in CHOICES:
        if named.get(own.choice, values[own.choice]) != values[own.choice]:
            values[own.field] = {}  # they belong to another choice, which is rejected below
    later = TrainConfig.of(**{**values, **named}).for_model(model)
    check_resume(later, run.for_model(model))
    return later


def check_resume(config: TrainConfig, earlier: TrainConfig) -> None:
    """Raise FeatherbackError listing every option of `config` that differs from `earlier` and must not."""
    before = earlier.fixed()
    differing = [
        f"{spelled(TrainConfig, name)} was {written(before[name])}, not {written(value)}"
        for name, value in config.fixed().items()
        if name in before and before[name] != value  # another optimiser or method may have other options
    ]
    if differing:
        raise FeatherbackError(f"Cannot resume {config.out} with other options: {'; '.join(differing)}. {_SAME}")
