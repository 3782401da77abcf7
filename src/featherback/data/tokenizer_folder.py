"""The tokenizer of a Hugging Face folder: tokenizer.json with tokenizer_config.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from featherback.data.renderer import MOST_CHARACTERS
from featherback.data.tokenizer import END_TOKENS, SpacePrefix, Tokenizer
from featherback.errors import FeatherbackError
from featherback.files import read_bytes, read_json


class LibraryCore:
    """The `tokenizers` library as a tokenizer's core: any model that a folder may hold."""

    def __init__(self, library: Library) -> None:
        library.encode_special_tokens = True
        self._library = library

    @property
    def n_vocab(self) -> int:
        return int(self._library.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        return self._encoding(text).ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], NDArray[np.uint32]]:
        encoding = self._encoding(text)
        return encoding.ids, np.array(encoding.offsets, np.uint32).reshape(-1, 2)

    def _encoding(self, text: str) -> Encoding:
        try:
            return self._library.encode(text, add_special_tokens=False)
        except TypeError:  # what some versions of the library raise for half a surrogate pair
            text.encode()
            raise

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(ids, skip_special_tokens=False))


def from_folder(folder: str | Path) -> Tokenizer:
    """The tokenizer saved in a folder."""
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FeatherbackError(
            f"{folder} holds no tokenizer.json; save it with AutoTokenizer's save_pretrained."
        )
    try:
        library = Library.from_file(str(path))
    except Exception as error:  # the library has no exception of its own for it
        raise FeatherbackError(f"{path} is not a readable tokenizer: {error}.") from error
    config = _read(folder / "tokenizer_config.json")
    names = _special_names(config)
    library.no_truncation()
    library.no_padding()
    prelude = library.encode("", add_special_tokens=True).ids  # what the post-processor puts around a text
    library.post_processor = None
    space_prefix, space_once = _take_space_prefix(library)
    added = library.get_added_tokens_decoder()
    control = {token.content: i for i, token in added.items() if token.special and token.content}
    bos_id = library.token_to_id(names["bos_token"]) if "bos_token" in names else None
    eos_id = library.token_to_id(names["eos_token"]) if "eos_token" in names else None
    ends = {i for token, i in control.items() if token in END_TOKENS} | _generation_ends(folder)
    return Tokenizer(
        core=LibraryCore(library),
        control=control,
        space_prefix=space_prefix,
        space_once=space_once,
        add_bos=bos_id is not None and prelude[:1] == [bos_id],
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=frozenset(ends if eos_id is None else ends | {eos_id}),
        chat_template=_chat_template(folder, config),
        template_source=f"The chat template of {folder}",
        special_names=names,
        widths={token.content: (token.lstrip, token.rstrip) for token in added.values()},
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise FeatherbackError(f"{path} does not hold a JSON object.")
    return content


def _special_names(config: dict[str, Any]) -> dict[str, str]:
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[name] = value
    return names


def _generation_ends(folder: Path) -> set[int]:
    ends = _read(folder / "generation_config.json").get("eos_token_id")
    return {i for i in (ends if isinstance(ends, list) else [ends]) if isinstance(i, int)}


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return read_bytes(file, MOST_CHARACTERS).decode("utf-8")
        except UnicodeDecodeError:
            raise FeatherbackError(f"{file} is not UTF-8 text.") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}.get("default")
    return template if isinstance(template, str) else None


def _take_space_prefix(library: Library) -> tuple[SpacePrefix, bool]:
    """Take the leading-space rule out, for Tokenizer to apply: (rule, only where no space is yet)."""
    if library.normalizer is not None:
        state = json.loads(library.normalizer.__getstate__())
        if any(part["type"] == "Prepend" for part in _parts(state, "normalizers")):
            rest = [part for part in _parts(state, "normalizers") if part["type"] != "Prepend"]
            normalizer = normalizers.Sequence([])
            normalizer.__setstate__(json.dumps({"type": "Sequence", "normalizers": rest}).encode())
            library.normalizer = normalizer
            return "each", False
    if library.pre_tokenizer is not None:
        state = json.loads(library.pre_tokenizer.__getstate__())
        rule: SpacePrefix = "never"
        for part in _parts(state, "pretokenizers"):
            if part["type"] == "Metaspace":
                scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space") else "never")
                rule = "each" if scheme == "always" else scheme
                part["prepend_scheme"] = "never"
            elif part["type"] == "ByteLevel" and part["add_prefix_space"]:
                rule, part["add_prefix_space"] = "each", False
        pre_tokenizer = pre_tokenizers.Sequence([])
        pre_tokenizer.__setstate__(json.dumps(state).encode())
        library.pre_tokenizer = pre_tokenizer
        return rule, True
    return "never", False


def _parts(state: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The members of a sequence of normalizers or pre-tokenizers, or the one there is."""
    return list(state[key]) if state["type"] == "Sequence" else [state]
