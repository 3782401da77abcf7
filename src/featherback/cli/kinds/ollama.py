"""A folder exported for Ollama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import Kind, Outlook, in_folder
from featherback.core.terminal import quoted

_MODELFILE = "Modelfile"
_MOST = 1 << 20  # bytes of a Modelfile
_SHOWN = ("FROM", "ADAPTER")


class Ollama(Kind):
    title = "a folder for Ollama, with a Modelfile"
    rank = 2

    def recognises(self, path: Path, head: bytes) -> bool:
        return in_folder(path, _MODELFILE)

    def describe(self, path: Path) -> dict[str, Any]:
        from featherback.core.files import read_bytes

        text = read_bytes(path / _MODELFILE, _MOST).decode("utf-8", "replace")
        words = [line.split(None, 1) for line in text.splitlines()]
        found = {each[0].lower(): each[1].strip('"') for each in words if len(each) == 2 and each[0] in _SHOWN}
        return {"kind": "folder for Ollama", "folder": str(path), **found}

    def outlook(self, path: Path, named: str) -> Outlook:
        from featherback.exports.formats.ollama import ADAPTER, MODEL, create_command

        parts = [path / name for name in (MODEL, ADAPTER) if (path / name).is_file()]
        return Outlook([create_command(path), *(quoted("featherback", "inspect", part) for part in parts)])


KIND = Ollama()
