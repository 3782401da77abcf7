"""The native encoders against the `tokenizers` library: the same ids and the same offsets, character by character."""

import functools
import random
import re
import unicodedata

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from featherback._native import NameFinder, cut_text
from featherback.data.tokenizer_gguf import BYTE, CONTROL, NORMAL, PRE_TOKENIZERS, UNKNOWN
from featherback.data.tokenizer_loader import load_tokenizer
from tests.data.oracle import PUBLISHED, oracle
from tests.data.support import STRINGS, write_vocabulary_gguf
from tests.data.torture import TORTURE, random_strings

CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


@functools.lru_cache
def trained(metaspace):
    """Tokens and merges of a byte-pair encoding of the torture text."""
    core = Tokenizer(models.BPE())
    if metaspace:
        core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    else:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [] if metaspace else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False, limit_alphabet=400)
    core.train_from_iterator([*TORTURE, *STRINGS] * 2, trainer)
    state = core.model.__getstate__()
    return sorted(core.get_vocab(), key=core.get_vocab().get), state


def merges_of(core_state):
    import json

    merges = json.loads(core_state)["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


@pytest.fixture(scope="module")
def byte_level_path(tmp_path_factory):
    """A file for each pre-tokenizer, written once."""
    tokens, state = trained(False)

    @functools.lru_cache
    def path(pre):
        file = tmp_path_factory.mktemp("vocabulary") / "v.gguf"
        facts = {"tokenizer_pre": pre, "token_merges": merges_of(state)}
        return write_vocabulary_gguf(file, "gpt2", tokens, [NORMAL] * len(tokens), **facts)

    return path


def check(path, texts):
    core, reference = load_tokenizer(path).core, oracle(path)
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False)
        assert core.encode_with_offsets(text) == (expected.ids, expected.offsets), text
        assert core.encode(text) == expected.ids
        assert core.decode(expected.ids) == reference.decode(expected.ids, skip_special_tokens=False)


def test_every_pre_tokenizer_is_tested():
    assert PUBLISHED.keys() == PRE_TOKENIZERS.keys()


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level(pre, byte_level_path):
    texts = [*TORTURE, *STRINGS, "".join(TORTURE), *random_strings(len(pre), 300)]
    check(byte_level_path(pre), texts)


@pytest.mark.parametrize("pre", PUBLISHED)
def test_every_code_point_is_cut_as_the_expressions_say(pre):
    cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in PUBLISHED[pre]]
    reference = pre_tokenizers.Sequence(cuts)
    folded = "".join(f"a'{c} " for c in CODE_POINTS if re.search("[strevmld]", c.casefold()))
    for text in ("".join(CODE_POINTS), folded):
        assert cut_text(text, PRE_TOKENIZERS[pre]) == [piece for piece, _ in reference.pre_tokenize_str(text)]


def test_every_character_that_composes(byte_level_path):
    """Alone, and in sequences of any order."""
    nfd = normalizers.NFD().normalize_str
    composing = [c for c in CODE_POINTS if unicodedata.combining(c) or nfd(c) != c]
    jamo = [chr(c) for c in range(0x1100, 0x1200)]
    random_ = random.Random(0)
    few = [c for c in composing if not "\uac00" <= c <= "\ud7a3"] + random_.sample(composing, 99) + jamo
    mixed = ["".join(random_.choices([*few, "e", "a"], k=12)) for _ in range(600)]
    marks = [c for c in few if unicodedata.combining(c)]
    accents = ["".join(random_.choices([*marks, *"aeouAEOU"], k=12)) for _ in range(300)]
    check(byte_level_path("qwen2"), [*("e".join(composing[i::20]) for i in range(20)), *mixed, *accents])


def pieces(with_bytes, unknown=True):
    tokens, _ = trained(True)
    base = ["<unk>"] * unknown + ["<s>"] + [f"<0x{b:02X}>" for b in range(256)] * with_bytes
    types = [UNKNOWN] * unknown + [CONTROL] + [BYTE] * 256 * with_bytes + [NORMAL] * len(tokens)
    scores = [0.0] * len(base) + [-float(i) for i in range(len(tokens))]
    return base + tokens, types, scores


@pytest.mark.parametrize("with_bytes", [True, False])
def test_sentencepiece(with_bytes, tmp_path):
    tokens, types, scores = pieces(with_bytes)
    names = [token.encode() for token in tokens]
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", names, types, token_scores=scores)
    texts = [*TORTURE, *STRINGS, "".join(TORTURE), *random_strings(7, 300)]
    check(path, texts)
