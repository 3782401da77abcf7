"""In what arithmetic a model is computed where no run says so and nothing is measured."""

from __future__ import annotations

from pathlib import Path

from featherback.core.naming import argument
from featherback.core.terminal import complain
from featherback.errors import FeatherbackError
from featherback.runs.panels.run import AUTO, COMPUTE
from featherback.runs.run_directory import RUN_FILE, RunDirectory


def compute_of(compute: str, *places: str | Path | None) -> str:
    """What a compute means where nothing is measured: "auto" is what the run among these models and adapters computed
    in, bf16 if none is one."""
    if compute != AUTO:
        return compute
    for place in places:
        if place is None:
            continue
        folder = Path(place) if Path(place).is_dir() else Path(place).parent
        if not (folder / RUN_FILE).is_file():
            continue
        try:
            record = RunDirectory.open(folder).record
        except FeatherbackError as error:
            complain(f"note: {error} Unless {argument('compute')} is named, {COMPUTE[0]} is taken.")
            continue
        for part in ("configuration", "plan"):
            values = record.get(part)
            if isinstance(values, dict) and values.get("compute") in COMPUTE:
                return str(values["compute"])
    return COMPUTE[0]
