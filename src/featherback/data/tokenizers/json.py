"""Read a Hugging Face tokenizer.json and build the native encoder for it.

The file is read as a stream (csrc/text/json_vocabulary.cpp). The tables of tokens and merges never become Python
objects; everything else in the file is in the dictionary `facts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from featherback import _native
from featherback.core.files import open_regular
from featherback.data.tokenizers.gguf import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from featherback.data.tokenizers.pre_tokenizers import DIGIT, DIGITS, GPT2
from featherback.data.tokenizers.tokenizer import SpacePrefix
from featherback.data.tokenizers.wordpiece import LONGEST, Rules, WordPieceCore, strings
from featherback.errors import FeatherbackError, excerpt

_MALFORMED = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""Exceptions that malformed parts of a file cause."""
_MOST_TOKENS = 1 << 22
_MOST_STRING, _MOST_STEPS, _MOST_GROWTH = 1 << 13, 64, 64
"""Limits for the facts. The longest known expression has 500 characters, and the longest sequence ten steps."""
_CHARACTER_MAP = "precompiled_charsmap"  # a table with its own check (`check_precompiled`)
WORDPIECE = "WordPiece"
_STEPS = ("normalizers", "pretokenizers", "processors", "decoders", "single", "pair")


class UnknownTokenizerError(Exception):
    """The native encoders do not support the tokenizer. The message names the unsupported part."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched in the text before any other step."""

    id: int
    content: str
    special: bool
    lstrip: bool
    rstrip: bool
    plain: bool
    """Whether it is matched anywhere in the original text, not only as a whole word or after normalisation."""


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json. Its rule for leading spaces is removed from the steps, and `Tokenizer` applies it."""

    path: Path
    vocabulary: _native.JsonVocabulary
    facts: Mapping[str, Any]
    added: tuple[AddedToken, ...]
    steps: Mapping[str, Any]
    """"normalizer" and "pre_tokenizer"."""
    space_prefix: SpacePrefix
    space_like: str
    begins_with: int | None
    """The id that the file's post-processor puts before a text."""
    ends_with: int | None = None
    """The id that the post-processor puts after a text."""

    def ids(self, *tokens: str) -> list[int | None]:
        """Return the ids of tokens, None for unknown ones."""
        added = {token.content: token.id for token in self.added}
        found = self.vocabulary.find(list(tokens))
        return [added.get(token, i if i >= 0 else None) for token, i in zip(tokens, found, strict=True)]


def read_tokenizer(path: Path) -> TokenizerFile:
    """Read a tokenizer.json. Raises FeatherbackError if it cannot be read or is not a valid tokenizer."""
    try:
        with open_regular(path) as file:
            vocabulary = _native.read_vocabulary(file.fileno())
        facts = json.loads(vocabulary.facts, object_pairs_hook=_object)
        _check_sizes(facts)
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            _check_growth(name, facts.get(name))
        added = tuple(map(_added, facts.get("added_tokens") or ()))
        if not isinstance(facts["model"], dict):
            raise TypeError("its model is not an object")
        steps = {key: facts.get(key) for key in ("normalizer", "pre_tokenizer")}
        rule, space_like = _take_space_prefix(steps)
        return TokenizerFile(
            path, vocabulary, facts, added, steps, rule, space_like, _begins_with(facts), _ends_with(facts)
        )
    except OSError as error:
        raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
    except _MALFORMED as error:
        raise FeatherbackError(f"{path} is not a readable tokenizer: {error}.") from error


def _check_sizes(value: Any, name: str = "") -> None:
    """Raise ValueError for a string or a list of steps longer than in any real tokenizer.

    A step that inserts text does so in each piece of the text, so a long insertion could fill the memory.
    """
    if isinstance(value, str):
        if len(value) > _MOST_STRING and name != _CHARACTER_MAP:
            raise ValueError(f"its {excerpt(name)} has {len(value)} characters; at most {_MOST_STRING} are allowed")
    elif isinstance(value, list) and len(value) > _MOST_STEPS and name in _STEPS:
        raise ValueError(f"its {excerpt(name)} has {len(value)} entries; at most {_MOST_STEPS} are allowed")
    elif isinstance(value, (list, dict)):
        for key, each in value.items() if isinstance(value, dict) else ((name, each) for each in value):
            if isinstance(value, dict) and len(key) > _MOST_STRING:
                raise ValueError(f"it has a key of {len(key)} characters; at most {_MOST_STRING} are allowed")
            _check_sizes(each, key)


