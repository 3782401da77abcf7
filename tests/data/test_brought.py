"""Data as people bring them: tables, JSON in any layout, compressed files, records of published sets."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from featherback.data.containers import container_of
from featherback.data.contents import contents
from featherback.data.example import Bad, Example
from featherback.data.inputs import Input
from featherback.data.readers import data_files
from featherback.data.source import Source, table_options
from featherback.errors import FeatherbackError
from tests.data.test_readers import items, read, write

EURO = [("Was kostet es?", "3,50 €"), ("Und zwei?", "7,00 €")]


def asked(path: Path, **how: Any) -> list[tuple[str | None, str | None]]:
    """Return the questions and answers of a file."""
    return [(example.prompt, example.completion) for example in read(path, **how)]


def problem(path: Path, **how: Any) -> str:
    """Return why the first record, or the file, is refused."""
    try:
        [bad, *_] = items(path, **how)
    except FeatherbackError as error:
        return str(error)
    assert isinstance(bad, Bad), bad
    return bad.problem


# --- tables ---


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("semi.csv", "Frage;Antwort\nWas kostet es?;3,50 €\nUnd zwei?;7,00 €\n", EURO),
        ("sep.csv", "sep=;\nquestion;answer\nWas kostet es?;3,50 €\nUnd zwei?;7,00 €\n", EURO),
        ("sep.csv", "sep=|\r\nquestion|answer\r\na;b|c;d\r\n", [("a;b", "c;d")]),
        ("tabs.csv", "question\tanswer\nHi, you\tHello\n", [("Hi, you", "Hello")]),
        ("semi.tsv", "question;answer\nHi, you;Hello\n", [("Hi, you", "Hello")]),
        ("comma.tsv", "question,answer\nHi;a,Hello\n", [("Hi;a", "Hello")]),
        ("bars.csv", "question|answer\nHi, you|Hello; you\n", [("Hi, you", "Hello; you")]),
        ("commas.csv", "question,answer\n" + "a;b,c;d\n" * 3, [("a;b", "c;d")] * 3),
        ("quoted.csv", '"question";"answer"\n"Was, kostet ""es""?";"3,50 €"\n', [('Was, kostet "es"?', "3,50 €")]),
        ("excel.csv", 'question,answer\r\n"a\r\nb","c, ""d"""\r\n', [("a\nb", 'c, "d"')]),
        ("index.csv", ",question,answer\n0,a,b\n1,c,d\n", [("a", "b"), ("c", "d")]),
        ("trailing.csv", "question;answer;;\na;b;;\n", [("a", "b")]),
        ("quotes.tsv", 'question\tanswer\n"Hi\tHello\nSay "bye"\tbye"\n', [('"Hi', "Hello"), ('Say "bye"', 'bye"')]),
        ("letters.tsv", 'question\tanswer\n"Hi\tHello\nhe\tbye"\n', [('"Hi', "Hello"), ("he", 'bye"')]),
        ("enclosed.tsv", 'question\tanswer\n"a ""b"""\t"c"\n', [('a "b"', "c")]),
        ("lines.tsv", 'question\tanswer\n"a\nb"\tc\nd\te\n', [("a\nb", "c"), ("d", "e")]),
        ("n.csv", "question,answer\n2+2?,4\n", [("2+2?", "4")]),
        ("empty.csv", "question;answer;\n;;\na;b;\n;;\n", [("a", "b")]),
        ("title.csv", "Tickets, October;;\n;;\nquestion;answer;day\na;b;c\n", [("a", "b")]),
        ("above.csv", "Tickets, October\r\nby Ann\r\n\r\nquestion;answer\r\na;b\r\n", [("a", "b")]),
        ("sep above.csv", "sep=;\nTickets\n\nquestion;answer\na;b\n", [("a", "b")]),
        ("blank below.csv", "question;answer\n\na;b\n", [("a", "b")]),
        ("index alone.csv", ",text\n0,a\n", [(None, None)]),
        ("one column.csv", "text\n\na\nb\n", [(None, None)] * 2),
        ("trailing text.csv", "text,\na,\nb,\n", [(None, None)] * 2),
    ],
)  # fmt: skip
def test_how_a_table_is_written_is_found_out(
    tmp_path: Path, name: str, text: str, found: list[tuple[str | None, str | None]]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert asked(tmp_path / name) == found


def test_titles_above_the_column_names_are_counted(tmp_path: Path) -> None:
    (tmp_path / "above.csv").write_text("Tickets\nby Ann\n\nquestion;answer\na;b\nc\n")
    (tmp_path / "beside.csv").write_text("Tickets;\nby Ann;\nquestion;answer\na;b\nc\n")
    for name, line in (("above.csv", 6), ("beside.csv", 5)):
        [file] = data_files(Source.of(tmp_path / name))
        [_, bad] = file.examples()
        assert bad.where == f"{tmp_path / name}, line {line}"
        assert file.left_out == f"Left out of {tmp_path / name}: 2 title lines."


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_unicode_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "d.csv").write_bytes("question;answer\r\nWas kostet es?;3,50 €\r\n".encode(encoding))
    assert asked(tmp_path / "d.csv") == EURO[:1]


