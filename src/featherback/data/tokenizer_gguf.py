"""Build the tokenizer from the GGUF file alone: byte-level BPE ("gpt2") and SentencePiece BPE ("llama")."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Core

from featherback.data.tokenizer import END_TOKENS, Tokenizer
from featherback.errors import FeatherbackError
from featherback.weights.gguf import GGUFFile

# GGML's token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# Pre-tokenizers by the name in tokenizer.ggml.pre: text is cut by each expression in turn. "default" is what
# llama.cpp does for a file without that name, so that training sees the tokens that serving will.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
}
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")


def from_gguf(path: str | Path) -> Tokenizer:
    """The tokenizer stored in a GGUF file."""
    file = GGUFFile(path)
    try:
        return _build(file)
    finally:
        file.close()


def _build(file: GGUFFile) -> Tokenizer:
    facts = {k.removeprefix("tokenizer."): v for k, v in file.metadata.items() if k.startswith("tokenizer.")}
    kind = facts.get("ggml.model")
    if kind is None or "tokenizer.ggml.tokens" not in file.arrays:
        raise FeatherbackError(
            f"{file.path} holds no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens)."
        )
    tokens = [str(token) for token in file.array("tokenizer.ggml.tokens")]
    types = _types(file, len(tokens))
    if kind == "gpt2":
        core = _byte_level(file, tokens, str(facts.get("ggml.pre", "default")))
    elif kind == "llama":
        core = _sentencepiece(file, tokens, types)
    else:
        raise FeatherbackError(
            f"{file.path} has a tokenizer of type {kind!r}; supported are 'gpt2' and 'llama'."
        )
    control = {
        token: i for i, (token, t) in enumerate(zip(tokens, types, strict=True)) if t in (UNKNOWN, CONTROL)
    }
    always = {
        token: i
        for i, (token, t) in enumerate(zip(tokens, types, strict=True))
        if t == USER_DEFINED and token
    }
    spm = kind == "llama"
    bos_default = spm or facts.get("ggml.pre") in _LLAMA3_NAMES
    prefix = spm and bool(facts.get("ggml.add_space_prefix", True))
    names = {name: _token(file, facts, tokens, f"{name}_token_id") for name in ("bos", "eos", "eot", "eom")}
    ends = {i for name, i in names.items() if i is not None and name != "bos"}
    return Tokenizer(
        core=core,
        control=control,
        always=always,
        space_prefix="each" if prefix else "never",
        add_bos=bool(facts.get("ggml.add_bos_token", bos_default)),
        bos_id=names["bos"],
        eos_id=names["eos"],
        end_ids=frozenset(ends | {i for token, i in control.items() if token in END_TOKENS}),
        chat_template=str(facts["chat_template"]) if facts.get("chat_template") else None,
        template_source=f"The chat template of {file.path}",
        special_names={
            f"{name}_token": tokens[i]
            for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
            if (i := _token(file, facts, tokens, f"{key}_token_id")) is not None
        },
    )


def _types(file: GGUFFile, n: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in file.arrays:
        return [NORMAL] * n
    types = [int(t) for t in file.array("tokenizer.ggml.token_type")]
    if len(types) != n:
        raise FeatherbackError(f"{file.path} is damaged: {n} tokens but {len(types)} token types.")
    return types


def _token(file: GGUFFile, facts: dict[str, Any], tokens: Sequence[str], key: str) -> int | None:
    value = facts.get(f"ggml.{key}")
    if value is None:
        return None
    if not 0 <= int(value) < len(tokens):
        raise FeatherbackError(
            f"{file.path} is damaged: {key} is {value}, the vocabulary has {len(tokens)} tokens."
        )
    return int(value)


def _byte_level(file: GGUFFile, tokens: list[str], pre: str) -> Core:
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise FeatherbackError(
            f"{file.path} needs the pre-tokenizer {pre!r}, which is not supported (known: {known}); cutting "
            "text differently from the model's own tokenizer would train on wrong tokens."
        )
    if "tokenizer.ggml.merges" not in file.arrays:
        raise FeatherbackError(f"{file.path} has a byte-level BPE tokenizer without merges.")
    merges = [_halves(str(merge)) for merge in file.array("tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in _LLAMA3_NAMES)
    except Exception as error:  # the library has no exception of its own for it
        raise FeatherbackError(f"{file.path} has a damaged tokenizer: {error}.") from error
    core = Core(model)
    if pre == "qwen2":  # Qwen's own tokenizer composes characters first
        core.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(r), "isolated") for r in PRE_TOKENIZERS[pre]]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    return core


def _halves(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(file: GGUFFile, tokens: list[str], types: list[int]) -> Core:
    if "tokenizer.ggml.scores" not in file.arrays:
        raise FeatherbackError(f"{file.path} has a SentencePiece tokenizer without scores.")
    scores = [float(score) for score in file.array("tokenizer.ggml.scores")]
    if len(scores) != len(tokens):
        raise FeatherbackError(f"{file.path} is damaged: {len(tokens)} tokens but {len(scores)} scores.")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = next((token for token, t in zip(tokens, types, strict=True) if t == UNKNOWN), None)
    core = Core(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(tokens, types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    core.normalizer = normalizers.Replace(" ", "▁")  # the leading space is Tokenizer's business
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core


def _merges(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Merge rules in order of rank. SentencePiece always joins the neighbours whose union scores highest; so
    every way to write a piece as two pieces is a rule, ranked by the piece's score. Only normal pieces take
    part: text that spells a control or byte token must not become it."""
    place = {token: i for i, (token, t) in enumerate(zip(tokens, types, strict=True)) if t == NORMAL}
    rules: list[tuple[float, str, str]] = []
    for piece, i in place.items():
        halves = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        known = sorted((place[a], place[b], a, b) for a, b in halves if a in place and b in place)
        rules.extend((-scores[i], a, b) for _, _, a, b in known)
    rules.sort(key=lambda rule: rule[0])
    return [(a, b) for _, a, b in rules]
