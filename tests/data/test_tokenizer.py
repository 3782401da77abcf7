"""Tokenizers of real and small GGUF files against independent implementations."""

import functools
import itertools
import json
from pathlib import Path

import pytest
import regex
from tokenizers import Tokenizer as Core
from tokenizers import models, pre_tokenizers, trainers

from featherback.data.tokenizers.gguf import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.errors import FeatherbackError
from tests.data.support import STRINGS, write_vocabulary_gguf

SAMPLE = [Path(__file__).read_text(encoding="utf-8"), *STRINGS, "the cat sat on the mat " * 9, "日本語 " * 9]


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return load_tokenizer(smollm2_path)


# --- the real model ---


def test_smollm2_facts(smollm2):
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.add_bos, smollm2.n_vocab) == (1, 2, False, 49152)
    assert smollm2.end_ids == {0, 2}
    assert smollm2.special_names["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in smollm2.chat_template


def test_smollm2_against_llama_cpp(smollm2):
    """Compare with ids from llama.cpp (Python binding 0.3.36), with and without parsing control tokens."""
    golden = json.loads((Path(__file__).parent / "smollm2_llama_cpp.json").read_text(encoding="utf-8"))
    assert len(golden) > 40
    for text, plain, special in golden:
        assert smollm2.encode(text) == plain, text
        assert smollm2.encode(text, special=True) == special, text


def test_smollm2_decodes_what_it_encodes(smollm2):
    for text in STRINGS:
        assert smollm2.decode(smollm2.encode(text)) == text
        assert smollm2.decode(smollm2.encode(text, special=True), special=True) == text
    assert smollm2.decode(smollm2.encode("a<|im_end|>b", special=True)) == "ab"


def test_smollm2_streams(smollm2):
    for text in STRINGS:
        stream = smollm2.stream()
        pieces = [stream.push(token) for token in smollm2.encode(text)]
        assert "".join(pieces) + stream.flush() == text
        assert not any("\ufffd" in piece for piece in pieces)


def test_unfinished_character_is_flushed(smollm2):
    stream = smollm2.stream()
    first = smollm2.encode("👍")[0]
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"


def test_control_tokens_only_where_asked(smollm2):
    text = "<|im_start|>user\nHi<|im_end|>"
    assert not set(smollm2.encode(text)) & set(smollm2.control.values())
    assert smollm2.encode(text, special=True)[0] == 1
    ids, offsets = smollm2.encode_with_offsets(text, special=True, protected=[(0, 17)])
    assert 1 not in ids
    assert ids[-1] == 2
    assert offsets[-1].tolist() == [len(text) - 10, len(text)]
    # A token that begins inside a protected span is text too.
    assert 2 not in smollm2.encode_with_offsets("a<|im_end|>", special=True, protected=[(0, 2)])[0]
    assert 2 in smollm2.encode_with_offsets("a<|im_end|>", special=True, protected=[(0, 1)])[0]


def test_offsets_cover_the_text(smollm2):
    for text in STRINGS:
        ids, offsets = smollm2.encode_with_offsets(text, special=True)
        assert ids.tolist() == smollm2.encode(text, special=True)
        covered = set()
        for start, end in offsets:
            covered.update(range(start, end))
        assert covered == set(range(len(text)))


def test_half_a_surrogate_pair(smollm2):
    with pytest.raises(FeatherbackError, match="surrogate"):
        smollm2.encode("\ud800")


# --- byte-level BPE, against a plain implementation of it ---


@functools.lru_cache
def trained_bpe():
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(SAMPLE, trainer)
    model = json.loads(core.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]


def bytes_to_characters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def cut(text, expressions):
    pieces = [text]
    for expression in expressions:
        cuts = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(expression, piece):
                cuts += [piece[at : match.start()], match[0]]
                at = match.end()
            cuts.append(piece[at:])
        pieces = [piece for piece in cuts if piece]
    return pieces


def plain_bpe(text, expressions, tokens, merges):
    ids = {token: i for i, token in enumerate(tokens)}
    rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
    characters = bytes_to_characters()
    out = []
    for piece in cut(text, expressions):
        parts = [characters[b] for b in piece.encode()]
        while len(parts) > 1:
            best = min(range(len(parts) - 1), key=lambda i: rank.get((parts[i], parts[i + 1]), len(rank)))
            if (parts[best], parts[best + 1]) not in rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        out += [ids[part] for part in parts]
    return out


def byte_level_gguf(path, pre, **facts):
    tokens, merges = trained_bpe()
    special = ["<|begin|>", "<|end|>", "<tool_call>"]
    types = [NORMAL] * len(tokens) + [CONTROL, CONTROL, USER_DEFINED]
    begin = {"bos_token_id": len(tokens), "eos_token_id": len(tokens) + 1, "token_merges": merges}
    if pre is not None:
        begin["tokenizer_pre"] = pre
    return write_vocabulary_gguf(path, "gpt2", tokens + special, types, **begin, **facts)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "lfm2", "qwen2", "qwen35"])
