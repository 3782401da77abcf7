"""A file of training options, such as the run.yaml of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import OTHER_OUT, Kind, Outlook, in_folder
from featherback.core.terminal import quoted


class Options(Kind):
    title = "a file of training options, such as run.yaml"

    def recognises(self, path: Path, head: bytes) -> bool:
        return path.is_file() and path.suffix.lower() in (".yaml", ".yml")

    def describe(self, path: Path) -> dict[str, Any]:
        from featherback.runs.run_file import read

        file = read(path)
        return {
            "kind": "file of training options",
            "options_file": str(path),
            **({} if file.model is None else {"model": file.model}),
            "options": {name: value for name, value in file.values.items() if value is not None},
            "plan": file.plan is not None,
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        again = [quoted("featherback", "train", "--config", named, "--out", OTHER_OUT)]
        run = path.parent
        return Outlook([*again, *([quoted("featherback", "inspect", run)] if in_folder(run, "run.json") else [])])


KIND = Options()
