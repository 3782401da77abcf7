"""The initial state of a run: base model, first adapter and optimiser."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from featherback import models, optim
from featherback.engine.formats import fingerprint
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.optim.average import MEAN, begin
from featherback.optim.proximal import START
from featherback.runs.config import TrainConfig
from featherback.runs.run_directory import RunDirectory


def base_model(run: RunDirectory) -> Model:
    """Open the base model at the path in the run's record.

    Raises FeatherbackError if it is not the model that the run was trained on: a record from somebody else may name any
    file.
    """
    config = run.config
    model = models.load(config.model, config.quantize)
    if run.record.model != fingerprint.of_store(model.store):
        raise FeatherbackError(
            f"The contents of {config.model} have changed since {run.path} was trained on it. Restore that model file."
        )
    return model


def first_adapter(run: RunDirectory, model: Model, place: Path | None = None) -> Adapter:
    """Return the adapter as it is before the first step, with its parameters in the file `place`, or in RAM."""
    config = run.config
    if config.start is None:
        adapter = Adapter(model, config.form, config.seed, place)
    else:
        adapter = formats.load(model, run.start, place, formats.of_run(config.form))
    adapter.dropout = config.lora_dropout
    return adapter


def first_optimizer(config: TrainConfig, adapter: Adapter, place: Path | None = None) -> optim.LayerwiseOptimizer:
    """Return the optimiser as it is before the first step, with its states in the folder `place`, or in RAM."""
    rate = partial(adapter.layout.rate, config.loraplus_ratio)
    slots = adapter.layout.slots
    optimizer = optim.LayerwiseOptimizer(config.rule, adapter.parameters, slots, place, rate, config.seed)
    for name in {MEAN, START} & optimizer.states.keys():
        begin(optimizer.states[name], adapter.parameters)
    return optimizer