def _check_growth(name: str, step: Any) -> None:
    """Raise ValueError for small steps that together lengthen a text more than any real tokenizer does."""
    steps = list(_nested(step))
    if len(steps) > _MOST_STEPS:
        raise ValueError(f"its {name} has {len(steps)} steps; at most {_MOST_STEPS} are allowed")
    growth, put = 1.0, 0
    for each in steps:
        content, pattern = each.get("content"), each.get("pattern")
        if isinstance(content, str) and isinstance(pattern, dict):
            replaced = pattern.get("String")
            growth *= max(1.0, len(content) / len(replaced or "x") if isinstance(replaced, str) else len(content))
        prepended = each.get("prepend")
        put += len(prepended) if isinstance(prepended, str) else 0
    if growth > _MOST_GROWTH or put > _MOST_STRING:
        raise ValueError(
            f"the steps of its {name} can lengthen a text too much; at most {_MOST_GROWTH} times as long and "
            f"{_MOST_STRING} more characters are allowed"
        )


def _nested(step: Any) -> Iterator[dict[str, Any]]:
    """Yield a step and the steps nested in it."""
    if isinstance(step, list):
        for each in step:
            yield from _nested(each)
    elif isinstance(step, dict):
        yield step
        for key in _STEPS:
            yield from _nested(step.get(key))


def native_core(file: TokenizerFile) -> _native.TextEncoder | WordPieceCore:
    """Build the native encoder.

    Raises UnknownTokenizerError if the file needs unsupported steps, and FeatherbackError if it is invalid.
    """
    model = file.facts["model"]
    if model.get("type") == WORDPIECE:
        return _wordpiece(file, model)
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        _require(not model.get(key), f"a model with {key}")
    # Old files do not name the type. They hold byte-pair encodings too, recognised by their merges.
    _require(model.get("type", "BPE") == "BPE" and file.vocabulary.size > 0, f"a {model.get('type')} model")
    _require(all(token.plain for token in file.added), "added tokens that match only whole words or normalised text")
    try:
        cuts = [step["type"] for step in _steps(file.steps["pre_tokenizer"], "pretokenizers")]
        if cuts[-1:] == ["ByteLevel"]:
            _require("ByteLevel" not in cuts[:-1], "a ByteLevel pre-tokenizer that is not the last one")
            return _byte_level(file, model)
        return _sentencepiece(file, model)
    except _MALFORMED as error:
        raise FeatherbackError(f"{file.path} is not a readable tokenizer: {error}.") from error


def _wordpiece(file: TokenizerFile, model: Mapping[str, Any]) -> WordPieceCore:
    """Return BERT's tokenizer."""
    normalizer = _steps(file.steps["normalizer"], "normalizers")
    cuts = [step["type"] for step in _steps(file.steps["pre_tokenizer"], "pretokenizers")]
    _require(cuts == ["BertPreTokenizer"], f"the pre-tokenizer {' + '.join(cuts)} with a WordPiece model")
    _require([step["type"] for step in normalizer] == ["BertNormalizer"], "a WordPiece model without BertNormalizer")
    _require(all(token.plain for token in file.added), "added tokens that match only whole words or normalised text")
    _require(model.get("max_input_chars_per_word", LONGEST) == LONGEST, "a limit of the characters of a word")
    step, unknown = normalizer[0], file.ids(str(model.get("unk_token", "[UNK]")))[0]
    _require(unknown is not None, "characters without a token")
    assert unknown is not None
    lower, strips = bool(step.get("lowercase", True)), step.get("strip_accents")
    rules = Rules(
        lower,
        lower if strips is None else bool(strips),
        bool(step.get("clean_text", True)),
        bool(step.get("handle_chinese_chars", True)),
    )
    for token in file.added:
        file.vocabulary.add(token.id, token.content)
    size = file.vocabulary.size
    pieces = {piece: i for i, piece in enumerate(strings(file.vocabulary.tokens, 0, size)) if piece}
    return WordPieceCore(pieces, size, unknown, str(model.get("continuing_subword_prefix", "##")), rules)


