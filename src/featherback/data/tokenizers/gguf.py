"""Load the tokenizer of a GGUF file: byte-level BPE ("gpt2"), SentencePiece BPE ("llama") or WordPiece ("bert").

The vocabulary is read directly from the mapped file (csrc/text). Python strings are made only for the names of control
and user-defined tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback import _native
from featherback.core.terminal import quoted
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.data.tokenizers.special import (
    ADDED_ENDS,
    DEFAULT,
    TOOL_USE,
    control_names,
    correction_note,
    find_ends,
    joined,
    range_note,
)
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.data.tokenizers.wordpiece import WordPieceCore, strings
from featherback.engine.formats.gguf import STRING, GGUFFile, Scalar
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.split import open_gguf
from featherback.errors import FeatherbackError

TOKENS = "tokenizer.ggml.tokens"
WORDPIECE = "bert"
_USUAL = {"bos": 101, "seperator": 102, "unknown": 100}  # the second name is spelled like this in the files
# GGML's token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def from_gguf(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a GGUF file, or of the first part of a split one."""
    with reading(open_gguf(path)) as file:
        tokenizer = _build(file)  # it keeps the map
        file.drop_header()  # encoding rarely needs it again
        return tokenizer


def check_known(path: str | Path) -> None:
    """Raise FeatherbackError if a GGUF file has no tokenizer of a known type. The vocabulary is not read."""
    with reading(open_gguf(path)) as file:
        _facts(file)


def _facts(file: GGUFFile) -> dict[str, Scalar]:
    """Return the tokenizer's metadata without the prefix of the keys.

    Raises FeatherbackError if its type is unknown.
    """
    facts = {k.removeprefix("tokenizer.ggml."): v for k, v in file.metadata.items() if k.startswith("tokenizer.ggml.")}
    kind = facts.get("model")
    if kind is None or TOKENS not in file.arrays:
        raise FeatherbackError(f"{file.path} contains no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens).")
    if kind not in ("gpt2", "llama", WORDPIECE):
        raise FeatherbackError(f"{file.path} has the tokenizer type {kind!r}; expected one of: gpt2, llama, bert.")
    if kind == "gpt2" and (pre := _pre(facts)) not in PRE_TOKENIZERS:
        raise FeatherbackError(
            f"{file.path} needs the pre-tokenizer {pre!r}, which is not supported. Another pre-tokenizer would split "
            "text into tokens that the model does not expect. If you know one that splits as it does, name it in a "
            f"copy of the file: {quoted('gguf-new-metadata', '--pre-tokenizer', 'llama-bpe', file.path, 'COPY.gguf')}"
        )
    return facts


def _pre(facts: Mapping[str, Scalar]) -> str:
    """Return the name of the pre-tokenizer; for a file without it, llama.cpp's default."""
    return str(facts.get("pre", "default"))


def _build(file: GGUFFile) -> Tokenizer:
    facts = _facts(file)
    if facts["model"] == WORDPIECE:
        return _wordpiece(file, facts)
    spm = facts["model"] == "llama"
    n_vocab = file.arrays[TOKENS].count
    ids, outside = _special_ids(facts, n_vocab)
    template = joined(
        {
            name: str(file.metadata.get(f"tokenizer.chat_template{suffix}") or "") or None
            for name, suffix in ((DEFAULT, ""), (TOOL_USE, f".{TOOL_USE}"))
        }
    )
    types = _types(file)
    wrong = _correct(file, types, template, [ids[key] for key in ("bos", "eos", "eot", "eom") if key in ids])
    core = _sentencepiece(file, types) if spm else _byte_level(file, types, _pre(facts))
    if spm:
        _set_defaults(core, types, ids)
    control = _names(core, np.isin(types, (UNKNOWN, CONTROL)))
    prefix = spm and bool(facts.get("add_space_prefix", True))
    ends = find_ends(file.path, control, [ids[key] for key in ("eos", "eot", "eom") if key in ids], ids.get("eos"))
    notes = correction_note(file.path, map(core.token, wrong)), range_note(file.path, outside, n_vocab), ends.note
    return Tokenizer(
        core=core,
        control=control,
        always=_names(core, types == USER_DEFINED),
        space_prefix="each" if prefix else "never",
        add_bos=bool(facts.get("add_bos_token", spm or PRE_TOKENIZERS[_pre(facts)].add_bos)),
        bos_id=ids.get("bos"),
        eos_id=ends.eos_id,
        end_ids=ends.ids,
        chat_template=template,
        template_source=f"The chat template of {file.path}",
        special_names={
            f"{name}_token": core.token(ids[key])
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if key in ids
        },
        corrections=tuple(note for note in notes if note),
    )


def _wordpiece(file: GGUFFile, facts: Mapping[str, Scalar]) -> Tokenizer:
    """Return BERT's tokenizer. Files mark the pieces that begin a word, and say nothing of the lower case."""
    offset, count = _strings(file, TOKENS)
    ids = {}
    for name, usual in _USUAL.items():
        value = facts.get(f"{name}_token_id", facts.get("cls_token_id", usual) if name == "bos" else usual)
        if not isinstance(value, int) or not 0 <= value < count:
            raise FeatherbackError(f"{file.path} names no {name}_token_id of its vocabulary of {count} tokens.")
        ids[name] = value
    types, pieces, control = _types(file), dict[str, int](), dict[str, int]()
    for i, piece in enumerate(strings(file.bytes, offset, count)):
        if types[i] in (UNKNOWN, CONTROL) or i in ids.values():
            control[piece.removeprefix("▁")] = i
        else:
            begins = piece.startswith("▁") or (piece[:1] + piece[-1:] == "[]" and len(piece) > 2)  # [unused0]
            pieces[piece.removeprefix("▁") if begins else f"##{piece}"] = i
    return Tokenizer(
        core=WordPieceCore(control | pieces, count, ids["unknown"]),
        control=control,
        add_bos=True,
        bos_id=ids["bos"],
        eos_id=ids["seperator"],
        end_ids=frozenset((ids["seperator"],)),
    )


def _special_ids(facts: Mapping[str, Scalar], n_vocab: int) -> tuple[dict[str, int], dict[str, Scalar]]:
    """Return the special tokens that the file names, by key, and the keys whose values are outside the vocabulary."""
    ids: dict[str, int] = {}
    outside: dict[str, Scalar] = {}
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        value = facts.get(key := f"{name}_token_id")
        if isinstance(value, int) and 0 <= value < n_vocab:
            ids[name] = value
        elif value is not None:
            outside[key] = value
    return ids, outside


def _set_defaults(core: _native.TextEncoder, types: NDArray[np.int32], ids: dict[str, int]) -> None:
    """Add SentencePiece's special tokens to `ids` where the file names none: 1 begins a text and 2 ends it."""
    for name, default in (("bos", 1), ("eos", 2)):
        if name not in ids and core.n_vocab > default and types[default] == CONTROL:
            ids[name] = default


def _correct(file: GGUFFile, types: NDArray[np.int32], template: str | None, named: list[int]) -> list[int]:
    """Set the type of tokens that are control tokens by their use. Return their ids."""
    written = control_names(template)
    try:
        found = dict(_native.find_strings(file.bytes, _strings(file, TOKENS), [*written, *ADDED_ENDS]))
    except ValueError as error:
        raise FeatherbackError(f"{file.path} has a damaged tokenizer: {error}.") from error
    used = {*named, *(i for i, name in found.items() if name in written)}
    wrong = [i for i in {*used, *found} if types[i] == USER_DEFINED or (types[i] == NORMAL and i in used)]
    types[wrong] = CONTROL
    return wrong


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
