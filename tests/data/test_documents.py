"""Documents: web pages, Word, LibreOffice, books, and archives in which something stands beside the data."""

from __future__ import annotations

import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from featherback.data.containers import packed
from featherback.data.markup import pieces_of_html, text_of_html, tidied
from featherback.data.readers import DataFile, data_files
from featherback.data.source import Source
from featherback.errors import FeatherbackError

PAGE = """<!DOCTYPE html><html><head><title>Blog</title><style>p{}</style></head><body><nav><a href=/>Start</a></nav>
<article><h1>My   page</h1><p>It &auml;nderte <b>every</b>thing.<br>Yes.</p><ul><li>one<li>two</ul></article>
<pre>a  b
 c</pre><script>x = "<p>no</p>"</script><div>x</div>
<div>y</div></body></html>"""
SEEN = "Start\n\nMy page\n\nIt änderte everything.\nYes.\n\n- one\n- two\n\na  b\nc\n\nx\ny\n"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DOCX = f"""<?xml version="1.0"?><w:document xmlns:w="{WORD}" xmlns:mc="mc"><w:body>
<w:p><w:pPr><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr><w:r><w:t>Monday</w:t></w:r></w:p>
<w:p><w:r><w:t xml:space="preserve">It </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>rained &amp; rained</w:t>
<w:tab/><w:t>ä</w:t>
<w:br/><w:t>all day</w:t><w:delText>gone</w:delText><w:instrText>PAGE</w:instrText></w:r></w:p><w:p/>
<w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr>
<w:tr><w:tc><w:p><w:r><w:t>c</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
<w:p><mc:AlternateContent><mc:Choice><w:t>drawn</w:t></mc:Choice><mc:Fallback><w:t>drawn</w:t></mc:Fallback>
</mc:AlternateContent></w:p></w:body></w:document>"""
DOCX_TEXT = "Monday\n\nIt rained & rained\tä\nall day\n\na \tb\nc\n\ndrawn\n"
ODT = """<o:document xmlns:o="o" xmlns:text="t" xmlns:table="u"><text:h>Monday</text:h><text:p>It
<text:span>rained</text:span>
all<text:s/>day<text:line-break/>Yes<o:annotation><text:p>no</text:p></o:annotation></text:p></o:document>"""
CHAPTER = "<html xmlns='x'><head><title/></head><body><h1>{0}</h1><p>Once &amp; again.&nbsp;</p><script/></body></html>"
ROOT = '<container xmlns="c"><rootfiles><rootfile full-path="O/p.opf"/></rootfiles></container>'
PACKAGE = """<package xmlns="p"><manifest><item id="n" href="nav.xhtml" properties="nav"/>
<item id="b" href="t/b%20b.xhtml"/><item id="a" href="./a.xhtml"/></manifest>
<spine><itemref idref="n"/><itemref idref="b"/><itemref idref="a"/></spine></package>"""
EPUB = {"mimetype": "application/epub+zip", "META-INF/container.xml": ROOT, "O/p.opf": PACKAGE,
        "O/nav.xhtml": CHAPTER.format("Contents"), "O/t/b b.xhtml": CHAPTER.format("One"),
        "O/a.xhtml": CHAPTER.format("Two")}  # fmt: skip


def archive(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def docx(path: Path, text: str = DOCX) -> Path:
    return archive(path, {"[Content_Types].xml": "<Types/>", "word/document.xml": text})


def opened(path: Path, **how: object) -> DataFile:
    [file] = data_files(Source.of(path, **how))
    return file


def text(path: Path, **how: object) -> str:
    [document] = opened(path, **how).documents()
    return "".join(document.pieces)


def test_documents_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE)
    assert text(tmp_path / "a.html") == SEEN
    (tmp_path / "old.htm").write_bytes(PAGE.replace("&auml;", "ä").encode("cp1252"))
    assert text(tmp_path / "old.htm", table={"encoding": "cp1252"}) == SEEN
    (tmp_path / "unnamed").write_text(PAGE)
    assert text(tmp_path / "unnamed") == SEEN
    assert text(docx(tmp_path / "a.docx")) == DOCX_TEXT
    assert (
        text(archive(tmp_path / "a.odt", {"mimetype": "x", "content.xml": ODT})) == "Monday\n\nIt rained all day\nYes\n"
    )
    assert (
        text(archive(tmp_path / "a.epub", EPUB)).replace("\xa0", "") == "One\n\nOnce & again.\n\nTwo\n\nOnce & again.\n"
    )


