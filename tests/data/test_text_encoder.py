"""The native encoders against the `tokenizers` library: the same ids and the same offsets, character by character."""

import functools
import json
import random
import re
import subprocess
import sys
import unicodedata
import zlib
from pathlib import Path

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from featherback._native import NameFinder, cut_text
from featherback.core.decode import encode
from featherback.data.source import Source
from featherback.data.tokenizers.gguf import BYTE, CONTROL, NORMAL, UNKNOWN
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.pre_tokenizers import PRE_TOKENIZERS
from featherback.errors import FeatherbackError
from tests.data.library_tokenizers import byte_level, save, split, trained
from tests.data.oracle import GPT2, GPT4O, LLAMA3, QWEN2, QWEN35, oracle
from tests.data.support import STRINGS, encode_plain, write_vocabulary_gguf
from tests.data.test_tokenizer import bytes_to_characters
from tests.data.torture import TORTURE, random_strings
from tests.support import tiers

KINDS = list({known: name for name, known in PRE_TOKENIZERS.items()}.values())  # one name of each kind


def code_points(among=1):
    """Return a random sample of all characters, one in `among`."""
    every = (chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    random_ = random.Random(among)
    return [c for c in every if among == 1 or c < "\u3000" or random_.random() < 1 / among]


@pytest.fixture(scope="module")
def byte_level_path(tmp_path_factory):
    """A file for each pre-tokenizer, written once."""
    tokens, merges = trained(False)

    @functools.lru_cache
    def path(pre):
        file = tmp_path_factory.mktemp("vocabulary") / "v.gguf"
        facts = {"tokenizer_pre": pre, "token_merges": merges}
        return write_vocabulary_gguf(file, "gpt2", tokens, [NORMAL] * len(tokens), **facts)

    return path


def check(path, texts):
    core, reference = load_tokenizer(path).core, oracle(path)
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False)
        ids, offsets = encode_plain(core, text)
        assert ids == expected.ids, text
        assert list(map(tuple, offsets)) == expected.offsets, text
        assert core.decode(expected.ids) == reference.decode(expected.ids, skip_special_tokens=False)
        whole = b"".join(map(core.token_bytes, ids)).decode(errors="replace")
        assert core.decode(ids) in (whole, whole.removeprefix(" ")), "tokens stand for the bytes of the text"


@pytest.mark.parametrize("pre", KINDS)
def test_byte_level(pre, byte_level_path):
    texts = [*TORTURE, *STRINGS, "".join(TORTURE), *random_strings(len(pre), 300)]
    check(byte_level_path(pre), texts)


CUT = {PRE_TOKENIZERS[name].cuts: name for name in KINDS}.values()  # one name of each way to cut


@pytest.mark.parametrize("among", tiers.some([40, 1], 1))
@pytest.mark.parametrize("pre", tiers.some(CUT, 4))
def test_every_code_point_is_cut_as_the_expressions_say(pre, among):
    known = PRE_TOKENIZERS[pre].cuts
    reference = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(e), "isolated") for e in known])
    letters = [c for c in code_points(among) if re.search("[strevmld]", c.casefold())]
    folded = "".join(f"a'{c}x a'{c}{c}x a'r{c}x a'V{c}x" for c in letters)  # the text after them shows where they end
    for text in ("".join(code_points(among)), folded):
        assert cut_text(text, known) == [piece for piece, _ in reference.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "expressions"),
    [
        ("gpt-2", (GPT2,)),
        ("smollm", (r"\p{N}", GPT2)),
        ("llama-bpe", (LLAMA3,)),
        ("qwen2", (QWEN2,)),
        ("qwen35", (QWEN35,)),
        ("gpt-4o", (GPT4O,)),
    ],
)
def test_expressions_are_as_published(pre, expressions):
    assert PRE_TOKENIZERS[pre].cuts == expressions


SYNTAX = [
    *(r"a|b|ab|", r"(a|ab)(c|bcd)", r"(?:a|b)+c", r"((a|b)(c|d)?)+", r"a{2}b{1,3}c{2,}", r"(ab){2,3}", r"a*b?c+"),
    *(r"a*+a", r"a++b", r"a?+ab", r"(?=ab)a", r"a(?!b)", r"(?!a)[a-d]", r"(?i:s|k)+", r"(?i:[sk])x|S", r"a$"),
    *(
        r"[^a-c\s]+",
        r"[\]\-\\^a]+",
        r"[a\-c]+",
        r"[-a]+",
        r"[a-]+",
        r"[]a]+",
        r"[^]a]+",
        r"\S\s\S",
        r"[\S]+",
        r"[\s\p{P}]+",
        r"\d\D",
    ),
    *(r".", r".+", r"\.\*\+\?\(\)\[\]\{\}\|\$\^", r"\p{Lu}\p{Ll}*", r"\p{Lt}|\p{Lm}|\p{Lo}", r"[^\p{N}\p{S}]{2}"),
    *(r"[à-ÿ字]+", r"字|é", r"(?:\p{L}\p{M}*)+", r"(a(b(c|d)|e)f)?g", r"\s+$", r"(?=(\d{3})+(?!\d))", r"(?=\s)"),
]