def _byte_level(file: TokenizerFile, model: Mapping[str, Any]) -> _native.TextEncoder:
    _require(not model.get("byte_fallback") and model.get("unk_token") is None, "bytes with an unknown token")
    normalizer = [step["type"] for step in _steps(file.steps["normalizer"], "normalizers")]
    _require(normalizer in ([], ["NFC"]), f"the normalizer {' + '.join(normalizer)}")
    decoder = [step["type"] for step in _steps(file.facts.get("decoder"), "decoders")]
    _require(decoder == ["ByteLevel"], f"the decoder {' + '.join(decoder)}")
    cuts = []
    for step in _steps(file.steps["pre_tokenizer"], "pretokenizers"):
        cuts += _cuts(step)
    vocabulary = file.vocabulary
    for token in file.added:
        vocabulary.add(token.id, token.content)
    tokens, merges = _strings(vocabulary)
    return _native.byte_level_encoder(
        tokens,
        tokens=(0, vocabulary.size),
        types=_types(file),
        merges=(0, vocabulary.n_merges),
        cuts=cuts,
        composes=normalizer == ["NFC"],
        whole_words=bool(model.get("ignore_merges")),
        merges_file=merges,
    )


def _cuts(step: Mapping[str, Any]) -> list[str]:
    """Return the regular expressions of one pre-tokenizer."""
    kind = step["type"]
    if kind == "ByteLevel":
        return [GPT2] if step.get("use_regex", True) else []
    if kind == "Digits":
        return [DIGIT if step.get("individual_digits") else DIGITS]
    _require(kind == "Split", f"the pre-tokenizer {kind}")
    expression = step["pattern"].get("Regex")
    _require(expression is not None, "a pre-tokenizer that splits at a string")
    _require(step["behavior"] == "Isolated" and not step["invert"], "a pre-tokenizer that removes or joins pieces")
    try:
        _native.cut_text("", [expression])
    except ValueError as error:
        raise UnknownTokenizerError(str(error)) from None
    return [expression]


def _sentencepiece(file: TokenizerFile, model: Mapping[str, Any]) -> _native.TextEncoder:
    for step in _steps(file.steps["normalizer"], "normalizers"):
        _require(_is_space_mark(step), f"the normalizer {step['type']}")
    for step in _steps(file.steps["pre_tokenizer"], "pretokenizers"):
        marks = step["type"] == "Metaspace" and step.get("replacement") == "▁" and step.get("split") is False
        # Gemma's split, which finds no spaces after the normalizer
        _require(marks or _is_idle_split(step, file.steps), f"the pre-tokenizer {step['type']}")
    _require(_marks_spaces(file.steps), "a model that does not mark spaces with ▁")
    _require(not model.get("ignore_merges"), "ignore_merges with a SentencePiece model")
    decoder = [step["type"] for step in _steps(file.facts.get("decoder"), "decoders")]
    strips = {("Replace", "ByteFallback", "Fuse", "Strip"): True, ("Replace", "ByteFallback", "Fuse"): False}
    _require(tuple(decoder) in strips, f"the decoder {' + '.join(decoder)}")
    vocabulary = file.vocabulary
    names = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
    spelled = file.ids(*names)
    unknown = file.ids(str(model["unk_token"]))[0] if model.get("unk_token") is not None else None
    complete = bool(names) and None not in spelled
    _require(complete or (unknown is not None and model.get("fuse_unk")), "characters without a token")
    for token in file.added:
        vocabulary.add(token.id, token.content)
    types = _types(file)
    types[[i for i in spelled if i is not None]] = BYTE
    if unknown is not None:
        types[unknown] = UNKNOWN
    tokens, merges = _strings(vocabulary)
    return _native.sentencepiece_encoder(
        tokens,
        tokens=(0, vocabulary.size),
        types=types,
        scores=None,
        merges=(0, vocabulary.n_merges),
        strips_space=strips[tuple(decoder)],
        merges_file=merges,
    )


