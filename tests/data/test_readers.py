"""Data files: their examples, and errors with file and place."""

import json
import os

import pytest

from featherback.data.containers import CONTAINERS, container_of
from featherback.data.containers.text import read_text as text_of
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.readers import data_files
from featherback.data.source import Source
from featherback.errors import FeatherbackError

CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def write(tmp_path, *lines, name="data.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines))
    return path


def items(path, **how):
    """Read a file, including bad records."""
    return [item for file in data_files(Source.of(path, **how)) for item in file.examples()]


def read(path, **how):
    """Read the examples of a file; the first bad record raises its error."""
    found = items(path, **how)
    for item in found:
        if isinstance(item, Bad):
            raise FeatherbackError(f"{item.where}: {item.problem}")
    return found


def read_text(path):
    return text_of(Input(path))


def detect(path):
    found = container_of(Input(path))
    return next(name for name in CONTAINERS.names if CONTAINERS[name] is found)


def test_shapes(tmp_path):
    path = write(tmp_path, CHAT, b"", {"prompt": "p", "completion": "c", "id": 7}, b"   ", {"text": "t"})
    chat, pair, text = read(path)
    assert chat.messages == CHAT["messages"]
    assert (pair.prompt, pair.completion, pair.unused) == ("p", "c", ("id",))
    assert text.text == "t"
    assert text.where == f"{path}, line 5"


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')
    assert [example.text for example in read(path)] == ["a", "b"]
    path = tmp_path / "data.txt"
    path.write_bytes("\ufeffa\r\nb\u2028c\n".encode())
    assert list(read_text(path)) == ["a\n", "b\u2028c\n"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b"x", "jsonl"),
        ("a.JSON", b"x", "jsonl"),
        ("a.txt", b"{}", "text"),
        ("a.md", b"# x", "text"),
        ("noname", b'\n {"text": "x"}', "jsonl"),
        ("noname", b' [{"text": "x"}]', "json_array"),
        ("a.jsonl", b'\xef\xbb\xbf[{"text": "x"}]', "json_array"),
        ("a.csv", b"[a,b", "csv"),
        ("a.tsv", b"a\tb", "tsv"),
        ("noname", b"PAR1", "parquet"),
    ],
)
def test_detect(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert detect(tmp_path / name) == expected


def test_detect_complains(tmp_path):
    with pytest.raises(FeatherbackError, match=r"none\.jsonl does not exist"):
        detect(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(FeatherbackError, match="is empty"):
        detect(tmp_path / "empty.jsonl")
    (tmp_path / "data.xyz").write_text("a,b")
    with pytest.raises(FeatherbackError, match="unknown format"):
        detect(tmp_path / "data.xyz")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (b"{'text': 'a'}", "Python's notation, not JSON. Write it with json.dumps"),
        (b"{text: 1}", "not valid JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"text": "a"', "not valid JSON"),
        (b'[{"text": "a"},', "not valid JSON: Expecting value at column 16"),
        (b'"text"', "expected a JSON object, found a string"),
        ([CHAT["messages"][0]], r'a conversation without a name. Write it as one object {"messages": \[...\]}'),
        ([1, 2], r"expected a JSON object, found an array\."),
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "not valid JSON"),
        (
            {"asked": "a", "said": "b"},
            "found 'asked', 'said'. To choose the columns: --map prompt=asked --map completion=said",
        ),
        ({}, "found none"),
        ({"prompt": "a"}, '"completion" is missing'),
        ({"completion": "a"}, '"prompt" is missing'),
        ({"prompt": "a", "completion": ""}, '"completion" is empty'),
        ({"prompt": ["a"], "completion": "b"}, '"prompt" must be a string, not an array'),
        ({"text": None}, '"text" must be a string, not null'),
        ({"text": ""}, '"text" is empty'),
        ({"messages": "a"}, "non-empty list"),
        ({"messages": [{"role": "user"}]}, 'Message 1 has no "content"'),
        ({**CHAT, "tools": [{}]}, 'Tool 1 must be an object with the "name" of a function'),
        ({"text": "a", "system": "b"}, '"system" cannot be combined with "text"'),
        ({"prompt": "a", "completion": "b", "system": 1}, '"system" must be a string, not a number'),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, "there are two system messages"),
        (b'{"text": "' + b"a" * (16 << 20) + b'"}', "longer than 16 MB"),
    ],
)
def test_bad_lines(tmp_path, line, word):
    path = write(tmp_path, CHAT, b"", line)
    with pytest.raises(FeatherbackError, match=word) as complaint:
        read(path)
    assert str(complaint.value).startswith(f"{path}, line 3: ")
    assert "\n" not in str(complaint.value)


def test_system_beside_a_prompt_or_messages(tmp_path):
    """Earlier it was dropped silently."""
    rows = [{"prompt": "p", "completion": "c", "system": "s"}, {**CHAT, "system": "s"}, {**CHAT, "system": ""}]
    pair, chat, empty = read(write(tmp_path, *rows))
    assert pair.system == "s"
    assert chat.messages == [{"role": "system", "content": "s"}, *CHAT["messages"]]
    assert empty.messages == CHAT["messages"]


@pytest.mark.parametrize("read", [detect, read, lambda path: list(read_text(path))])
def test_what_is_not_a_file(tmp_path, read):
    """Reading a pipe without a writer, or an endless device, would never finish."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(FeatherbackError, match=r"pipe.jsonl is a pipe, not a file"):
        read(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    with pytest.raises(FeatherbackError, match=r"zero.txt is a device, not a file"):
        read(tmp_path / "zero.txt")


def test_a_line_without_end_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("featherback.data.containers.text._PIECE", 5)
    (tmp_path / "data.txt").write_text("é日本語é\nab\n")
    pieces = list(read_text(tmp_path / "data.txt"))
    assert "".join(pieces) == "é日本語é\nab\n"
    assert len(pieces) == 4


def test_the_place_of_what_is_not_utf8_counts_lines_not_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("featherback.data.containers.text._PIECE", 2)
    (tmp_path / "data.txt").write_bytes(b"abcdefg\nb\n\xff\n")
    with pytest.raises(FeatherbackError, match=r"data.txt, line 3: not UTF-8 text"):
        list(read_text(tmp_path / "data.txt"))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_windows_line_ends_across_pieces(size, tmp_path, monkeypatch):
    monkeypatch.setattr("featherback.data.containers.text._PIECE", size)
    (tmp_path / "data.txt").write_bytes(b"a\r\nb\r\r\n\rc\r")
    assert "".join(read_text(tmp_path / "data.txt")) == "a\nb\r\n\rc\r"


def test_only_blank_lines(tmp_path):
    with pytest.raises(FeatherbackError, match="contains no examples, only blank lines"):
        read(write(tmp_path, b"", b"  ", b""))


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "data.txt").write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(FeatherbackError, match="line 3: not UTF-8"):
        list(read_text(tmp_path / "data.txt"))
