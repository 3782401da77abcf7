"""The native encoders read tokenizer.json and give the same ids, texts and offsets as the `tokenizers` library."""

import json
import sys

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers

from featherback._native import TextEncoder, read_vocabulary
from featherback.data.tokenizers.library import LibraryCore
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.errors import FeatherbackError
from tests.data.library_tokenizers import ALWAYS, FAMILIES, byte_level, llama2, save, split
from tests.data.oracle import GPT2, QWEN2
from tests.data.support import STRINGS
from tests.data.test_text_encoder import run_child
from tests.data.torture import TORTURE, random_strings


def library(folder):
    core = Library.from_file(str(folder / "tokenizer.json"))
    core.encode_special_tokens = True
    return core


@pytest.mark.parametrize("family", FAMILIES)
def test_same_ids_and_text_as_the_library(family, tmp_path):
    folder = save(FAMILIES[family](), tmp_path)
    tokenizer, reference = load_tokenizer(folder), library(folder)
    assert isinstance(tokenizer.core, TextEncoder)
    assert tokenizer.note is None
    assert tokenizer.n_vocab == reference.get_vocab_size()
    for text in [*TORTURE, *STRINGS, "".join(TORTURE), *random_strings(len(family), 200)]:
        expected = reference.encode(text, add_special_tokens=False)
        ids = tokenizer.encode(text)
        assert ids == expected.ids, text
        assert tokenizer.core.decode(ids) == reference.decode(ids, skip_special_tokens=False), text
        if tokenizer.space_prefix == "never":  # the library's offsets include the characters that it inserts
            assert list(map(tuple, tokenizer.encode_with_offsets(text)[1].tolist())) == expected.offsets, text
    assert tokenizer.encode("cat", bos=True) == reference.encode("cat").ids


@pytest.mark.parametrize("family", ["qwen2", "qwen35", "gemma", "gpt-2", "metaspace first"])
@pytest.mark.parametrize("wide", [{}, {"lstrip": True}, {"rstrip": True}])
def test_tokens_that_are_found_in_any_text(family, wide, tmp_path):
    folder = save(FAMILIES[family](), tmp_path, always=ALWAYS[: 1 if wide else None], **wide)
    tokenizer, reference = load_tokenizer(folder), library(folder)
    assert isinstance(tokenizer.core, TextEncoder)
    texts = [*TORTURE, *STRINGS, "a <tool> b<tool><tool>  c\n\n\n\nd  \t\t e", "<tool>", " <tool> "]
    for text in texts:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids, text


def test_the_forms_that_files_have(tmp_path):
    """Escaped or not, indented or not, merges as strings or as pairs, members in any order."""
    folder = save(byte_level(*split(QWEN2), normalizer=normalizers.NFC()), tmp_path)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    expected = load_tokenizer(folder).encode("".join(TORTURE))
    pairs = [m if isinstance(m, list) else m.split(" ") for m in content["model"]["merges"]]
    reversed_vocabulary = dict(reversed(content["model"]["vocab"].items()))
    for merges in (pairs, [" ".join(pair) for pair in pairs]):
        model = {"merges": merges, **content["model"], "vocab": reversed_vocabulary}
        changed = {"model": {**model, "merges": merges}, **{k: v for k, v in content.items() if k != "model"}}
        for options in ({}, {"ensure_ascii": False}, {"indent": 2}):
            file.write_text(json.dumps(changed, **options), encoding="utf-8")
            assert load_tokenizer(folder).encode("".join(TORTURE)) == expected