def _is_space_mark(step: Mapping[str, Any]) -> bool:
    return bool(step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"] == "▁")


def _marks_spaces(steps: Mapping[str, Any]) -> bool:
    return any(map(_is_space_mark, _steps(steps["normalizer"], "normalizers"))) or any(
        step["type"] == "Metaspace" for step in _steps(steps["pre_tokenizer"], "pretokenizers")
    )


def _is_idle_split(step: Mapping[str, Any], steps: Mapping[str, Any]) -> bool:
    """Whether a step splits at spaces, all of which the normalizer has replaced."""
    replaced = any(map(_is_space_mark, _steps(steps["normalizer"], "normalizers")))
    return bool(replaced and step["type"] == "Split" and step["pattern"] == {"String": " "})


def _strings(vocabulary: _native.JsonVocabulary) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(vocabulary.tokens, np.uint8), np.frombuffer(vocabulary.merges, np.uint8)


def _types(file: TokenizerFile) -> np.ndarray:
    types = np.full(file.vocabulary.size, NORMAL, np.int32)
    for token in file.added:
        types[token.id] = CONTROL if token.special else USER_DEFINED
    return types


def _require(known: object, what: str) -> None:
    if not known:
        raise UnknownTokenizerError(what)


def _begins_with(facts: Mapping[str, Any]) -> int | None:
    for step in _steps(facts.get("post_processor"), "processors"):
        if step["type"] == "TemplateProcessing" and step["single"]:
            name = step["single"][0].get("SpecialToken", {}).get("id")
            if name is not None:
                return int(step["special_tokens"][name]["ids"][0])
        elif step["type"] in ("RobertaProcessing", "BertProcessing"):
            return int(step["cls"][1])
    return None


def _ends_with(facts: Mapping[str, Any]) -> int | None:
    for step in _steps(facts.get("post_processor"), "processors"):
        if step["type"] == "TemplateProcessing" and step["single"]:
            name = step["single"][-1].get("SpecialToken", {}).get("id")
            if name is not None:
                return int(step["special_tokens"][name]["ids"][0])
        elif step["type"] in ("RobertaProcessing", "BertProcessing"):
            return int(step["sep"][1])
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary; ValueError for a repeated key, because readers differ in which value they use."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {excerpt(key)} appears twice")
        found[key] = value
    return found


def _added(values: Mapping[str, Any]) -> AddedToken:
    number, content = values["id"], values["content"]
    if type(number) is not int or not 0 <= number < _MOST_TOKENS or not isinstance(content, str):
        raise TypeError("an added token has no valid id or content")
    return AddedToken(
        number,
        content,
        special=bool(values.get("special")),
        lstrip=bool(values.get("lstrip")),
        rstrip=bool(values.get("rstrip")),
        plain=not values.get("single_word") and bool(values.get("special") or not values.get("normalized", True)),
    )


def _take_space_prefix(steps: dict[str, Any]) -> tuple[SpacePrefix, str]:
    """Remove the leading-space rule from `steps`. Returns the rule and the characters that count as a space."""
    before = _steps(steps["normalizer"], "normalizers")
    if before[:1] == [{"type": "Prepend", "prepend": "▁"}] and any(map(_is_space_mark, before)):
        steps["normalizer"] = {"type": "Sequence", "normalizers": before[1:]}
        return "each", ""
    rule: SpacePrefix = "never"
    space_like = ""
    for step in _steps(steps["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            if scheme not in ("always", "first", "never"):
                raise ValueError(f"unknown prepend_scheme {scheme!r}")
            rule, space_like = ("each" if scheme == "always" else scheme), " ▁"
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
        elif step["type"] == "ByteLevel" and step.get("add_prefix_space", True):
            rule, space_like = "each", " "
            step["add_prefix_space"] = False
    return rule, space_like


def _steps(state: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the members of a sequence of normalizers or pre-tokenizers, or the single step."""
    if state is None:
        return []
    return list(state[key]) if state["type"] == "Sequence" else [state]