def test_the_text_does_not_depend_on_the_pieces() -> None:
    whole = "".join(tidied(pieces_of_html([PAGE])))
    assert whole == SEEN
    assert whole.strip() == text_of_html(PAGE)
    assert text_of_html("<p>a<![foo[x]]>b<![if !mso]>c<![endif]>d") == "abcd"
    for size in (1, 2, 3, 7, 64):
        pieces = [PAGE[at : at + size] for at in range(0, len(PAGE), size)]
        assert "".join(tidied(pieces_of_html(pieces))) == SEEN, size


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("entity.docx", "it declares a document type"),
        ("deep.docx", "more than 200 elements stand inside each other"),
        ("long.docx", "a tag is longer than 1 MB"),
        ("bomb.docx", "expands to more than 100 times its size"),
        ("cut.docx", "Cannot read"),
        ("none.docx", "it contains no 'word/document.xml'"),
        ("text.docx", "File is not a zip file"),
        ("none.epub", "it contains no 'O/a.xhtml'"),
        ("empty.epub", "Cannot read"),
        ("long.html", "a tag, a script or a comment is longer than 8 MB"),
        ("messages.html", "is a chat as a web page. Export it from Telegram as JSON"),
        ("old.html", "--table encoding=cp1252"),
    ],
)
def test_damaged_and_hostile_documents_are_refused(tmp_path: Path, name: str, says: str) -> None:
    path = tmp_path / name
    entity = '<!DOCTYPE d [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><d>&b;</d>'
    words = {"entity": entity, "deep": "<d>" * 201, "cut": DOCX[:700], "bomb": f"<d>{' ' * 40_000_000}</d>"}
    if name == "long.docx":
        docx(path, f'<d a="{"x" * 2_000_000}"/>')
    elif name.endswith(".docx"):
        docx(path, words.get(path.stem, DOCX))
    if name == "none.docx":
        archive(path, {"[Content_Types].xml": "", "word/other.xml": ""})
    elif name == "text.docx":
        path.write_text("text")
    elif name.endswith(".epub"):
        archive(
            path,
            {
                key: each
                for key, each in EPUB.items()
                if (path.stem == "none" and key != "O/a.xhtml") or key == "mimetype"
            },
        )
    elif name == "long.html":
        path.write_text(f'<html><p>a</p><img src="{"x" * 9_000_000}')
    elif name == "messages.html":
        path.write_text("<!DOCTYPE html><html><head><meta charset='utf-8'/><title>Exported Data</title>")
    elif name == "old.html":
        path.write_bytes("<html>ä".encode("cp1252"))
    with pytest.raises(FeatherbackError, match=says):
        text(path)