@pytest.mark.parametrize("expression", SYNTAX)
def test_expressions_match_as_onigurumas(expression):
    reference = pre_tokenizers.Split(Regex(expression), "isolated")
    random_ = random.Random(expression)
    made = ["".join(random_.choices("aabbccddefgsSkKxX-^].*\\ \n123é字ſ\u212a", k=30)) for _ in range(300)]
    for text in [*made, "abc", "abcd", "a.*+?()[]{}|$^b", *TORTURE, *random_strings(3, 100)]:
        if text:
            assert cut_text(text, [expression]) == [piece for piece, _ in reference.pre_tokenize_str(text)], text


@pytest.mark.parametrize(
    "expression",
    [
        *("(", ")", "a)", "[", "[a", "*a", "a**", "a{", "a{2", "a{3,1}", "a{9999}", "a{2}+", "a+?", "a{1,2}?", "\\"),
        *(
            r"\w",
            r"\b",
            r"\x41",
            r"\1",
            "^a",
            r"\Aa",
            "(?<=a)b",
            "(?<n>a)",
            "(?i)a",
            "(?>a)",
            "(?#a)",
            "(a*)*",
            "(?=a)*",
        ),
        *("[a[b]]", "[a&&b]", "[[:alpha:]]", r"[a-\s]", r"\p{Han}", r"\p{L", r"\p{^L}", r"\P{L}", "(?i:ss)", "(?i:é)"),
        *("(" * 99 + ")" * 99, "((a{99}b){99}c){99}"),
    ],
)
def test_other_syntax_is_refused(expression):
    with pytest.raises(ValueError, match="a regular expression with"):
        cut_text("", [expression])


def test_an_expression_that_never_ends_is_stopped(tmp_path):
    folder = save(byte_level(*split("(?:a|aa)+$")), tmp_path)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode("aaab")) == "aaab"
    with pytest.raises(FeatherbackError, match="cannot encode a text that takes a regular expression of the file too"):
        tokenizer.encode("a" * 99 + "b")


def pairs_gguf(path, pre):
    """Write a vocabulary of bytes and of all pairs of common ones: the tokens of a text show where it was cut."""
    characters = bytes_to_characters()
    common = [
        characters[b] for b in [*range(0x20, 0x7F), *b"\n\r\t\xc2\xcc\xd0\xe0\xe2\xe4\xf0\x80\x81\x8d\x9f\xa0\xb8"]
    ]
    pairs = [(a, b) for a in common for b in common]
    tokens = [*characters.values(), *(a + b for a, b in pairs)]
    facts = {"tokenizer_pre": pre, "token_merges": [f"{a} {b}" for a, b in pairs]}
    return write_vocabulary_gguf(path, "gpt2", tokens, [NORMAL] * len(tokens), **facts)


def same_in_llama_cpp(pre):
    """Return which texts llama.cpp cuts as the models' own tokenizers do."""
    known = PRE_TOKENIZERS[pre]
    if known.composes:
        return lambda text: unicodedata.is_normalized("NFC", text)
    if any(r"\p{Lu}" in expression for expression in known.cuts):  # it knows the case of ASCII letters only
        return str.isascii
    if any("\u0800-" in expression for expression in known.cuts):  # it sees no other white space in this range
        return lambda text: all(c.isascii() or not c.isspace() for c in text)
    return lambda text: True


LLAMA_CPP_TEXTS = [*TORTURE, *random_strings(5, 60)]


@pytest.mark.parametrize("pre", KINDS)
def test_pieces_are_llama_cpps(pre, tmp_path):
    """Compare with checksums of llama.cpp's ids (revision 0c1e5709, of llama-cpp-python 0.3.36).

    Where llama.cpp differs from the models' own tokenizers, texts that show it are left out.
    """
    golden = json.loads((Path(__file__).parent / "llama_cpp_pieces.json").read_text())[pre]
    core, same = load_tokenizer(pairs_gguf(tmp_path / "v.gguf", pre)).core, same_in_llama_cpp(pre)
    compared = 0
    for text, expected in zip(LLAMA_CPP_TEXTS, golden.split(), strict=True):
        if not same(text):
            continue
        compared += 1
        ids = " ".join(map(str, encode_plain(core, text)[0]))
        assert f"{zlib.crc32(ids.encode()) & 0xFFFF:04x}" == expected, text
    assert compared >= 15


