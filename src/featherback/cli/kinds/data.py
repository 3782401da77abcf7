"""Training data: records or text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import OUT, Kind, Outlook
from featherback.core.terminal import quoted
from featherback.data.source import Source
from featherback.runs.panels.optimisation import NEXT_TOKEN


class Data(Kind):
    title = "data: JSON, CSV, Parquet or text, or a folder of texts"
    rank = 4

    def recognises(self, path: Path, head: bytes) -> bool:
        from featherback.data.containers import looks_like_data

        return looks_like_data(path, head)

    def describe(self, path: Path) -> dict[str, Any]:
        return self.describe_source(Source.of(path))[0]

    def outlook(self, path: Path, named: str) -> Outlook:
        return self._next(Source.of(named), [])

    def describe_source(self, source: Source, objective: str = NEXT_TOKEN) -> tuple[dict[str, Any], Outlook]:
        """The results of `describe` and `outlook` for data that are read with the options of `source`."""
        from featherback.core.terminal import Counting
        from featherback.data.contents import contents

        with Counting(source.name) as shown:
            found = contents(source, shown.read)
        return {"kind": "data", **found.to_json()}, self._next(source, found.notes, objective)

    def _next(self, source: Source, notes: list[str], objective: str = NEXT_TOKEN) -> Outlook:
        how = [word for key, column in source.columns.items() for word in ("--map", f"{key}={column}")]
        how += [] if objective == NEXT_TOKEN else ["--objective", objective]
        how += [word for key, value in source.table.items() for word in ("--table", f"{key}={value}")]
        how += [word for name in source.me for word in ("--me", name)]
        how += ["--skip-bad"] if source.skip_bad else []
        named = [word for path in source.paths for word in ("--data", path)]
        return Outlook(
            [
                quoted("featherback", "inspect", *source.paths, "--model", "MODEL", *how),
                quoted("featherback", "train", "MODEL", *named, "--out", OUT, *how),
            ],
            notes=[*notes, "replace MODEL by a file, a folder, or a name from `featherback models`"],
        )


KIND = Data()
