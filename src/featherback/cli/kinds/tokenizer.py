"""A tokenizer without its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import Kind, Outlook, in_folder
from featherback.core.terminal import quoted

_FILE = "tokenizer.json"


class ATokenizer(Kind):
    title = f"a {_FILE}"
    rank = 3

    def recognises(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return in_folder(path, _FILE) and not in_folder(path, "config.json")
        return path.name == _FILE

    def describe(self, path: Path) -> dict[str, Any]:
        from featherback.data.tokenizers.folder import from_folder

        tokenizer = from_folder(path if path.is_dir() else path.parent)
        return {
            "kind": "tokenizer",
            "tokenizer": str(path),
            "vocabulary": tokenizer.n_vocab,
            "control_tokens": len(tokenizer.control),
            "begins_with": tokenizer.decode([*tokenizer.encode_array("", bos=True)], special=True),
            "end_tokens": sorted(tokenizer.decode([token], special=True) for token in tokenizer.end_ids),
            "chat_template": tokenizer.is_chat,
            "read_by": tokenizer.note or "Featherback's own encoder",
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        folder = path if path.is_dir() else path.parent
        if in_folder(folder, "config.json"):
            return Outlook([quoted("featherback", "inspect", folder)])
        return Outlook([], notes=["a tokenizer alone cannot be used; put it into a model's folder, beside config.json"])


KIND = ATokenizer()