def test_every_character_that_composes(byte_level_path):
    """Characters alone, and in random sequences."""
    nfd = normalizers.NFD().normalize_str
    composing = [c for c in code_points() if unicodedata.combining(c) or nfd(c) != c]
    jamo = [chr(c) for c in range(0x1100, 0x1200)]
    random_ = random.Random(0)
    few = [c for c in composing if not "\uac00" <= c <= "\ud7a3"] + random_.sample(composing, 99) + jamo
    mixed = ["".join(random_.choices([*few, "e", "a"], k=12)) for _ in range(600)]
    marks = [c for c in few if unicodedata.combining(c)]
    accents = ["".join(random_.choices([*marks, *"aeouAEOU"], k=12)) for _ in range(300)]
    check(byte_level_path("qwen2"), [*("e".join(composing[i::20]) for i in range(20)), *mixed, *accents])


def pieces(with_bytes):
    tokens, _ = trained(True)
    base = ["<unk>", "<s>"] + [f"<0x{b:02X}>" for b in range(256)] * with_bytes
    types = [UNKNOWN, CONTROL] + [BYTE] * 256 * with_bytes + [NORMAL] * len(tokens)
    scores = [0.0] * len(base) + [-float(i) for i in range(len(tokens))]
    return base + tokens, types, scores


@pytest.mark.parametrize("with_bytes", [True, False])
def test_sentencepiece(with_bytes, tmp_path):
    tokens, types, scores = pieces(with_bytes)
    names = [token.encode() for token in tokens]
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", names, types, token_scores=scores)
    texts = [*TORTURE, *STRINGS, "".join(TORTURE), *random_strings(7, 300)]
    check(path, texts)


def test_sentencepiece_takes_the_leftmost_of_equals(tmp_path):
    """A tie for which the library has no option: "aba" can be joined in two overlapping ways."""
    tokens = ["<unk>", "a", "b", "ab", "ba", "aba"]
    types = [UNKNOWN, *[NORMAL] * 5]
    path = write_vocabulary_gguf(
        tmp_path / "v.gguf",
        "llama",
        [t.encode() for t in tokens],
        types,
        token_scores=[0.0, 0.0, 0.0, -1.0, -1.0, -2.0],
    )
    core = load_tokenizer(path).core
    assert encode_plain(core, "aba")[0] == [5]
    assert encode_plain(core, "ababa")[0] == [3, 5]


def test_bytes_without_a_token_are_left_out(tmp_path):
    """They are removed before merging, as in the library, and the offsets of the text after them stay correct."""
    path = write_vocabulary_gguf(
        tmp_path / "v.gguf", "gpt2", ["a", "b", "ab"], [NORMAL] * 3, token_merges=["a b"], tokenizer_pre="gpt-2"
    )
    core, reference = load_tokenizer(path).core, oracle(path)
    for text, places in {"é ab": [[2, 4]], "aéb": [[0, 3]], "béa b": [[0, 2], [2, 3], [4, 5]]}.items():
        assert encode_plain(core, text) == (reference.encode(text).ids, places)


# --- names ---


def spelled(names, text):
    """Find names like a regular expression: the longest name at each place, from left to right."""
    longest = sorted(names, key=len, reverse=True)
    pattern = re.compile("(?=(" + "|".join(map(re.escape, longest)) + "))")
    return [(names.index(m[1]), m.start(), m.start() + len(m[1])) for m in pattern.finditer(text)]


def test_names_are_found():
    random_ = random.Random(1)
    for _ in range(300):
        letters = random_.choice(["ab", "abc", "aé字👍"])
        words = {"".join(random_.choices(letters, k=random_.randrange(1, 6))) for _ in range(random_.randrange(1, 9))}
        names = sorted(words)
        text = "".join(random_.choices(letters + "-", k=60))
        assert NameFinder(names).find(text) == spelled(names, text)


def run_child(code, *arguments):
    """Run code in a process and return the JSON that it prints. A minute of CPU time means that it hangs."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
    command = [sys.executable, "-c", limit + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_thousand_control_tokens_are_searched_in_one_pass():
    code = (
        "from tests.data.support import byte_tokenizer\n"
        "t = byte_tokenizer()\n"
        "t.control = {'<|reserved_special_token_%d|>' % i: i for i in range(5000)}\n"
        "t.__post_init__()\n"
        "text = 'a < b <| c <|reserved_special_token_x ' * 50_000 + '<|reserved_special_token_4999|>'\n"
        "print([i for i, _, _ in t.control_tokens(text)])"
    )
    assert run_child(code) == [4999]


# --- memory ---

CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture(scope="module")
def big_vocabulary(tmp_path_factory):
    """Make 150,000 tokens, as in Qwen: all pairs and many triples of bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(a, b) for a in letters for b in letters]
    merges = [*pairs, *((a + b, c) for a, b in pairs for c in letters)][:150_000]
    special = ["<|im_start|>", "<|im_end|>"]
    tokens = [*letters, *(a + b for a, b in merges), *special]
    return write_vocabulary_gguf(
        tmp_path_factory.mktemp("big") / "v.gguf",
        "gpt2",
        tokens,
        [NORMAL] * (len(tokens) - 2) + [CONTROL] * 2,
        tokenizer_pre="qwen2",
        token_merges=[f"{a} {b}" for a, b in merges],
        chat_template=CHAT,
        eos_token_id=len(tokens) - 1,
    )


