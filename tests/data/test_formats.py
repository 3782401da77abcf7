"""Every shape in every file format, and the errors for bad data."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from featherback.data.containers import json_array
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.readers import data_files
from featherback.data.source import Source, columns_of
from featherback.errors import FeatherbackError
from tests.data.test_readers import items, read, write

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say "a, b"; then\nc\td.'},
    {"role": "assistant", "content": "é 日本 [1] {2}"},
]
SHAREGPT = [
    {"from": role, "value": turn["content"]} for role, turn in zip(("system", "human", "gpt"), TALK, strict=True)
]
PAIR = (TALK[1]["content"], TALK[2]["content"])

ROWS: dict[str, list[dict[str, Any]]] = {
    "messages": [{"messages": TALK}, {"messages": TALK[1:], "system": "Be brief."}],
    "sharegpt": [{"conversations": SHAREGPT}, {"conversations": SHAREGPT[1:], "system": "Be brief."}],
    "alpaca": [
        {"instruction": PAIR[0], "output": PAIR[1], "system": "Be brief."},
        {"instruction": "Say", "input": "this", "output": "this"},
    ],
    "prompt_completion": [
        {"prompt": PAIR[0], "completion": PAIR[1], "system": "Be brief."},
        {"prompt": "", "completion": "b"},
    ],
    "text": [{"text": PAIR[0]}, {"text": PAIR[1]}],
}
PREFERENCES = [
    {"prompt": PAIR[0], "chosen": PAIR[1], "rejected": "No.", "system": "Be brief."},
    {"chosen": TALK, "rejected": [*TALK[:2], {"role": "assistant", "content": "No."}]},
]
LABELLED = [{"prompt": PAIR[0], "completion": PAIR[1], "label": label} for label in (True, False)]


def as_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def as_array(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")


def as_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a table. Lists and objects become JSON, and missing values empty fields."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()})


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    parquet.write_table(pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), path)


WRITERS = {
    "data.jsonl": as_jsonl,
    "data.json": as_array,
    "data.csv": as_table,
    "data.tsv": as_table,
    "data.parquet": as_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("shape", ROWS)
def test_a_shape_is_the_same_in_every_kind_of_file(tmp_path: Path, shape: str, name: str) -> None:
    as_jsonl(tmp_path / "reference.jsonl", ROWS[shape])
    WRITERS[name](tmp_path / name, ROWS[shape])
    expected, found = read(tmp_path / "reference.jsonl"), read(tmp_path / name)
    assert [example.shape for example in found] == [shape] * 2
    for theirs, ours in zip(expected, found, strict=True):
        assert {**vars(ours), "where": ""} == {**vars(theirs), "where": ""}


@pytest.mark.parametrize("name", WRITERS)
def test_preferences_are_the_same_in_every_kind_of_file(tmp_path: Path, name: str) -> None:
    for number, (rows, form) in enumerate(
        ((PREFERENCES[:1], "pairs"), (PREFERENCES[1:], "pairs"), (LABELLED, "labels"))
    ):
        paths = [tmp_path / each for each in (f"{number}.jsonl", f"{number}{name}")]
        as_jsonl(paths[0], rows)
        WRITERS[name](paths[1], rows)
        expected, found = (read(path, form=form) for path in paths)
        for theirs, ours in zip(expected, found, strict=True):
            assert (ours.messages, ours.prompt, ours.completion, ours.system, ours.label) == (
                theirs.messages, theirs.prompt, theirs.completion, theirs.system, theirs.label,
            )  # fmt: skip
            sides = [each.rejected and (each.rejected.messages, each.rejected.completion) for each in (ours, theirs)]
            assert sides[0] == sides[1]


def test_what_preferences_say(tmp_path: Path) -> None:
    """A prompt given as text beside whole conversations is ignored, as TRL ignores it."""
    rows = [*PREFERENCES, {**PREFERENCES[1], "prompt": "?"}, {"prompt": "Hi", "chosen": [TALK[2]], "rejected": "No."}]
    found = read(write(tmp_path, *rows), form="pairs")
    no = {"role": "assistant", "content": "No."}
    assert (found[0].prompt, found[0].completion, found[0].system) == (*PAIR, "Be brief.")
    assert found[0].rejected is not None
    assert (found[0].rejected.prompt, found[0].rejected.completion) == (PAIR[0], "No.")
    for each in found[1:3]:
        assert each.messages == TALK
        assert each.rejected is not None
        assert each.rejected.messages == [*TALK[:2], no]
    assert found[3].messages == [{"role": "user", "content": "Hi"}, TALK[2]]


def test_what_the_shapes_say(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "d.jsonl", [row for rows in ROWS.values() for row in rows])
    found = read(tmp_path / "d.jsonl")
    for example in found[:4]:  # messages and ShareGPT, with the system message inside and outside the list
        assert example.messages == TALK
    assert [(e.prompt, e.completion, e.system) for e in found[4:8]] == [
        (*PAIR, "Be brief."),
        ("Say\n\nthis", "this", None),
        (*PAIR, "Be brief."),
        ("", "b", None),
    ]
    assert [example.text for example in found[8:]] == list(PAIR)


CALL = {"name": "add", "arguments": {"a": 1, "b": None}}
CALLED = [{"type": "function", "function": CALL}]


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": CALL}]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "arguments": '{"a": 1, "b": null}'}]},
        {"role": "assistant", "content": None, "function_call": CALL},
        {"from": "function_call", "value": json.dumps(CALL)},
    ],
)
def test_tool_calls_are_objects_as_templates_take_them(tmp_path: Path, turn: dict[str, Any]) -> None:
    tool = {"name": "add", "parameters": {"default": None}}
    for tools in ({"tools": [{"type": "function", "function": tool}]}, {"tools": json.dumps([tool])}):
        as_jsonl(tmp_path / "d.jsonl", [{"conversations": [{"from": "human", "value": "1+1?"}, turn], **tools}])
        [example] = read(tmp_path / "d.jsonl")
        assert example.messages == [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "", "tool_calls": CALLED},
        ]
        assert example.tools == [{"type": "function", "function": tool}]


@pytest.mark.parametrize("nothing", [[], None])
def test_an_empty_list_of_calls_is_none(tmp_path: Path, nothing: Any) -> None:
    [example] = read(write(tmp_path, {"messages": [TALK[1], {**TALK[2], "tool_calls": nothing}]}))
    assert example.messages == TALK[1:]


def test_keys_that_other_records_have_are_left_out_of_tables(tmp_path: Path) -> None:
    """Parquet gives every tool the keys of all tools, with nulls, which a template would print."""
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "g", "parameters": {"properties": {"b": {"enum": ["x"]}}}}},
    ]
    as_parquet(tmp_path / "d.parquet", [{"messages": TALK, "tools": [tool]} for tool in tools])
    assert [example.tools for example in read(tmp_path / "d.parquet")] == [[tool] for tool in tools]


def test_lists_of_messages_as_prompt_and_completion(tmp_path: Path) -> None:
    row = {"prompt": [*TALK, {"role": "user", "content": "?"}], "completion": [TALK[2]]}
    as_jsonl(tmp_path / "d.jsonl", [row])
    [example] = read(tmp_path / "d.jsonl")
    assert example.messages == [*TALK[:2], {**TALK[2], "weight": 0}, {"role": "user", "content": "?"}, TALK[2]]


@pytest.mark.parametrize(
    "mark", [{"train": False}, {"trainable": False}, {"loss": False}, {"loss_mask": 0}, {"masked": True}]
)
def test_an_answer_that_another_program_leaves_out_is_not_trained(tmp_path: Path, mark: dict[str, Any]) -> None:
    """Regression: the marks of Axolotl, verl, ms-swift and torchtune were unused, so the answer was trained."""
    [key], [value] = mark.keys(), mark.values()
    kept = {"role": "assistant", "content": "Yes.", key: not value}
    left_out = {"from": "gpt", "value": "No.", **mark}
    for rows in (
        {"messages": [TALK[1], left_out, TALK[1], kept]},
        {"conversations": [TALK[1], left_out, TALK[1], kept]},
    ):
        [example] = read(write(tmp_path, rows))
        assert example.messages is not None
        assert [turn.get("weight", 1) for turn in example.messages] == [1, 0, 1, 1]
        assert example.unused == ()
    [example] = read(write(tmp_path, {"messages": [TALK[1], {**TALK[2], "loss": 0.3}]}))  # a measured loss
    assert example.unused == ("messages[].loss",)
    [bad] = items(write(tmp_path, {"messages": [TALK[1], {**left_out, "weight": 1}]}))
    assert isinstance(bad, Bad)
    assert f'Message 2 has "{key}" and "weight", which contradict each other' in bad.problem


def test_parts_of_a_content_are_joined_and_what_is_no_text_is_refused(tmp_path: Path) -> None:
    parts: list[dict[str, str]] = [{"type": "text", "text": "Say "}, {"type": "text", "text": "a."}]
    path = write(tmp_path, {"messages": [{"role": "user", "content": parts}, TALK[2]]})
    [example] = read(path)
    assert example.messages is not None
    assert example.messages[0]["content"] == "Say a."
    parts.append({"type": "image_url", "image_url": "x"})
    path = write(tmp_path, {"messages": [{"role": "user", "content": parts}, TALK[2]]})
    with pytest.raises(FeatherbackError, match=r"Part 3 of message 1 is of type 'image_url'; only text can be"):
        read(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"chosen": "a", "rejected": "b", "prompt": "c"}, "this is a preference pair"),
        ({"role": "user", "content": "a"}, "a single message, not a conversation"),
        ({"from": "human", "value": "a"}, "a single message, not a conversation"),
        ({"conversations": "a"}, '"conversations" must be a non-empty list'),
        ({"messages": "[1"}, '"messages" is not valid JSON'),
        ({"instruction": "a", "output": ""}, '"output" is empty'),
        ({"instruction": "a"}, '"output" is missing'),
        ({"instruction": "a", "output": "b", "history": [["c", "d"]]}, '"history" is not supported'),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]}, "only the assistant calls tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"a": 1}]}]}, 'has no function "name"'),
        ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "arguments": "{"}]}]}, "are not valid JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "arguments": 1}]}]}, "must be an object"),
        ({"prompt": "a", "completion": "b", "tools": [CALL]}, '"tools" cannot be combined with a "prompt"'),
    ],
)
def test_what_is_refused_of_a_row(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    [bad] = items(write(tmp_path, row))
    assert isinstance(bad, Bad)
    assert bad.where == f"{tmp_path / 'data.jsonl'}, line 1"
    assert says in bad.problem


def test_columns_by_other_names(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("question;answer;prompt\nWhy?;Because;x\n")
    columns = columns_of(["prompt=question", "completion=answer"])
    [example] = read(path, columns=columns)
    assert (example.prompt, example.completion, example.unused) == ("Why?", "Because", ())
    with pytest.raises(FeatherbackError, match=r"line 2: there is no column 'q' for --map prompt=q; the columns"):
        read(path, columns={"prompt": "q"})
    with pytest.raises(FeatherbackError, match=r"--map names the unknown key 'promt'; expected one of:"):
        read(path, columns={"promt": "question"})
    for wrong in ("prompt", "prompt=", "=a"):
        with pytest.raises(FeatherbackError, match="expected KEY=COLUMN"):
            columns_of([wrong])


def test_an_error_names_the_column_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("question,answer\nWhy?,Because\nWhen?,\n")
    for columns in ({}, {"prompt": "question", "completion": "answer"}):
        with pytest.raises(FeatherbackError, match=r"""line 3: 'answer' \(read as "completion"\) is empty\."""):
            read(path, columns=columns)


def test_what_is_not_used_is_told(tmp_path: Path) -> None:
    [example] = read(write(tmp_path, {"messages": [{**TALK[1], "mood": 1}, TALK[2]], "id": 3, "score": None}))
    assert example.unused == ("id", "messages[].mood")


# --- places ---


def places(path: Path) -> list[str]:
    """Return the text of each good record, and the place and problem of each bad one."""
    return [
        f"{item.where.removeprefix(f'{path}, ')}: {item.problem}" if isinstance(item, Bad) else item.text
        for item in items(path)
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_an_array_is_cut_into_elements_wherever_pieces_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    rows = [{"text": text} for text in ('a"]},{[\\', "é\\\\", '\\"', "日本 [{")]
    pieces = Input.pieces
    monkeypatch.setattr(Input, "pieces", lambda self: pieces(self, size))
    for indent in (None, 2):
        path = tmp_path / "d.json"
        path.write_text("\ufeff\n" + json.dumps(rows, indent=indent, ensure_ascii=False) + "\n ", encoding="utf-8")
        assert [example.text for example in read(path)] == [row["text"] for row in rows]


def test_where_elements_of_an_array_are(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(
        b'[{"text": "\xc3\xa9"}, {"text": 1},\n  {"text":\n "b",}, 5, {"text": "c"]\n, '
        b'{"text": "\xff"}, {"text": "d"},]'
    )
    assert places(path) == [
        "é",
        'line 1, column 17: "text" must be a string, not a number.',
        'line 2, column 3: not valid JSON: a comma stands before a closing bracket, near \'{"text":\\n "b",}\'. '
        "Remove it.",
        "line 3, column 9: expected a JSON object, found a number.",
        "line 3, column 12: not valid JSON: Expecting ',' delimiter (line 3, column 24).",
        "line 4, column 13: not UTF-8 text: save the file as UTF-8. "
        "If a program on Windows saved it: --table encoding=cp1252.",
        "d",
        "line 4, column 32: a comma follows the last element of the array. Remove it.",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            '[{"text": "a"}, {"text": "b',
            "line 1, column 16: the array has no closing bracket; the file may be incomplete.",
        ),
        ('[{"text": "a"}]\n{"text": "b"}', "line 1, column 16: text follows the end of the array"),
    ],
)
def test_arrays_that_do_not_end_well(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "d.json").write_text(content)
    first, bad = places(tmp_path / "d.json")
    assert first == "a"
    assert says in bad


def test_a_key_that_is_there_twice_is_a_fault_of_its_record(tmp_path: Path) -> None:
    """Earlier, the last value was used without a note."""
    twice = '{"text": "a", "text": "b"}'
    nested = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "role": "user"}]}'
    spelled = '{"messages": "[{\\"role\\": \\"user\\", \\"role\\": \\"user\\"}]"}'
    rows = ['{"text": "a"}', twice, nested, spelled, '{"text": "b"}']
    path = tmp_path / "d.jsonl"
    path.write_text("\n".join(rows))
    lines, says = places(path), "appears twice in one object"
    assert [lines[0], lines[-1]] == ["a", "b"]
    assert lines[1].startswith(f"line 2: the key 'text' {says}")
    assert lines[2].startswith(f"line 3: the key 'role' {says}")
    assert lines[3].startswith("line 4: ")
    assert says in lines[3]
    path = tmp_path / "d.json"
    path.write_text(f"[{', '.join(rows)}]")
    array = places(path)
    assert [array[0], array[-1]] == ["a", "b"]
    assert array[1].startswith(f"line 1, column 17: the key 'text' {says}")
    assert array[2].startswith(f"line 1, column 45: the key 'role' {says}")


def test_an_array_of_nothing(tmp_path: Path) -> None:
    for content in ("[]", " [\n ]\n"):
        (tmp_path / "d.json").write_text(content)
        with pytest.raises(FeatherbackError, match="contains no examples, only an empty array"):
            read(tmp_path / "d.json")


def test_an_element_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MOST_RECORD", 1 << 17)
    (tmp_path / "d.json").write_text('[{"text": "a"}, {"text": "' + "b" * (1 << 19))
    with pytest.raises(FeatherbackError, match=r"d.json, line 1, column 16: the example is longer than 0 MB"):
        read(tmp_path / "d.json")


def test_where_rows_of_a_table_are(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(b'\xef\xbb\xbftext,id\r\n"a\nb",1\r\n\r\nc\r\n"d"e,2\r\n\xff,3\r\nf,4\r\n"g,5\r\n')
    assert places(path) == [
        "a\nb",
        "line 5: found 1 field, but there are 2 column names. Put a field that contains ',' in quotation marks.",
        "line 6: text follows the closing quotation mark of a field. Write a quotation mark inside a field as "
        '"", and check that the field before it is closed.',
        "line 7: not UTF-8 text: save the file as UTF-8. If a program on Windows saved it: --table encoding=cp1252.",
        "f",
        "line 9: a quoted field has no closing quotation mark.",
    ]


def test_a_table_whose_quotation_mark_is_missing_is_not_held(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    (tmp_path / "d.csv").write_text('text\n"a\n' + ("b" * 1023 + "\n") * (17 << 10) + "c\n")
    [bad, *_] = items(tmp_path / "d.csv")
    assert isinstance(bad, Bad)
    assert "line 2" in bad.where
    assert "a quotation mark is missing" in bad.problem
    assert csv.field_size_limit() == limit
    (tmp_path / "long.csv").write_text("text\n" + "a" * 200_000)
    [example] = read(tmp_path / "long.csv")
    assert len(example.text or "") == 200_000


@pytest.mark.parametrize("names", ["a,a", ",a,a"])
def test_a_table_needs_the_names_of_its_columns(tmp_path: Path, names: str) -> None:
    (tmp_path / "d.csv").write_text(f"{names}\n1,2\n")
    with pytest.raises(FeatherbackError, match="line 1: expected column names"):
        read(tmp_path / "d.csv")


def test_rows_of_parquet(tmp_path: Path) -> None:
    as_parquet(tmp_path / "d.parquet", [{"text": "a"}, {"text": None}] * 50)
    first, bad, *_ = items(tmp_path / "d.parquet")
    assert not isinstance(first, Bad)
    assert isinstance(bad, Bad)
    assert bad.where == f"{tmp_path / 'd.parquet'}, row 2"
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(FeatherbackError, match=r"Cannot read the Parquet file .*bad\.parquet: "):
        read(tmp_path / "bad.parquet")


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_parquet(tmp_path / "d.parquet", [{"text": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FeatherbackError, match=r"pip install 'featherback\[parquet\]'"):
        read(tmp_path / "d.parquet")


def test_tables_are_read_without_pandas_or_pyarrow(tmp_path: Path) -> None:
    as_jsonl(tmp_path / "d.jsonl", ROWS["text"])
    code = (
        "import sys\nfrom featherback.data.readers import data_files\nfrom featherback.data.source import Source\n"
        "list(data_files(Source.of(sys.argv[1]))[0].examples())\n"
        "print(sorted({'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "d.jsonl"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- folders and standard input ---


def test_a_folder_of_texts(tmp_path: Path) -> None:
    for name, content in {
        "b.md": "# b",
        "a.txt": "a\r\n",
        "empty.txt": "",
        "deep/c.TXT": "c",
        ".git/d.md": "d",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content.encode())
    (tmp_path / "photo.jpg").write_bytes(b"\xff")
    read_bytes = []
    [file] = data_files(Source.of(tmp_path), read_bytes.append)
    found = [(document.where, "".join(document.pieces)) for document in file.documents()]
    assert found == [(str(tmp_path / name), text) for name, text in
                     (("a.txt", "a\n"), ("b.md", "# b"), ("deep/c.TXT", "c"))]  # fmt: skip
    assert sum(read_bytes) == file.size == 7
    (tmp_path / "chats.jsonl").write_text("{}")
    with pytest.raises(FeatherbackError, match=r"only text files are read\..* --data .*a\.txt --data .*chats\.jsonl"):
        list(file.documents())
    (tmp_path / "deep" / "none").mkdir()
    with pytest.raises(FeatherbackError, match=r"no file whose name ends in \.txt or \.md"):
        list(data_files(Source.of(tmp_path / "deep" / "none"))[0].documents())


READ_TWICE = (
    "import sys\nfrom featherback.data.readers import data_files\nfrom featherback.data.source import Source\n"
    "for _ in range(2):\n"
    "    for file in data_files(Source.of('-')):\n"
    "        if file.holds_texts:\n"
    "            print(file.size, *(piece for document in file.documents() for piece in document.pieces))\n"
    "        else:\n"
    "            print(file.size, *(example.text for example in file.examples()))\n"
)


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.parquet", "data.txt"])
@pytest.mark.parametrize("pipe", [False, True])
def test_standard_input_is_read_as_often_as_needed(tmp_path: Path, name: str, pipe: bool) -> None:
    if name == "data.txt":
        (tmp_path / name).write_text("a b")
    else:
        WRITERS[name](tmp_path / name, [{"text": "a"}, {"text": "b"}])
    size = (tmp_path / name).stat().st_size
    with open(tmp_path / name, "rb") as file:
        source = {"input": file.read()} if pipe else {"stdin": file}
        done = subprocess.run([sys.executable, "-c", READ_TWICE], capture_output=True, check=True, **source)  # type: ignore[call-overload]
    assert done.stdout.decode().splitlines() == [f"{size} a b"] * 2
