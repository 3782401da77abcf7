"""Load the tokenizer of a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

The vocabulary is read directly from the mapped file (csrc/text). Python strings are made only for the names of control
and user-defined tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback import _native
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.data.tokenizers.tokenizer import END_TOKENS, Tokenizer
from featherback.engine.formats.gguf import STRING, GGUFFile, Scalar
from featherback.engine.formats.split import open_gguf
from featherback.errors import FeatherbackError

TOKENS = "tokenizer.ggml.tokens"
# GGML's token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def from_gguf(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a GGUF file, or of the first part of a split one."""
    file = open_gguf(path)
    try:
        tokenizer = _build(file)
        file.drop_header()  # encoding rarely needs it again
        return tokenizer
    finally:
        file.close()  # the encoder keeps the map


def check_known(path: str | Path) -> None:
    """Raise FeatherbackError if a GGUF file has no tokenizer of a known type. The vocabulary is not read."""
    file = open_gguf(path)
    try:
        _facts(file)
    finally:
        file.close()


def _facts(file: GGUFFile) -> dict[str, Scalar]:
    """Return the tokenizer's metadata without the prefix of the keys.

    Raises FeatherbackError if its type is unknown.
    """
    facts = {k.removeprefix("tokenizer.ggml."): v for k, v in file.metadata.items() if k.startswith("tokenizer.ggml.")}
    kind = facts.get("model")
    if kind is None or TOKENS not in file.arrays:
        raise FeatherbackError(f"{file.path} contains no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens).")
    if kind not in ("gpt2", "llama"):
        raise FeatherbackError(f"{file.path} has the tokenizer type {kind!r}; expected one of: gpt2, llama.")
    if kind == "gpt2" and (pre := _pre(facts)) not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise FeatherbackError(
            f"{file.path} needs the pre-tokenizer {pre!r}, which is not supported; expected one of: {known}. "
            "Another pre-tokenizer would split text into tokens that the model does not expect."
        )
    return facts


def _pre(facts: Mapping[str, Scalar]) -> str:
    """Return the name of the pre-tokenizer; for a file without it, llama.cpp's default."""
    return str(facts.get("pre", "default"))


def _build(file: GGUFFile) -> Tokenizer:
    facts = _facts(file)
    kind = facts["model"]
    types = _types(file)
    if kind == "gpt2":
        core = _byte_level(file, types, _pre(facts))
    else:
        core = _sentencepiece(file, types)
    control = _names(core, np.isin(types, (UNKNOWN, CONTROL)))
    spm = kind == "llama"
    bos_default = spm or PRE_TOKENIZERS[_pre(facts)].add_bos
    prefix = spm and bool(facts.get("add_space_prefix", True))
    names = {name: _token(file, facts, core.n_vocab, f"{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    ends = {i for name, i in names.items() if i is not None and name != "bos"}
    template = file.metadata.get("tokenizer.chat_template")
    return Tokenizer(
        core=core,
        control=control,
        always=_names(core, types == USER_DEFINED),
        space_prefix="each" if prefix else "never",
        add_bos=bool(facts.get("add_bos_token", bos_default)),
        bos_id=names["bos"],
        eos_id=names["eos"],
        end_ids=frozenset(ends | {i for token, i in control.items() if token in END_TOKENS}),
        chat_template=str(template) if template else None,
        template_source=f"The chat template of {file.path}",
        special_names={
            f"{name}_token": core.token(i)
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if (i := _token(file, facts, core.n_vocab, f"{key}_token_id")) is not None
        },
    )


def _strings(file: GGUFFile, key: str) -> tuple[int, int]:
    """Return the offset of an array of strings in the file, and their number."""
    found = file.arrays[key]
    if found.type != STRING:
        raise FeatherbackError(f"{file.path} is damaged: {key} does not hold strings.")
    return found.offset, found.count


def _numbers(file: GGUFFile, key: str, what: str) -> NDArray[np.generic]:
    """Return an array with one number per token."""
    n = file.arrays[TOKENS].count
    if file.arrays[key].type == STRING:
        raise FeatherbackError(f"{file.path} is damaged: {key} does not hold numbers.")
    if (count := file.arrays[key].count) != n:
        raise FeatherbackError(f"{file.path} is damaged: {n} tokens but {count} {what}.")
    numbers = file.array(key)
    assert isinstance(numbers, np.ndarray)
    return numbers


def _types(file: GGUFFile) -> NDArray[np.int32]:
    if "tokenizer.ggml.token_type" not in file.arrays:
        return np.full(file.arrays[TOKENS].count, NORMAL, np.int32)
    return _numbers(file, "tokenizer.ggml.token_type", "token types").astype(np.int32)


def _names(core: _native.TextEncoder, chosen: NDArray[np.bool_]) -> dict[str, int]:
    """Map the texts of the chosen tokens to their ids. Tokens without text are ignored."""
    names = ((core.token(i), i) for i in np.flatnonzero(chosen).tolist())
    return {name: i for name, i in names if name}


def _token(file: GGUFFile, facts: Mapping[str, Scalar], n_vocab: int, key: str) -> int | None:
    value = facts.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < n_vocab:
        raise FeatherbackError(f"{file.path} is damaged: {key} is {value!r}, but the vocabulary has {n_vocab} tokens.")
    return value


def _byte_level(file: GGUFFile, types: NDArray[np.int32], pre: str) -> _native.TextEncoder:
    known = PRE_TOKENIZERS[pre]
    if "tokenizer.ggml.merges" not in file.arrays:
        raise FeatherbackError(f"{file.path} has a byte-level BPE tokenizer without merges.")
    try:
        return _native.byte_level_encoder(
            file.bytes,
            tokens=_strings(file, TOKENS),
            types=types,
            merges=_strings(file, "tokenizer.ggml.merges"),
            cuts=known.cuts,
            composes=known.composes,
            whole_words=known.whole_words,
        )
    except ValueError as error:
        raise FeatherbackError(f"{file.path} has a damaged tokenizer: {error}.") from error


def _sentencepiece(file: GGUFFile, types: NDArray[np.int32]) -> _native.TextEncoder:
    if "tokenizer.ggml.scores" not in file.arrays:
        raise FeatherbackError(f"{file.path} has a SentencePiece tokenizer without scores.")
    scores = _numbers(file, "tokenizer.ggml.scores", "scores")
    try:
        return _native.sentencepiece_encoder(
            file.bytes, tokens=_strings(file, TOKENS), types=types, scores=scores.astype(np.float32)
        )
    except ValueError as error:
        raise FeatherbackError(f"{file.path} has a damaged tokenizer: {error}.") from error
