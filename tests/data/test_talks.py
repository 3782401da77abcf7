"""Subtitles, texts with front matter, and what holds for conversations of every program."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import featherback as fb
from featherback.core.decode import decode, encode
from featherback.data.containers import looks_like_data
from featherback.data.prepare import prepare
from featherback.data.readers import data_files
from featherback.data.source import Source
from featherback.errors import FeatherbackError
from tests.data.talks import notes, talks, write
from tests.data.test_mail import mail, mbox
from tests.data.test_readers import detect, items
from tests.data.test_whatsapp import IOS
from tests.support.tiny_chat import write_tiny_chat

# --- subtitles ---

SRT = "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello,</i>\n{\\an8}Anna.\n\n2\n00:00:03,000 --> 00:00:04,000\n42\n\n"
VTT = (
    "WEBVTT - title\nKind: captions\n\nNOTE\nhidden\n\nSTYLE\n::cue {}\n\nintro\n00:01.000 --> 00:02.500 align:start\n"
    "<v Ben>Hello,\nAnna.\n\n00:03.000 --> 00:04.000\nAnna.\n<00:03.500><c.red>42</c>\n"
)


@pytest.mark.parametrize(("name", "text"), [("a.srt", SRT), ("a.vtt", VTT), ("a", SRT), ("a.txt", VTT)])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_subtitles(tmp_path: Path, name: str, text: str, end: str) -> None:
    path = write(tmp_path / name, "\ufeff" + text.replace("\n", end))
    assert detect(path) == "subtitles"
    [file] = data_files(Source.of(path))
    assert ["".join(each.pieces) for each in file.documents()] == ["Hello,\nAnna.\n42\n"]


# --- texts ---


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("a.md", "---\ntitle: A\ntags: [x]\n---\n# A\n", "# A\n"),
        ("a.md", "---\r\n\r\n# a comment\r\ntitle: A\r\n...\r\nText\r\n", "Text\n"),
        ("a.markdown", "+++\ntitle = 'A'\n+++\nText", "Text"),
        ("a.md", "---\nA line.\n---\n", None),
        ("a.md", "---\n\n---\nText\n", None),
        ("a.md", "---\ntitle: A\nno end\n", None),
        ("a.md", "---\ntitle: A\n" + "x" * 100_000 + "\n---\n", None),
        ("a.md", "Text\n---\ntitle: A\n---\n", None),
        ("a.txt", "---\ntitle: A\n---\nText\n", None),
        ("a.md", "---", None),
    ],
)
def test_front_matter(tmp_path: Path, name: str, text: str, kept: str | None) -> None:
    for place in (write(tmp_path / name, text), tmp_path):
        [file] = data_files(Source.of(place))
        assert ["".join(each.pieces) for each in file.documents()] == [text if kept is None else kept]
        assert ("1 front-matter block" in notes(place)) == (kept is not None)


def test_chats_in_a_folder_are_not_read_as_texts(tmp_path: Path) -> None:
    write(tmp_path / "_chat.txt", IOS)
    with pytest.raises(FeatherbackError, match=r"contains _chat.txt, a chat of WhatsApp or Signal.*--data "):
        notes(tmp_path)


# --- the whole way ---


def test_training_and_evaluation_read_chats_in_the_same_way(tmp_path: Path) -> None:
    model, path = write_tiny_chat(tmp_path / "model.gguf"), write(tmp_path / "_chat.txt", IOS)
    report = prepare(model, Source.of(path, me=("Anna",), long="keep"), tmp_path / "d.tokens", 256)
    assert report.examples == 1
    assert any(note.startswith(f"Left out of {path}: ") for note in report.notes())
    assert fb.evaluate(model, path, me="Anna").tokens == report.supervised_tokens
    source = Source.of(path, me=("Anna",))
    assert decode(Source, json.loads(json.dumps(encode(source))), "data") == source


# --- limits ---


@pytest.mark.parametrize("name", ["lines", "one", "telegram", "values"])
def test_a_message_is_limited_before_it_is_kept(tmp_path: Path, name: str) -> None:
    begin = "01/02/24, 10:00 - Ben: "
    texts = {
        "lines": begin + ("x" * 1000 + "\n") * 17_000,
        "one": begin + "x" * 17_000_000,
        "telegram": '{"type": "personal_chat", "messages": [{"text": "' + "x" * 17_000_000,
        "values": '{"type": "personal_chat", "messages": [{"text": [' + "{}," * 251_000,
    }
    with pytest.raises(FeatherbackError, match=r"longer than 16 MB|more than 250000"):
        talks(write(tmp_path / "d", texts[name]), "Anna")


def test_slow_forms_of_text_take_linear_time(tmp_path: Path) -> None:
    """Each of these would take minutes if it took quadratic time."""
    head = "01/02/24, 10:00 - Ben: "
    said = [" " * 1_000_000 + "b", "<edited" * 200_000, "<" * 1_000_000, "a.b (" * 200_000]
    write(tmp_path / "c.txt", "".join(f"{head}a{each}\n{head.replace('Ben', 'Anna')}c\n" for each in said))
    assert len(talks(tmp_path / "c.txt", "Anna")) == 4
    odd = mail("ben", 1, "a", more="X: y\n").replace("ben@", "(a, " * 200_000 + "ben@")
    mails = mbox(
        odd, mail("ben", 2, "> " * 200_000 + "\n" * 200_000), mail("ben", 4, "b"), mail("anna", 5, "c", after="<4@x>")
    )
    left = notes(write(tmp_path / "m.mbox", mails), "anna@example.org")
    assert "1 empty message" in left
    # How deep the library for mail can recurse depends on the process, so the odd sender is unreadable or just unknown.
    assert "1 unreadable message" in left or "1 unanswered message" in left


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a b.pdf", "pdftotext 'a b.pdf' 'a b.txt'"),
        ("a.rtf", "pandoc --wrap=none -t plain -o a.txt a.rtf"),
        ("a.tar.gz", "tar xf a.tar.gz"),
        ("a.tgz", "tar xf a.tgz"),
        ("a.rar", "unrar x a.rar"),
    ],
)
def test_documents_are_refused_with_the_command_that_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.endswith("gz"):
        Path(name).write_bytes(gzip.compress(b"{"))
    else:
        write(Path(name), "%PDF-1.4" if name.endswith("pdf") else "{\\rtf1 Hi}")
    assert looks_like_data(Path(name), b"{")
    with pytest.raises(FeatherbackError, match=f": {re.escape(command)}\\."):
        items(Path(name))
