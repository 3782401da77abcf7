"""The server's folder: round-000003/ holds the adapter after round 3, in PEFT's format, and how it came about.

A round's folder appears when it is complete, so a server that is killed goes on with the round after the newest one.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from featherback.core import private
from featherback.core.decode import Amount, Count, decode
from featherback.core.files import atomic_folder, make_folder, read_json, remove_abandoned, write_json
from featherback.core.system import locks
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.engine.formats.store import floats
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.base_model import base_model_name
from featherback.exports.safetensors_writer import write_safetensors
from featherback.federated.identity import Identity
from featherback.federated.strategies.base import Arrays
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.runs.config import TrainConfig

RECORD, STATE = "round.json", "server.safetensors"
_FOLDER = re.compile(r"round-(\d{6})")


@dataclass
class RoundRecord:
    """What round.json holds. `norms`: of accepted updates."""

    federation: str
    number: Count
    identity: Identity
    history: list[dict[str, Any]] = field(default_factory=list)
    norms: list[Amount] = field(default_factory=list)


@dataclass
class Round(RoundRecord):
    """What the server knows after a round. `state`: what the strategy keeps."""

    state: Arrays = field(default_factory=dict)

    @classmethod
    def first(cls, identity: Identity) -> Round:
        """Return the state before the first round of a new federation."""
        return cls(secrets.token_hex(8), 0, identity)

    def save(self, out: Path, adapter: Adapter) -> Path:
        """Write the folder of this round, and return it."""
        make_folder(out)
        place = folder(out, self.number)
        shutil.rmtree(place, ignore_errors=True)
        with atomic_folder(place) as made:
            formats.of_run(adapter.form).save(adapter, made, base_model_name(adapter.model))
            if self.state:
                shapes = {name: each.shape for name, each in self.state.items()}
                write_safetensors(made / STATE, shapes, self.state.items())
            record = {name: value for name, value in vars(self).items() if name != "state"}
            write_json(made / RECORD, record)
        return place


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep other servers from the folder. Raises FeatherbackError if one uses it."""
    make_folder(out)
    try:
        descriptor = locks.hold(out, wait=False)
    except BlockingIOError:
        raise FeatherbackError(
            f"Another run of the federation uses {out}. Wait for its end, or stop it: `flwr ls` lists runs, and "
            f"`flwr stop` ends one."
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def newest(out: Path) -> Path | None:
    """Return the folder of the newest complete round; None if there is none."""
    found = [path for path in out.glob("round-*") if _FOLDER.fullmatch(path.name) and (path / RECORD).is_file()]
    return max(found, default=None)


def folder(out: Path, number: int) -> Path:
    """Return the folder of a round."""
    return out / f"round-{number:06d}"


def load(place: Path, identity: Identity) -> Round:
    """Read the round in `place`. Raises FeatherbackError if it is damaged, or was made with another model."""
    try:
        record = decode(RoundRecord, read_json(place / RECORD), place / RECORD)
    except FeatherbackError as error:
        raise FeatherbackError(f"{error} Delete {place} to go on with the round before.") from None
    if record.identity != identity:
        raise FeatherbackError(
            f"The rounds in {place.parent} were made with another model. Choose a new folder `out` in the run "
            f"configuration, or the model of these rounds."
        )
    state: Arrays = {}
    if (place / STATE).is_file():
        with reading(SafetensorsFile(place / STATE)) as file:
            state = {name: floats(file, name).copy() for name in file.tensors}
    return Round(**vars(record), state=state)


def adapter_on_disk(model: Model, config: TrainConfig, out: Path) -> Adapter:
    """Return a new adapter whose values are in a file in `out`, so that the server's memory need not hold them.

    The file has no name, so it is gone when the server ends; on Windows, it is deleted when the next one begins.
    """
    make_folder(out)
    path = out / "adapter.f32"
    remove_abandoned(path)
    path = out / private.temporary_name(path.name)
    adapter = Adapter(model, config.form, config.seed, path)
    with suppress(OSError):
        path.unlink()
    return adapter


def load_adapter(place: Path, adapter: Adapter) -> None:
    """Load a round's adapter into `adapter`. Raises FeatherbackError if it has another form."""
    with closing(formats.load(adapter.model, place)) as stored:
        if stored.shapes() != adapter.shapes():
            raise FeatherbackError(
                f"The adapter in {place} has another form than the options in the table train. Choose a new folder "
                f"`out` in the run configuration, or the options of these rounds."
            )
        adapter.load_state(stored.state())