UNKNOWN = {
    "a regular expression with an unknown escape": lambda: byte_level(*split(r"\w+|\W")),
    "the normalizer Lowercase": lambda: byte_level(*split(GPT2), normalizer=normalizers.Lowercase()),
    "a Unigram model": lambda: Library(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0)),
    "a WordLevel model": lambda: Library(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>")),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_the_library_reads_the_others_and_it_is_said(what, tmp_path):
    folder = save(UNKNOWN[what](), tmp_path)
    tokenizer, reference = load_tokenizer(folder), library(folder)
    assert not isinstance(tokenizer.core, TextEncoder)
    assert what in tokenizer.note
    assert "`tokenizers`" in tokenizer.note
    assert tokenizer.encode("a Bc") == reference.encode("a Bc", add_special_tokens=False).ids


@pytest.mark.parametrize("what", UNKNOWN)
def test_without_the_library(what, tmp_path, monkeypatch):
    """Only tokenizers that Featherback does not read itself need it, and the message says how to install it."""
    unknown, known = save(UNKNOWN[what](), tmp_path / "unknown"), save(FAMILIES["qwen2"](), tmp_path / "known")
    expected = load_tokenizer(known).encode("a Bc")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.delitem(sys.modules, "featherback.data.tokenizers.library", raising=False)
    assert load_tokenizer(known).encode("a Bc") == expected
    with pytest.raises(FeatherbackError) as refused:
        load_tokenizer(unknown)
    assert str(refused.value) == (
        f"{unknown / 'tokenizer.json'} needs {what}, which Featherback's own tokenizer does not support. The "
        "`tokenizers` library can read it, but is not installed: pip install 'featherback[tokenizers]'."
    )


DAMAGED = [
    "", "[]", "{", '{"model": {"vocab": {"a": 0}}', '{"model": {"vocab": {"a": -1}}}', '{"model": 3}',
    '{"model": {"vocab": {"a": 1e9}}}', '{"model": {"vocab": {"a": 99999999999}}}', '{"model": {}} x',
    '{"model": {"vocab": {"a": 0, "b": 0}}}', '{"model": {"vocab": {"\\ud800": 0}}}',
    '{"model": {"vocab": {"a\x01": 0}}}',
    '{"model": {"vocab": {"a": 0}, "merges": [["a"]]}}', '{"model": {"vocab": {"a": 0}, "merges": ["a b"]}}',
    '{"model": {"vocab": {"a": 0}, "merges": 3}}', "[" * 5000, '{"a":' * 5000,
    '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 99999999, "content": "x", "special": true}]}',
    '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "x"}]}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_files_end_in_a_sentence(content, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(content.encode())
    with pytest.raises(FeatherbackError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "v.json").write_bytes(b'{"model": {"vocab": {"\xff": 0}}}')
    with open(tmp_path / "v.json", "rb") as file, pytest.raises(ValueError, match="not UTF-8"):
        read_vocabulary(file.fileno())


_PEAK = (
    "import json, sys\n"
    "from featherback.core.system import machine\n"
    "from featherback.data.tokenizers.loader import load_tokenizer\n"
    "before = machine.peak_rss()\n"
    "size = load_tokenizer(sys.argv[1]).n_vocab\n"
    "print(json.dumps([size, (machine.peak_rss() - before) / 1e6, 'tokenizers' in sys.modules]))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_a_large_vocabulary_takes_little_memory(tmp_path):
    """150,000 tokens; the library takes 150 MB."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [a + b for a in letters for b in letters]
    tokens = [*letters, *pairs, *(a + b for a in pairs[:350] for b in letters)]
    merges = [f"{a} {b}" for a in letters for b in letters]
    merges += [f"{a} {b}" for a in pairs[:350] for b in letters]
    core = byte_level(*split(QWEN2))
    content = json.loads(core.to_str())
    content["model"] |= {"vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    size, grown, imported = run_child(_PEAK, tmp_path)
    assert size == len(tokens) > 150_000
    assert grown < 20
    assert not imported


MALFORMED = {
    "a negative number": {"added_tokens": [{"id": -1, "content": "<s>", "special": True}]},
    "a number of no vocabulary": {"added_tokens": [{"id": 10**25, "content": "<s>", "special": True}]},
    "a truth for a number": {"added_tokens": [{"id": True, "content": "<s>", "special": True}]},
    "a cut without pattern": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
    },
    "a list for an expression": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": []}}, {"type": "ByteLevel"}],
        }
    },
    "a word for a decoder": {"decoder": "x"},
    "a template without parts": {"post_processor": {"type": "TemplateProcessing"}},
    "a number for a token": {"post_processor": {"type": "BertProcessing", "cls": 3}},
}


@pytest.mark.parametrize("key", ["model", "normalizer"])
def test_a_key_that_is_there_twice_is_refused(key, tmp_path):
    """Readers differ in which value they use."""
    content = json.loads(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)).to_str())
    text = json.dumps(content)
    twice = f'{text[:-1]}, "{key[0]}\\u{ord(key[1]):04x}{key[2:]}": {{}}}}'
    (tmp_path / "tokenizer.json").write_text(twice)
    with pytest.raises(FeatherbackError, match=f"the key '{key}' appears twice"):
        load_tokenizer(tmp_path)


def test_a_library_that_fails_while_it_encodes_is_told():
    class Panic(BaseException):
        pass

    class Library:
        encode_special_tokens = False

        def encode(self, text, add_special_tokens):
            raise Panic("it panicked")

    core = LibraryCore(Library(), "a file")
    with pytest.raises(FeatherbackError, match="cannot encode 'ab' with a file: it panicked"):
        core.encode("ab", [(-1, 0, 2)], False)


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_parts_end_in_a_sentence(what, tmp_path):
    content = json.loads(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | MALFORMED[what]))
    with pytest.raises(FeatherbackError, match="is not a readable tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "core",
    [
        # The prefix is not the character that marks a space.
        lambda: _with(llama2(), normalizers.Sequence([normalizers.Prepend("a"), normalizers.Replace(" ", "▁")])),
        # Characters are converted to bytes twice.
        lambda: byte_level(
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Digits(),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ),
    ],
    ids=["another beginning", "bytes of bytes"],
)
def test_forms_that_only_look_known_go_to_the_library(core, tmp_path):
    library = core()
    library.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    assert ours.note
    assert ours.encode("é x 12") == library.encode("é x 12", add_special_tokens=False).ids


def _with(library, normalizer):
    library.normalizer = normalizer
    return library


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 1_000_000}}, "its 'prepend' has 1000000 characters"),
        (
            {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 10_000}},
            "its 'content' has 10000 characters",
        ),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}},
            "its 'normalizers' has 65 entries",
        ),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Sequence", "normalizers": [{"type": "NFC"}] * 60}] * 2,
                }
            },
            "its normalizer has 123 steps",
        ),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}] * 40,
                }
            },
            "the steps of its normalizer can lengthen a text",
        ),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 8_000}] * 2}},
            "the steps of its normalizer can lengthen a text",
        ),
    ],
)
def test_parts_of_absurd_size_are_refused(part, says, tmp_path):
    """A prefix of a megabyte before each piece of a text took 592 MB and a minute."""
    content = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | part))
    with pytest.raises(FeatherbackError, match=says) as refusal:
        load_tokenizer(tmp_path)
    assert "at most" in str(refusal.value)
