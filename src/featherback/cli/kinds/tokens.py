"""The tokens of a run's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import Kind, Outlook, in_folder
from featherback.core.terminal import quoted


class Tokens(Kind):
    title = "a run's file of tokens"

    def recognises(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"FBTOKENS")

    def describe(self, path: Path) -> dict[str, Any]:
        from featherback.data.token_file import TokenFile

        file = TokenFile(path)
        return {
            "kind": "tokens of a run's data",
            "token_file": str(path),
            "sequences": len(file),
            "tokens": file.n_tokens,
            "trained_tokens": file.n_targets,
            "longest": file.max_length,
            **file.metadata,
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        run = path.absolute().parents[1]
        return Outlook([quoted("featherback", "inspect", run)] if in_folder(run, "run.json") else [])


KIND = Tokens()
