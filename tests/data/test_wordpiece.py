"""WordPiece against the `tokenizers` library, from a folder and from a GGUF file."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from featherback.data.tokenizers import wordpiece
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(33, 127)] + list("äéßøñ中文日ж한ᄀ“—")
PIECES = [*LETTERS, "the", "cafe", "un", "able", "ing", "naive", "中", "don"]
VOCABULARY = dict.fromkeys([*SPECIAL, *PIECES, *(f"##{piece}" for piece in PIECES if piece not in "中文日")])
TEXTS = [
    "The café is unable",
    "Naïve  ñandú,don't!",
    "中文x日 — “quoted” ж",
    "a\tb\nc\r\nd\x00e\u200bf\ufffdg\u00adh",
    "ÀÉÎ ßøñ İstanbul ǅ ﬁ",
    "한국어 각 ",
    "x" * 101,
    "x" * 100,
    "unknown😀word [CLS] [SEP] #a ##b",
    "",
    "   ",
    "a\u3000b\u2028c\x85d",
]


def library(lowercase: bool, strip_accents: bool | None) -> Library:
    found = Library(models.WordPiece({piece: i for i, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    found.decoder = decoders.WordPiece()
    return found


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    kinds = [
        *LETTERS,
        " ",
        " ",
        "\t",
        "\u0301",
        "A",
        "É",
        "ǆ",
        "\u200d",
        "😀",
        "the",
        "unable",
        "\ue000",
        "²",
        "٣",
        "$",
        "^",
    ]
    return ["".join(rng.choice(kinds) for _ in range(rng.randrange(30))) for _ in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    library(True, None).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    return [*tokenizer.encode(text, bos=True), tokenizer.eos_id]  # type: ignore[list-item]


@pytest.mark.parametrize(("lowercase", "strip_accents"), [(True, None), (False, None), (True, False), (False, True)])
def test_tokens_are_the_librarys(tmp_path: Path, lowercase: bool, strip_accents: bool | None) -> None:
    other = library(lowercase, strip_accents)
    other.save(str(tmp_path / "tokenizer.json"))
    mine = load_tokenizer(tmp_path)
    assert mine.note is None
    for text in TEXTS + random_texts(2000):
        assert tokens(mine, text) == other.encode(text).ids, repr(text)


def test_places_are_those_of_the_text(folder: Path) -> None:
    mine, other = load_tokenizer(folder), library(True, None)
    for text in TEXTS:
        ids, places = mine.encode_with_offsets(text)
        expected = other.encode(text, add_special_tokens=False)
        assert ids.tolist() == expected.ids
        starts = [start for start, _ in expected.offsets]
        assert places[:, 0].tolist() == starts, repr(text)


def test_gguf(tmp_path: Path, folder: Path) -> None:
    """The converter of llama.cpp marks the pieces that begin a word, and no others."""
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "bert")
    writer.add_tokenizer_model("bert")
    names = list(VOCABULARY)
    converted = [n[2:] if n.startswith("##") and len(n) > 2 else n if n in SPECIAL else f"▁{n}" for n in names]
    writer.add_token_list(converted)
    writer.add_token_types([3 if name in SPECIAL else 1 for name in names])
    for key, value in (("bos", 2), ("seperator", 3), ("unknown", 1)):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    mine, other = load_tokenizer(path), load_tokenizer(folder)
    for text in TEXTS + random_texts(300):
        assert tokens(mine, text) == tokens(other, text), repr(text)


def test_decoded_text(folder: Path) -> None:
    mine = load_tokenizer(folder)
    assert mine.decode(mine.encode("The café, unable!")) == "the cafe, unable!"


def test_control_tokens_are_not_found_in_texts(tmp_path: Path) -> None:
    other = library(True, None)
    other.add_special_tokens(SPECIAL)
    other.save(str(tmp_path / "tokenizer.json"))
    mine = load_tokenizer(tmp_path)
    assert 2 not in mine.encode("[CLS]")
    assert mine.encode("[CLS]", special=True) == [2]


def test_half_a_surrogate_pair_is_rejected(folder: Path) -> None:
    with pytest.raises(FeatherbackError, match="half a surrogate pair"):
        load_tokenizer(folder).encode("a\ud800")


@pytest.mark.parametrize("fault", ["_is_control", "_is_punctuation"])
def test_a_fault_is_found(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, fault, lambda char: False)
    with pytest.raises(AssertionError):
        test_tokens_are_the_librarys(tmp_path, True, None)


def test_shortest_first_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, "LONGEST", np.inf)
    with pytest.raises(AssertionError):
        test_tokens_are_the_librarys(tmp_path, True, None)
