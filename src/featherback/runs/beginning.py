"""What a run begins with: made alike when it is trained and when it is replayed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from featherback import models, optim
from featherback.engine.formats import fingerprint
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats.peft import FORMAT as PEFT
from featherback.models.lora import Adapter
from featherback.models.model import Model
from featherback.optim.average import MEAN, begin
from featherback.runs.config import TrainConfig
from featherback.runs.run_directory import RunDirectory


def base_model(run: RunDirectory, model: Model | None = None) -> Model:
    """The `model` of a run, or the one that its record names, opened where it lay. FeatherbackError if it is another
    one than the run was trained on: a record may be a stranger's, and name any file."""
    config = run.config
    model = model or models.load(config.model, config.quantize)
    if run.record.get("model") != fingerprint.of_store(model.store):
        raise FeatherbackError(f"{config.model} is not what it was when {run.path} was trained on it.")
    return model


def first_adapter(run: RunDirectory, model: Model, place: Path | None = None) -> Adapter:
    """The adapter before the first step; its parameters in the file `place`, or in RAM."""
    config = run.config
    if config.start is None:
        adapter = Adapter(model, config.form, config.seed, place)
    else:
        adapter = formats.load(model, run.start, place, PEFT)
    adapter.dropout = config.lora_dropout
    return adapter


def first_optimizer(config: TrainConfig, adapter: Adapter, place: Path | None = None) -> optim.LayerwiseOptimizer:
    """The optimiser before the first step; its states in files of the folder `place`, or in RAM."""
    rate = partial(adapter.layout.rate, config.loraplus_ratio)
    slots = adapter.layout.slots
    optimizer = optim.LayerwiseOptimizer(config.rule, adapter.parameters, slots, place, rate, config.seed)
    if MEAN in optimizer.states:
        begin(optimizer.states[MEAN], adapter.parameters)
    return optimizer
