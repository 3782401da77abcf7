"""The hidden states that enter the lowest trained layer: whether a run keeps them on its disk, and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from featherback.core import private
from featherback.core.files import json_checksum
from featherback.core.naming import argument
from featherback.core.sizes import shown_mb
from featherback.core.system import folders
from featherback.engine import kernels
from featherback.engine.host.machine import is_ram_disk
from featherback.engine.host.token_rows import TokenRows, file_bytes
from featherback.methods.entry import EntryStates
from featherback.runs.panels.adapter import DISK
from featherback.version import __version__

if TYPE_CHECKING:
    from featherback.data.token_file import TokenFile
    from featherback.methods.base import Method
    from featherback.methods.memory.plan import Plan
    from featherback.models.model import Model
    from featherback.runs.run_directory import RunDirectory


def entry_states(
    run: RunDirectory,
    model: Model,
    method: Method,
    plan: Plan,
    files: Mapping[str, TokenFile],
    room: int,
    note: Callable[[str], None],
) -> EntryStates | None:
    """Return the states of the token files that a run passes more than once, by name; None if they are not kept.

    `room`: bytes of the disk that nothing else needs. States that an interrupted run has left are used again if
    nothing on which they depend has changed. `note` receives messages for the user.
    """
    lowest, width = method.first_trained, model.config.hidden_size
    if run.config.hidden_states != DISK or not lowest or not files:
        delete_states(run)
        return None
    needed = states_bytes(files.values(), width)
    unkept = f"the hidden states before layer {lowest} are not kept, so all layers run in every epoch"
    if is_ram_disk(run.path):
        note(f"note: {unkept}: {run.path} is on a RAM disk. Use an {argument('out')} on a disk")
        return None
    left = sum(folders.disk_bytes(path.stat()) for path in run.states.glob("*")) if run.states.is_dir() else 0
    if needed > room + left:
        note(
            f"note: {unkept}: they need {shown_mb(needed, 1)}, and the disk of {run.path} has "
            f"{shown_mb(max(room, 0), 1)} to spare. Free some space, or choose another {argument('out')}"
        )
        delete_states(run)
        return None
    found: dict[int, TokenRows] = {}
    try:
        private.make_folder(run.states)
        for name, file in files.items():
            key = _key(run, plan, lowest, file)
            lengths = (some for _, some in file.all_lengths())
            rows = TokenRows(run.states / f"{name}.rows", key, len(file), file.n_tokens, width, lengths)
            found[file.checksum] = rows
            if rows.replaced:
                note(f"note: {rows.path} does not fit this run; the hidden states are computed again")
    except OSError as error:
        note(f"note: {unkept}: {run.states} cannot be written ({error.strerror})")
        for rows in found.values():
            rows.close()
        delete_states(run)
        return None
    note(f"note: the hidden states before layer {lowest} are kept in {run.states} ({shown_mb(needed, 1)})")
    return EntryStates(found, note)


def states_bytes(files: Iterable[TokenFile], width: int) -> int:
    """Return the disk space of the states of these files, in bytes."""
    return sum(file_bytes(len(file), file.n_tokens, width) for file in files)


def delete_states(run: RunDirectory) -> None:
    """Delete the states, if there are any."""
    shutil.rmtree(run.states, ignore_errors=True)


def _key(run: RunDirectory, plan: Plan, lowest: int, file: TokenFile) -> str:
    """Return a checksum of everything that the bits of the states may depend on."""
    tiles = [plan.compute, plan.chunk, plan.mlp_tile]
    return json_checksum([__version__, kernels.current(), run.record.model, lowest, *tiles, file.checksum])
