"""The arithmetic (`--compute`) of commands that do not measure, such as generate and evaluate."""

from __future__ import annotations

from pathlib import Path

from featherback.core.naming import argument
from featherback.core.terminal import print_error
from featherback.errors import FeatherbackError
from featherback.runs.panels.run import AUTO, COMPUTE
from featherback.runs.run_directory import RUN_FILE, RunDirectory


def resolve_compute(compute: str, *places: str | Path | None) -> str:
    """Return `compute`; for "auto", the compute of the first run among `places`, or bf16 if none of them is a run.

    `places` are paths of models and adapters.
    """
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
            print_error(f"note: {error} Using {argument('compute', COMPUTE[0])}.")
            continue
        for part in (record.configuration, record.plan):
            if part is not None and part.compute in COMPUTE:
                return part.compute
    return COMPUTE[0]
