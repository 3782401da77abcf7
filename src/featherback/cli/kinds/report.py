"""The report of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import Kind, Outlook, in_folder
from featherback.core.terminal import quoted

_TITLE = re.compile(rb"<title>[^<]* - Featherback</title>")


class Report(Kind):
    title = "the report of a run"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"<!DOCTYPE html>") and _TITLE.search(head) is not None

    def describe(self, path: Path) -> dict[str, Any]:
        run = _run_of(path)
        return {
            "kind": "report of a run, to be opened in a browser",
            "report": str(path),
            "bytes": path.stat().st_size,
            **({} if run is None else {"run": str(run)}),
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        run = _run_of(path)
        if run is None:
            return Outlook([], notes=["the report is no longer in its run's directory; inspect that directory instead"])
        return Outlook([quoted("featherback", "inspect", run), quoted("featherback", "report", run)])


def _run_of(path: Path) -> Path | None:
    """The run's directory; None if the report was moved out of it."""
    return path.parent if in_folder(path.parent, "run.json") else None


KIND = Report()