def prepared(model, data):
    """Prepare data in a separate process and return the report."""
    source = encode(Source.of(data, long="cut"))
    config = {"model": str(model), "data": source, "out": str(data) + ".tok", "seq_len": 256}
    command = [sys.executable, "-m", "featherback.data.prepare", json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert "report" in last, last
    return last["report"]


def test_chat_data_with_a_large_vocabulary_fits_the_budget(big_vocabulary, tmp_path):
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because. " * 40}]
    data = tmp_path / "d.jsonl"
    data.write_text((json.dumps({"messages": turns}) + "\n") * 200)
    assert prepared(big_vocabulary, data)["peak_rss_mb"] < 64


@pytest.mark.parametrize("letters", tiers.some(["acgt", "acgt    ,.", "acgté "], 1))
def test_a_line_of_a_megabyte_fits_the_budget(letters, big_vocabulary, tmp_path):
    data = tmp_path / "d.txt"
    data.write_bytes("".join(random.Random(2).choices(letters, k=1_000_000)).encode()[:1_000_000])
    assert prepared(big_vocabulary, data)["peak_rss_mb"] < 96


# --- hostile files ---

_PEAK = (
    "import json, sys\n"
    "from featherback.core.system import machine\n"
    "from featherback.data.tokenizers.loader import load_tokenizer\n"
    "before = machine.peak_rss()\n"
    "core = load_tokenizer(sys.argv[1]).core\n"
    "ids = core.encode('ab' * 30_000, [(-1, 0, 60_000)], False)[0]\n"
    "print(json.dumps([len(ids), (machine.peak_rss() - before) / 1e6]))"
)


def test_a_piece_of_a_hundred_thousand_characters(tmp_path):
    """Earlier it was split in every possible way, which took 10 GB."""
    tokens = [b"<unk>", b"a", b"b", b"ab", b"ab" * 50_000]
    types = [UNKNOWN, *[NORMAL] * 4]
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", tokens, types, token_scores=[0.0] * 5)
    count, grown = run_child(_PEAK, path)
    assert count == 30_000
    assert grown < 50


def test_pieces_that_are_beginnings_of_each_other(tmp_path):
    """Each join makes a union nearly as long as the longest piece."""
    tokens = [b"<unk>", b"b", *(b"ab" * n for n in range(1, 900)), b"a"]
    types = [UNKNOWN, *[NORMAL] * (len(tokens) - 1)]
    scores = [-float(i) for i in range(len(tokens))]
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", tokens, types, token_scores=scores)
    assert run_child(_PEAK, path)[1] < 50


def damaged(path, at, value):
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)
    return path


def test_damaged_vocabularies_end_in_a_sentence(byte_level_path, tmp_path):
    """Random changes in the header give a tokenizer or a FeatherbackError."""
    source = byte_level_path("qwen2").read_bytes()
    random_ = random.Random(3)
    refused, working = [], 0
    for _ in range(200):
        path = tmp_path / "v.gguf"
        path.write_bytes(source)
        for _ in range(random_.choice([1, 1, 20])):
            damaged(path, random_.randrange(len(source)), bytes([random_.randrange(256)]))
        try:
            core = load_tokenizer(path).core
            core.decode(encode_plain(core, TORTURE[0])[0])
            working += 1
        except FeatherbackError as error:
            refused.append(str(error))
    assert working
    assert refused
    assert all(str(path) in sentence for sentence in refused)


def test_scores_that_are_no_numbers_are_refused(tmp_path):
    path = write_vocabulary_gguf(tmp_path / "v.gguf", "llama", [b"a", b"b"], [1, 1], token_scores=[0.0, float("nan")])
    with pytest.raises(FeatherbackError, match="damaged tokenizer: token 1's score is NaN"):
        load_tokenizer(path)


@pytest.mark.parametrize("key", ["tokens", "token_type", "merges"])
def test_arrays_of_another_kind_are_refused(key, tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    arrays = {"tokens": ["a", "b", "ab"], "token_type": [1, 1, 1], "merges": ["a b"]}
    arrays[key] = ["x", "y", "z"] if key == "token_type" else [1, 2, 3]
    for name, array in arrays.items():
        writer.add_array(f"tokenizer.ggml.{name}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(FeatherbackError, match=f"{key} does not hold"):
        load_tokenizer(path)
