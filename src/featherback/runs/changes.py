"""The options of a run with others in their place: those that are named beside a file of options, or to resume it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from featherback import methods, optim
from featherback.core.naming import argument
from featherback.core.options import spelled
from featherback.errors import FeatherbackError
from featherback.models.model import Model
from featherback.nn.adapters import KINDS
from featherback.runs.config import CHOICES, TrainConfig, replaced_by, without_meaning
from featherback.runs.panels.adapter import USUAL, written


def replaced(values: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Options by field, with those that are `named` in their place; what does not go with these is left out."""
    left, usual = dict(values), {entry.name: entry.default for entry in fields(TrainConfig)}
    gone = replaced_by(named.keys())
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
    if _scaled({**usual, **left}) != _scaled({**usual, **stay, **named}):
        gone.add("learning_rate")
    gone |= _of_what_was_trained({**usual, **left}, {**usual, **left, **named})
    return {name: value for name, value in left.items() if name not in gone} | dict(named)


def _scaled(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the default learning rate of an adapter depends on, beside its optimiser."""
    rank = USUAL["rank"] if options["rank"] is None else options["rank"]
    return (rank if options["rslora"] else None), options["loraplus_ratio"], options["adapter"] or USUAL["adapter"]


def _of_what_was_trained(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """The options that had their meaning, or their default, from what was trained, and how, and no longer have it."""
    train, method = before["train"], before["method"]
    if after["train"] != train:
        own = methods.OPTIONS.make(method, {})
        settled = own.settled(train)
        return {
            *without_meaning(TrainConfig, after["train"]),
            *without_meaning(type(own), after["train"]),
            *(entry.name for entry in fields(own) if getattr(settled, entry.name) != getattr(own, entry.name)),
            "learning_rate",
            "max_grad_norm",
        }
    rates = {methods.METHODS[name].FULL_LEARNING_RATE for name in (method, after["method"])}
    return {"learning_rate"} if train == "full" and len(rates) > 1 else set()


def continued(run: TrainConfig, named: Mapping[str, Any], model: Model) -> TrainConfig:
    """The options of a run of `model`, with those that are `named` to resume it (None: not named, but for `start`).

    FeatherbackError naming every option that differs from the run's and must not.
    """
    if run.start and "start" in named and named["start"] is None:  # what --from none says
        raise FeatherbackError(
            f"Cannot resume {run.out} with other options: {argument('from')} was {run.start}, not none."
        )
    named = {name: value for name, value in named.items() if value is not None}
    if "start" in named and run.start and os.path.abspath(named["start"]) == os.path.abspath(run.start):
        named["start"] = run.start  # run.yaml has it whole
    if (trains := named.get("train", run.train)) != run.train:  # whose other options do not go with it
        raise FeatherbackError(
            f"Cannot resume {run.out} with other options: {argument('train')} was {run.train}, not {trains}."
        )
    values = {entry.name: getattr(run, entry.name) for entry in fields(run)}
    values |= dict.fromkeys(replaced_by(named.keys()))
    for own in CHOICES:
        if named.get(own.choice, values[own.choice]) != values[own.choice]:
            values[own.field] = {}  # the other's own; it is refused below
    later = TrainConfig.of(**{**values, **named}).for_model(model)
    check_resume(later, run.for_model(model))
    return later


def check_resume(config: TrainConfig, earlier: TrainConfig) -> None:
    """FeatherbackError naming every option that differs from the run's, which are `earlier`, and must not."""
    before = earlier.fixed()
    differing = [
        f"{spelled(TrainConfig, name)} was {written(before[name])}, not {written(value)}"
        for name, value in config.fixed().items()
        if name in before and before[name] != value  # another optimizer or method may have other options
    ]
    if differing:
        raise FeatherbackError(f"Cannot resume {config.out} with other options: {'; '.join(differing)}.")