def test_a_document_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece that is unpacked is passed on before the next one is."""
    unpacked = [0]

    class Counted(packed.Expansion):
        def add(self, nbytes: int) -> None:
            unpacked[0] += nbytes
            super().add(nbytes)

    monkeypatch.setattr(packed, "Expansion", Counted)
    paragraphs = "".join(f"<w:p><w:t>{number}</w:t></w:p>" for number in range(100_000))
    path = docx(tmp_path / "a.docx", f'<w:d xmlns:w="{WORD}">{paragraphs}</w:d>')
    [document] = opened(path).documents()
    assert next(piece for piece in document.pieces if piece) == "0\n"
    assert unpacked[0] < 200_000
    assert sum(len(piece) for piece in document.pieces) > 500_000


def test_an_archive_with_one_data_file_is_read(tmp_path: Path) -> None:
    rows = '{"prompt": "a", "completion": "b"}\n'
    for files in (
        {"chat/d.jsonl": rows, "chat/photo.jpg": "x"},
        {"conversations.json": "[" + '{"chat_messages": []}' + "]", "user.json": "{}", "chat.html": ""},
        {"_chat.txt": "[24/12/2025, 18:01:02] Ben: Hi\n", "notes.txt": "x", "a.opus": "x"},
    ):
        file = opened(archive(tmp_path / "a.zip", files))
        others = len(files) - 1
        assert file.left_out == f"Left out of {tmp_path / 'a.zip'}: {others} other file{'s' * (others > 1)}."
        assert file.data.suffix == Path(next(iter(files))).suffix
    with zipfile.ZipFile(tmp_path / "in.docx.zip", "w") as file:
        file.write(docx(tmp_path / "a.docx"), "a.docx")
    with pytest.raises(FeatherbackError, match=r"is compressed, but such files are only read unpacked\. Unpack it"):
        text(tmp_path / "in.docx.zip")
    archive(tmp_path / "two.zip", {"a.csv": "x", "b.csv": "y"})
    with pytest.raises(FeatherbackError, match=r"contains 2 files .*Unpack it with unzip .*two.zip -d FOLDER, and"):
        opened(tmp_path / "two.zip")


def test_a_folder_of_documents_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes("---\nx: 1\n---\nä\n".encode("cp1252"))
    (tmp_path / "b.htm").write_bytes("<html>ö".encode("cp1252"))
    docx(tmp_path / "c.docx")
    (tmp_path / "d.pdf").write_text("%PDF")
    file = opened(tmp_path, table={"encoding": "cp1252"})
    assert ["".join(each.pieces) for each in file.documents()] == ["ä\n", "ö\n", DOCX_TEXT]
    assert file.left_out == f"Left out of {tmp_path}: 1 front-matter block."
    assert "d.pdf is not read" in str(file.not_read)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<html><head><title>T</title><body><p>seen</body>", "seen\n"),
        ("<html><head><meta charset=utf-8><title>T</title><h1>seen</h1>", "seen\n"),
        ("<!doctype html><title>T</title><p>seen", "seen\n"),
        ("<body><p hidden>no<p>seen<div style='x: y; Display :none'>no<div>no</div></div>", "seen\n"),
        ("<body><input hidden>seen<video>no</video><datalist><option>no</datalist>", "seen\n"),
        ("<body>seen<!-- no", "seen\n"),
        ("<body>seen<a href='no", "seen\n"),
    ],
)
def test_only_what_a_browser_shows_is_read(page: str, text: str) -> None:
    assert "".join(tidied(pieces_of_html([page]))) == text
    assert "".join(tidied(pieces_of_html(page))) == text


def test_an_unfinished_tag_is_not_parsed_again_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, feed = list[int](), HTMLParser.feed
    monkeypatch.setattr(HTMLParser, "feed", lambda self, data: (fed.append(len(data)), feed(self, data))[1])
    lines = ["<html><body><img src='", *["A" * 76 + "\n"] * 20_000, "'>seen"]
    assert "".join(tidied(pieces_of_html(lines))) == "seen\n"
    assert len(fed) < 10


def test_text_that_a_document_does_not_show_is_left_out(tmp_path: Path) -> None:
    run, hidden = "<w:r><w:t>{0}</w:t></w:r>", "<w:r><w:rPr><w:vanish{0}/></w:rPr><w:t>{1}</w:t><w:br/></w:r>"
    body = "".join(
        [
            "<w:p><w:pPr><w:rPr><w:vanish/></w:rPr></w:pPr>" + run.format("seen "),
            "<w:del>" + run.format("no") + "</w:del><w:moveFrom>" + run.format("no") + "</w:moveFrom>",
            hidden.format("", "no") + hidden.format(' w:val="0"', "too") + "</w:p>",
        ]
    )
    path = docx(tmp_path / "a.docx", f'<w:document xmlns:w="{WORD}">{body}</w:document>')
    assert "".join(next(opened(path).documents()).pieces) == "seen too\n"

    text = """<o:d xmlns:o="o" xmlns:t="t"><t:style t:name="T1"><t:text-properties t:display="none"/></t:style>
    <t:section t:display="none"><t:p>no</t:p></t:section><t:p>seen<t:span t:style-name="T1">no<t:tab/></t:span>
    <t:frame><t:title>no</t:title><t:desc>no</t:desc><t:binary-data>no</t:binary-data></t:frame>
    <t:span t:style-name="T2">too</t:span></t:p></o:d>"""
    path = archive(tmp_path / "a.odt", {"mimetype": "x", "content.xml": text})
    assert "".join(next(opened(path).documents()).pieces).split() == ["seen", "too"]


def test_the_ending_says_that_an_archive_is_a_document(tmp_path: Path) -> None:
    """Some programs write books without the member `mimetype`."""
    files = {name: text for name, text in EPUB.items() if name != "mimetype"} | {"readme.txt": "no"}
    text = "".join(next(opened(archive(tmp_path / "a.epub", files)).documents()).pieces)
    assert text.startswith("One\n\nOnce")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"META-INF/container.xml": "<container/>"}, "names no package"),
        ({"O/p.opf": '<package><itemref idref="x"/></package>'}, "does not say where the chapter x is"),
        ({"O/a.xhtml": "\udcff\udcfe"}, "not UTF-8 text, or is protected against copying"),
    ],
)
def test_what_is_wrong_with_a_book_is_said(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.epub", "w") as file:
        for name, text in (EPUB | files).items():
            file.writestr(name, text.encode(errors="surrogateescape"))
    with pytest.raises(FeatherbackError, match=says):
        "".join(next(opened(tmp_path / "a.epub").documents()).pieces)