def test_byte_level_against_a_plain_implementation(pre, tmp_path):
    tokens, merges = trained_bpe()
    tokenizer = load_tokenizer(byte_level_gguf(tmp_path / "v.gguf", pre))
    for text in [*STRINGS, *(s.swapcase() for s in STRINGS)]:
        assert tokenizer.encode(text) == plain_bpe(text, PRE_TOKENIZERS[pre].cuts, tokens, merges), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.add_bos == (pre in ("llama-bpe", "lfm2"))  # llama.cpp's default for files without this key


def test_missing_pre_tokenizer_is_llama_cpps_default(tmp_path):
    named = load_tokenizer(byte_level_gguf(tmp_path / "a.gguf", "default"))
    unnamed = load_tokenizer(byte_level_gguf(tmp_path / "b.gguf", None))
    for text in STRINGS:
        assert named.encode(text) == unnamed.encode(text)
    assert named.encode("1234") != load_tokenizer(byte_level_gguf(tmp_path / "c.gguf", "qwen2")).encode("1234")


def test_user_defined_tokens_are_always_matched(tmp_path):
    tokenizer = load_tokenizer(byte_level_gguf(tmp_path / "v.gguf", "qwen2", add_bos_token=True))
    tool, end = tokenizer.always["<tool_call>"], tokenizer.control["<|end|>"]
    assert tokenizer.encode("<tool_call><|end|>").count(tool) == 1
    assert end not in tokenizer.encode("<tool_call><|end|>")
    assert tokenizer.encode("<tool_call><|end|>", special=True, bos=True) == [tokenizer.bos_id, tool, end]
    assert [t for t, _, _ in tokenizer.control_tokens("a<tool_call>b<|end|>")] == [end]