@pytest.mark.parametrize(
    ("name", "key"),
    [("d.jsonl", "sheet=A"), ("d.jsonl", "separator=tab"), ("d.csv", "sheet=A"), ("d.txt", "header=no")],
)
def test_an_option_for_other_tables_is_an_error(tmp_path: Path, name: str, key: str) -> None:
    path = tmp_path / name
    path.write_text('{"prompt": "a", "completion": "b"}\n' if name == "d.jsonl" else "question,answer\na,b\n")
    with pytest.raises(FeatherbackError, match=f"--table {key} does not apply to these data. Remove it."):
        contents(Source.of(path, table=table_options([key])))
    contents(Source.of(path, table=table_options(["encoding=cp1252"])))


def test_what_is_not_found_out_is_an_option(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes("question;answer\nWas kostet es?;3,50 €\n".encode("cp1252"))
    assert "--table encoding=cp1252" in problem(path)
    assert asked(path, table=table_options(["encoding=cp1252"])) == EURO[:1]
    path.write_text("Hi,Hello\nBye,See you\n")
    pair = {"prompt": "1", "completion": "2"}
    found = asked(path, table=table_options(["header=no"]), columns=pair)
    assert found == [("Hi", "Hello"), ("Bye", "See you")]
    path.write_text('question;answer\n"a;b"\n')
    assert asked(path, table=table_options(["quotes=no"])) == [('"a', 'b"')]
    path.write_text('question,answer\n"<p>Hi &amp; <b>you</b><br>there</p>",1 < 2\n')
    assert asked(path, table=table_options(["html=text"])) == [("Hi & you\nthere", "1 < 2")]
    assert asked(path)[0][0] == "<p>Hi &amp; <b>you</b><br>there</p>"
    path.write_text("question~answer\na~b\n")
    assert asked(path, table=table_options(["separator=~"])) == [("a", "b")]
    for wrong, says in (
        ("separatr=;", "Did you mean `separator`?"),
        ("quotes=maybe", "expected quotes=yes or quotes=no"),
        ("separator=;;", "expected one character"),
        ("encoding=cp9999", "unknown encoding"),
        ("encoding=rot13", "unknown encoding"),
        ("html=no", "expected html=text or html=tags"),
        ("header", "expected KEY=VALUE"),
    ):
        with pytest.raises(FeatherbackError, match=says.replace("?", r"\?")):
            table_options([wrong])


def test_a_column_without_a_name_must_not_hold_text(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("question,answer,\na,b,\nc,d,secret\n")
    good, bad = items(tmp_path / "d.csv")
    assert isinstance(good, Example)
    assert isinstance(bad, Bad)
    assert "the column of 'secret' has no name" in bad.problem


def test_inspect_says_how_a_table_is_written(tmp_path: Path) -> None:
    (tmp_path / "d.tsv").write_text("question;answer\na;b\n")
    data = Input(tmp_path / "d.tsv")
    assert container_of(data).describe(data) == "TSV, separated by semicolons"


@pytest.mark.parametrize(
    ("columns", "pair"),
    [
        (("Customer message", "Agent reply"), (0, 1)),
        (("customerMessage", "agentReply"), (0, 1)),
        (("Question Text", "Answer Text"), (0, 1)),
        (("ANTWORT", "FRAGE"), (1, 0)),
        (("Pregunta", "Respuesta"), (0, 1)),
        (("user_input_text", "bot response"), None),
        (("id", "student question", "teacher answer"), (1, 2)),
        (("Customer message", "Agent notes"), None),
        (("Customer", "Agent"), (0, 1)),
        (("Number", "Customer", "Agent", "Body", "Resolution"), None),
        (("Nr.", "Kunde", "Kundenanfrage", "Antwort Agent"), (2, 3)),
        (("Kunde", "Supportanfrage", "Antworttext"), (1, 2)),
        (("user", "Customer message", "Agent reply", "assistant"), (1, 2)),
        (("user", "assistant", "day"), (0, 1)),
        (("Rückfrage", "Antwortzeit"), None),
        (("Kunde", "Umfrage", "Antwort"), None),
        (("Ticket Nr.", "Tel. Nr.", "text of the customer"), None),
        (("question", "correct answer", "wrong answer"), (0, 1)),
        (("question_id", "answer"), None),
        (("What is the question?", "The answer"), None),
        (("prompt", "response_a", "response_b"), None),
        (("question", "answer start"), None),
        (("asked by", "answer"), None),
        (("Question by", "Question", "Answer from", "Answer"), (1, 3)),
        (("Frage von", "Antwort von"), None),
        (("Message from user", "Message from support"), (0, 1)),
        (("request time", "response time"), None),
    ],
)
def test_columns_are_understood_by_the_words_of_their_names(
    tmp_path: Path, columns: tuple[str, ...], pair: tuple[int, int] | None
) -> None:
    row = {name: f"text {number}" for number, name in enumerate(columns)}
    path = write(tmp_path, row)
    if pair is None:
        assert "--map" in problem(path) or "winner" in problem(path)
    else:
        assert asked(path) == [(f"text {pair[0]}", f"text {pair[1]}")]


# --- spreadsheets ---


def workbook(path: Path, *sheets: list[list[Any]]) -> Path:
    """Write a spreadsheet of Excel."""
    spread = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    numbers = range(1, len(sheets) + 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("[Content_Types].xml", f'<Types xmlns="{package}/content-types"/>')
        root = f'<Relationship Id="r" Type="{office}/officeDocument" Target="xl/workbook.xml"/>'
        file.writestr("_rels/.rels", f'<Relationships xmlns="{package}/relationships">{root}</Relationships>')
        names = "".join(f'<sheet name="S{n}" sheetId="{n}" r:id="r{n}"/>' for n in numbers)
        file.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{spread}" xmlns:r="{office}"><sheets>{names}</sheets></workbook>'
        )
        links = "".join(
            f'<Relationship Id="r{n}" Type="{office}/worksheet" Target="worksheets/{n}.xml"/>' for n in numbers
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{package}/relationships">{links}</Relationships>'
        )
        for number, rows in zip(numbers, sheets, strict=True):
            lines = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
            file.writestr(
                f"xl/worksheets/{number}.xml", f'<worksheet xmlns="{spread}"><sheetData>{lines}</sheetData></worksheet>'
            )
    return path


def _cell(value: Any) -> str:
    if value is None:
        return "<c/>"
    if isinstance(value, bool):
        return f'<c t="b"><v>{int(value)}</v></c>'
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t xml:space="preserve">{value}</t></is></c>'
    return f"<c><v>{value}</v></c>"


def test_a_spreadsheet_is_read(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows = [
        ["Frage", "Antwort", "Nummer"],
        ["2+2?", 4, 1],
        [None, None, None],
        ["Prime?", True, 2.5],
        ["a", "b&#13;\nc", None],
    ]
    path = workbook(tmp_path / "d.xlsx", rows, [])
    assert asked(path) == [("2+2?", "4"), ("Prime?", "true"), ("a", "b\nc")]
    workbook(tmp_path / "title.xlsx", [["Tickets", None, None], [None, None, None], *rows])
    assert len(asked(tmp_path / "title.xlsx")) == 3
    workbook(tmp_path / "gap.xlsx", [["Frage", "Antwort"], [None, "a"], ["b", None]])
    assert [each.problem for each in items(tmp_path / "gap.xlsx") if isinstance(each, Bad)] == [
        "'Antwort' (read as \"completion\") is empty."
    ]
    workbook(tmp_path / "two.xlsx", rows, [["x"]])
    assert "--table sheet=S1" in problem(tmp_path / "two.xlsx")
    assert len(asked(tmp_path / "two.xlsx", table={"sheet": "S1"})) == 3
    assert "it has no sheet 'S9'; its sheets are S1, S2" in problem(tmp_path / "two.xlsx", table={"sheet": "S9"})
    (tmp_path / "bad.xlsx").write_bytes((tmp_path / "two.xlsx").read_bytes()[:200])
    assert "Cannot read" in problem(tmp_path / "bad.xlsx")


@pytest.mark.full("writes 100 MB of cells")
def test_a_spreadsheet_that_stands_for_gigabytes_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    path = workbook(tmp_path / "d.xlsx", [["question", "answer"], *[["x" * 1000, "y"]] * 100_000])
    assert path.stat().st_size < 2_000_000
    assert "MB of memory" in problem(path) or "times its size" in problem(path)


# --- JSON in any layout ---

ROWS = [{"prompt": f"a{number}", "completion": "b"} for number in range(3)]
LAYOUTS = {
    "pretty": "\n".join(json.dumps(row, indent=2) for row in ROWS),
    "concatenated": "".join(map(json.dumps, ROWS)),
    "spaced": " ".join(map(json.dumps, ROWS)),
    "wrapped": json.dumps({"train": ROWS}),
    "wrapped pretty": json.dumps({"data": ROWS}, indent=1),
    "after a version": json.dumps({"version": "1.1", "data": ROWS}, indent=2),
    "before a version": json.dumps({"examples": ROWS, "version": "1.1"}),
    "array": json.dumps(ROWS, indent=4),
    "lines": "\n".join(map(json.dumps, ROWS)),
    "windows": "\r\n".join(json.dumps(row, indent=1).replace("\n", "\r\n") for row in ROWS),
}


@pytest.mark.parametrize("name", ["d.json", "d.jsonl"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_json_in_any_layout(tmp_path: Path, layout: str, name: str) -> None:
    (tmp_path / name).write_text(LAYOUTS[layout], newline="")
    assert asked(tmp_path / name) == [(row["prompt"], row["completion"]) for row in ROWS]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"text": "a"},\n{"text": "b"},\n', "a comma stands between objects. Remove it"),
        ('{"text": "a",}\n', "a comma stands before a closing bracket, near"),
        ('[{"text": ["a", "b",]}]', "a comma stands before a closing bracket, near"),
        (json.dumps({"train": ROWS, "test": ROWS}, indent=1), "holds more than one list"),
        (json.dumps({"meta": 1, "train": ROWS, "test": ROWS}, indent=1), "holds several lists: 'train', 'test'"),
        ('{\n"text": "a"\n', "the object has no closing bracket"),
        ('[{"text": "a"},]', "a comma follows the last element of the array. Remove it."),
    ],
)
def test_what_is_wrong_with_json_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "d.json").write_text(text)
    try:
        problems = [item.problem for item in items(tmp_path / "d.json") if isinstance(item, Bad)]
    except FeatherbackError as error:
        problems = [str(error)]
    assert says in problems[0]


# --- compressed files ---


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(content)  # type: ignore[no-any-return]


def zipped(content: bytes) -> bytes:
    from io import BytesIO

    with zipfile.ZipFile(out := BytesIO(), "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("folder/d.jsonl", content)
        file.writestr("__MACOSX/folder/._d.jsonl", "x")
    return out.getvalue()


PACKERS = {"gz": gzip.compress, "zst": zstd, "zip": zipped}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["d.jsonl", "noend"])
def test_compressed_files_are_read(tmp_path: Path, name: str, packer: str) -> None:
    pack = PACKERS[packer]
    for layout in ("lines", "pretty"):
        (tmp_path / f"{name}.{packer}").write_bytes(pack(LAYOUTS[layout].encode()))
        assert len(asked(tmp_path / f"{name}.{packer}")) == 3
    if packer == "gz":
        (tmp_path / "two.jsonl.gz").write_bytes(pack(LAYOUTS["lines"].encode() + b"\n") * 2)
        assert len(asked(tmp_path / "two.jsonl.gz")) == 6
        (tmp_path / "d.csv.gz").write_bytes(pack(b"question;answer\na;b\n"))
        assert asked(tmp_path / "d.csv.gz") == [("a", "b")]
    (tmp_path / "cut.jsonl").write_bytes(pack(LAYOUTS["lines"].encode() * 50)[:-20])
    assert "Cannot read" in problem(tmp_path / "cut.jsonl") or "bracket" in problem(tmp_path / "cut.jsonl")
    bomb = pack((json.dumps({"text": "a" * 60_000}) + "\n").encode() * 400)
    (tmp_path / "bomb.jsonl").write_bytes(bomb)
    with pytest.raises(FeatherbackError, match="expands to more than 100 times its size"):
        items(tmp_path / "bomb.jsonl")


def test_an_archive_with_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as file:
        for name in ("a.jsonl", "b.jsonl"):
            file.writestr(name, "{}")
    assert "d.zip contains 2 files ('a.jsonl', 'b.jsonl'). Unpack it" in problem(tmp_path / "d.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_whose_unpacking_has_no_bound_is_refused(tmp_path: Path, method: int) -> None:
    """600 bytes of bzip2 stand for 500 MB, which Python unpacks at once."""
    with zipfile.ZipFile(tmp_path / "d.jsonl.zip", "w", method) as file:
        file.writestr("d.jsonl", "\n" * 1000)
    assert "another compression than Deflate. Unpack it" in problem(tmp_path / "d.jsonl.zip")


def test_an_archive_that_lists_too_many_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.jsonl.zip", "w") as file:
        file.writestr("d.jsonl", LAYOUTS["lines"])
        for number in range(40):
            file.writestr("__MACOSX/" + f"{number}".rjust(60_000, "0"), "")
    assert "it lists too many files" in problem(tmp_path / "d.jsonl.zip")


# --- folders of datasets ---


def saved(folder: Path, rows: list[dict[str, Any]], files: list[str] | None = None) -> Path:
    """Write a folder as `datasets.save_to_disk` does."""
    folder.mkdir(parents=True, exist_ok=True)
    names = files or ["data-00000-of-00001.arrow"]
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")
    table = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return folder


def test_a_folder_of_save_to_disk_is_read(tmp_path: Path) -> None:
    rows = [{"question": f"q{number}", "answer": "a"} for number in range(5)]
    assert [each for each, _ in asked(saved(tmp_path / "d", rows))] == [row["question"] for row in rows]
    both = tmp_path / "both"
    for name in ("train", "test"):
        saved(both / name, rows)
    (both / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert f"Choose one: --data {both / 'train'} or --data {both / 'test'}." in problem(both)
    (both / "dataset_dict.json").write_text('{"splits": ["test"]}')
    assert len(asked(both)) == 5
    for bad in (["../d/data-00000-of-00001.arrow"], ["/etc/passwd"], [".."]):
        assert "names no data files in its folder" in problem(saved(tmp_path / "bad", rows, bad))
    (tmp_path / "bad" / "x.arrow").symlink_to("/etc/passwd")
    assert "is a link to /etc/passwd" in problem(saved(tmp_path / "bad", rows, ["x.arrow"]))


# --- records of published data sets ---

ASK, GOOD, POOR = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "assistant", "content": "What?"},
)
FROM = {"from": "human", "value": "Hi"}
PAIRS: dict[str, dict[str, Any]] = {
    "llama-factory": {
        "conversations": [FROM],
        "chosen": {"from": "gpt", "value": "Hello!"},
        "rejected": {"from": "gpt", "value": "What?"},
    },
    "messages beside": {"messages": [ASK], "chosen": [GOOD], "rejected": [POOR]},
    "one message": {"prompt": "Hi", "chosen": GOOD, "rejected": POOR},
    "openai": {"input": {"messages": [ASK]}, "preferred_output": [GOOD], "non_preferred_output": [POOR]},
    "texts beside": {"conversations": [FROM], "chosen": "Hello!", "rejected": "What?"},
    "a list and texts": {"prompt": [ASK], "chosen": "Hello!", "rejected": "What?"},
    "alpaca": {"instruction": "Hi", "input": "", "chosen": "Hello!", "rejected": "What?"},
    "input": {"input": "Hi", "chosen": "Hello!", "rejected": "What?"},
    "orca": {"question": "Hi", "chosen": "Hello!", "rejected": "What?"},
    "words": {"Customer message": "Hi", "chosen": "Hello!", "rejected": "What?"},
    "ultrafeedback": {
        "prompt": "Hi", "chosen": [ASK, GOOD], "rejected": [ASK, POOR], "messages": [ASK, GOOD], "score_chosen": 8.0,
    },
    "prompts doubled": {"prompt": [ASK], "chosen": [ASK, GOOD], "rejected": [ASK, POOR]},
    "hh": {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello!", "rejected": "\n\nHuman: Hi\n\nAssistant: What?"},
    "arena": {"prompt": "Hi", "response_a": "What?", "response_b": "Hello!", "winner": "model_b"},
    "arena of chats": {"conversation_a": [ASK, GOOD], "conversation_b": [ASK, POOR], "winner": "model_a"},
    "json in a table": {"messages": json.dumps([ASK]), "chosen": json.dumps(GOOD), "rejected": json.dumps(POOR)},
}  # fmt: skip


def said(example: Example) -> tuple[str, str]:
    """Return the question and the answer of one side of a pair."""
    if example.messages is None:
        return str(example.prompt), str(example.completion)
    assert [turn["role"] for turn in example.messages] == ["user", "assistant"]
    return example.messages[0]["content"], example.messages[1]["content"]


@pytest.mark.parametrize("form", PAIRS)
def test_the_question_of_a_pair_is_never_dropped(tmp_path: Path, form: str) -> None:
    """Regression: pairs were trained without their question, silently."""
    [pair] = read(write(tmp_path, PAIRS[form]), form="pairs")
    assert pair.rejected is not None
    assert [said(pair), said(pair.rejected)] == [("Hi", "Hello!"), ("Hi", "What?")]


@pytest.mark.parametrize(
    ("row", "form", "says"),
    [
        ({"topic": "Hi", "chosen": "Hello!", "rejected": "What?"}, "pairs", '--map prompt=topic'),
        ({"messages": [ASK, GOOD], "chosen": [GOOD], "rejected": [POOR]}, "pairs", "holds a conversation"),
        ({"prompt": "Hi", "history": [["a", "b"]], "chosen": "x", "rejected": "y"}, "pairs", "holds a conversation"),
        ({"prompt": "Hi", "completion": "x", "history": [["a", "b"]]}, "plain", "holds a conversation"),
        ({"prompt": "Hi", "completion": "x", "messages_before": [ASK, GOOD]}, "plain", "holds a conversation"),
        ({"text": "x", "dialog": [ASK, GOOD]}, "plain", "holds a conversation"),
        ({"messages": [GOOD, ASK], "response": "Hello!"}, "plain", "may hold the answer"),
        ({"question": "2+2?", "choices": ["3", "4"], "answer": 1}, "plain", "is one of the 'choices'"),
        ({"question": "2+2?", "options": {"A": "3"}, "answer": "A"}, "plain", "is one of the 'options'"),
        ({"message_id": "a", "parent_id": None, "text": "Hi", "role": "prompter"}, "plain", "a tree of messages"),
        ({"prompt": {"text": "Hi", "role": "prompter", "replies": []}}, "plain", "a tree of messages"),
        ({"prompt": "Hi", "response_a": "x", "response_b": "y", "winner": "tie"}, "pairs", "not say which"),
        ({"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}}, "plain", "has no answer"),
        ({"question": "Primes?", "answer": ["2", "3"]}, "plain", "must be a string, not an array"),
        ({"question": "Nothing?", "answer": float("nan")}, "plain", "must be a string, not a number"),
        ({"question": "Nothing?", "answer": None}, "plain", "must be a string, not null"),
        ({"contents": [{"role": "user", "parts": [{"inlineData": {}}]}]}, "plain", "is of type 'inlineData'"),
    ],
)  # fmt: skip
def test_what_would_train_on_the_wrong_thing_is_refused(
    tmp_path: Path, row: dict[str, Any], form: str, says: str
) -> None:
    assert says in problem(write(tmp_path, row), form=form)


GEMINI = {
    "systemInstruction": {"role": "system", "parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hel"}, {"text": "lo!"}]},
    ],
}  # fmt: skip
STUDIO = {
    "name": "c",
    "systemPrompt": "Be brief.",
    "messages": [
        {
            "versions": [{"role": "user", "content": [{"type": "text", "text": text}]} for text in ("No", "Hi")],
            "currentlySelected": 1,
        },
        {"versions": [{"role": "assistant", "steps": [{"content": [{"type": "text", "text": "Hello!"}]}]}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("row", [GEMINI, STUDIO], ids=["gemini", "lm studio"])
def test_conversations_of_other_programs(tmp_path: Path, row: dict[str, Any]) -> None:
    [example] = read(write(tmp_path, row))
    assert example.messages == [{"role": "system", "content": "Be brief."}, ASK, GOOD]


def test_answers_that_are_numbers_or_truth_values(tmp_path: Path) -> None:
    rows = [{"question": "?", "answer": value} for value in (4, True, 2.5, False, -1)]
    assert [answer for _, answer in asked(write(tmp_path, *rows))] == ["4", "true", "2.5", "false", "-1"]


def test_questions_about_a_text(tmp_path: Path) -> None:
    squad = {
        "id": "1",
        "title": "T",
        "context": "Ann went.",
        "question": "Who?",
        "answers": {"text": ["Ann"], "answer_start": [0]},
    }
    dolly = {"instruction": "Who?", "context": "Ann went.", "response": "Ann", "category": "closed_qa"}
    for row in (squad, dolly):
        assert asked(write(tmp_path, row)) == [("Who?\n\nAnn went.", "Ann")]


def test_the_columns_with_the_longest_texts_are_suggested(tmp_path: Path) -> None:
    row = {"number": "7", "day": "Mon", "body": "My parcel is late.", "resolution": "We sent it again.", "score": 3}
    assert "--map prompt=body --map completion=resolution" in problem(write(tmp_path, row))


# --- not the file ---

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 123456\n"
PAGE = b'\n<!DOCTYPE html>\n<html lang="en"><head><title>data.json</title></head></html>\n'


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.tsv", "d.parquet", "d.arrow", "d.xlsx"])
@pytest.mark.parametrize(("content", "says"), [(POINTER, "git lfs pull"), (PAGE, "is a web page, not the file itself")])
def test_what_a_download_left_in_place_of_a_file_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert says in problem(tmp_path / name)


def test_a_pointer_is_no_text_but_a_page_may_be(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_bytes(POINTER)
    assert "git lfs pull" in problem(tmp_path / "d.txt")
    (tmp_path / "d.txt").write_bytes(PAGE)
    assert container_of(Input(tmp_path / "d.txt")).title == "plain text"


def test_python_notation_in_a_table_is_named(tmp_path: Path) -> None:
    """A column of conversations that pandas wrote with to_csv."""
    turns = str([ASK, GOOD]).replace('"', '""')
    (tmp_path / "d.csv").write_text(f'messages\n"{turns}"\n')
    assert '"messages" is in Python\'s notation, not JSON. Write it with json.dumps' in problem(tmp_path / "d.csv")


@pytest.mark.parametrize("value", ["null", "None", "NA", "nan", "N/A", "NULL"])
def test_a_word_for_nothing_is_a_text(tmp_path: Path, value: str) -> None:
    (tmp_path / "d.csv").write_text(f"question,answer\nWhich word?,{value}\n")
    assert asked(tmp_path / "d.csv") == [("Which word?", value)]


def test_a_column_may_hold_another_type_in_each_record(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"system": None, "id": 1}] * 300
    rows += [{"system": "Be brief.", "id": "1a"}, {"id": [[0, "x"]]}]
    found = read(write(tmp_path, *({"prompt": "Hi", "completion": "Hello!", **row} for row in rows)))
    assert [example.system for example in found] == [None] * 300 + ["Be brief.", None]