def test_qwen_composes_characters(tmp_path):
    tokenizer = load_tokenizer(byte_level_gguf(tmp_path / "v.gguf", "qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")
    ids, offsets = tokenizer.encode_with_offsets("xe\u0301y")
    assert offsets[-1][1] == 4
    assert len(ids) == len(offsets)


# --- SentencePiece, against a plain implementation of it ---


@functools.lru_cache
def trained_pieces():
    core = Core(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=700, limit_alphabet=120, show_progress=False)
    core.train_from_iterator(SAMPLE, trainer)
    model = json.loads(core.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    base = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    merged = sorted((p for p in pieces if len(p) > 1), key=pieces.index)
    score = {piece: -float(i) for i, piece in enumerate(merged)}
    scores = [0.0] * len(base) + [score.get(p, -1e4 - i) for i, p in enumerate(pieces)]
    return base + pieces, types, scores


def plain_sentencepiece(text, tokens, types, scores):
    normal = {t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind == NORMAL}
    bytes_at = tokens.index("<0x00>")
    parts = list(("▁" + text.replace(" ", "▁")) if text else "")
    while True:
        pairs = enumerate(itertools.pairwise(parts))
        joined = [(scores[normal[a + b]], -i) for i, (a, b) in pairs if a + b in normal]
        if not joined:
            break
        i = -max(joined)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    out = []
    for part in parts:
        out += [normal[part]] if part in normal else [bytes_at + b for b in part.encode()]
    return out


@pytest.fixture
def pieces_path(tmp_path):
    tokens, types, scores = trained_pieces()
    facts = {"token_scores": scores, "bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0}
    return write_vocabulary_gguf(tmp_path / "v.gguf", "llama", [t.encode() for t in tokens], types, **facts)


def test_sentencepiece_against_a_plain_implementation(pieces_path):
    vocabulary = trained_pieces()
    tokenizer = load_tokenizer(pieces_path)
    for text in STRINGS:
        assert tokenizer.encode(text) == plain_sentencepiece(text, *vocabulary), text
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " "), text


def test_sentencepiece_spaces_and_special_tokens(pieces_path):
    tokenizer = load_tokenizer(pieces_path)
    assert tokenizer.add_bos
    assert tokenizer.end_ids == {2}
    cat = tokenizer.encode("cat")
    assert tokenizer.encode("<s>cat</s>cat", special=True, bos=True) == [1, 1, *cat, 2, *cat]  # as llama.cpp
    assert not {0, 1, 2} & set(tokenizer.encode("<s>cat</s><unk>"))
    assert tokenizer.encode("cat") + tokenizer.encode(" cat", continues=True) == tokenizer.encode("cat cat")
    text = "the cat</s> sat"
    ids, offsets = tokenizer.encode_with_offsets(text, special=True)
    assert text[slice(*offsets[ids.tolist().index(2)])] == "</s>"
    assert all(0 <= start <= end <= len(text) for start, end in offsets)


# --- damaged or unknown ---


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tokenizer_pre": "martian"}, "pre-tokenizer 'martian', which is not supported"),
        ({"token_merges": None}, "without merges"),
        ({"token_merges": ["zz qq"]}, "damaged tokenizer"),
    ],
)
def test_bad_byte_level(change, word, tmp_path):
    tokens, merges = trained_bpe()
    facts = {"tokenizer_pre": "qwen2", "token_merges": merges} | change
    facts = {name: value for name, value in facts.items() if value is not None}
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "gpt2", tokens, [NORMAL] * len(tokens), **facts)
    with pytest.raises(FeatherbackError, match=word):
        load_tokenizer(path)


def test_a_control_token_without_text_is_none(tmp_path):
    """Earlier it matched everywhere, in an endless loop."""
    tokens, merges = trained_bpe()
    types = [NORMAL] * len(tokens) + [CONTROL]
    facts = {"tokenizer_pre": "qwen2", "token_merges": merges}
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "gpt2", [*tokens, ""], types, **facts)
    tokenizer = load_tokenizer(path)
    assert tokenizer.control == {}
    assert tokenizer.encode("cat", special=True) == tokenizer.encode("cat")


def test_bad_others(tmp_path):
    tokens, types, scores = trained_pieces()
    names = [token.encode() for token in tokens]
    path = write_vocabulary_gguf(tmp_path / "a.gguf", "llama", names, types)
    with pytest.raises(FeatherbackError, match="without scores"):
        load_tokenizer(path)
    path = write_vocabulary_gguf(tmp_path / "b.gguf", "llama", names, types, token_scores=scores[:-1])
    with pytest.raises(FeatherbackError, match="scores"):
        load_tokenizer(path)
    path = write_vocabulary_gguf(tmp_path / "c.gguf", "llama", names, types[:-1], token_scores=scores)
    with pytest.raises(FeatherbackError, match="token types"):
        load_tokenizer(path)
    path = write_vocabulary_gguf(tmp_path / "d.gguf", "rwkv", names, types)
    with pytest.raises(FeatherbackError, match="'rwkv'"):
        load_tokenizer(path)
