"""Every reader limits the memory of a record and of a batch before it decodes them, with a budget and without."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from benchmarks import watch
from featherback.data.example import Bad
from featherback.data.record_size import MOST_COLUMNS, MOST_VALUES
from featherback.data.source import Source
from featherback.engine.host.process_tree import tree_unshared_rss
from featherback.errors import FeatherbackError, near
from featherback.runs.memory_watch import MemoryWatch
from tests.data.test_readers import items, read
from tests.support import tiers

MB = 10**6
OBJECTS = ",".join(["{}"] * MOST_VALUES)


def _table(path: Path, columns: dict[str, object], **how: object) -> Path:
    parquet.write_table(pyarrow.table(columns), path, compression="zstd", **how)
    return path


def _one_text(path: Path) -> Path:
    return _table(path, {"prompt": ["x" * 200_000_000], "completion": ["y"]})


def _one_text_many_times(path: Path) -> Path:
    return _table(path, {"prompt": ["x" * 15_000_000] * 100, "completion": ["y"] * 100})


def _long_list(path: Path) -> Path:
    return _table(path, {"messages": pyarrow.array([[{"role": "user", "content": "a"}] * 3_000_000])})


def _deep_lists(path: Path) -> Path:
    value: object = ["a"] * 40
    for _ in range(3):
        value = [value] * 40
    return _table(path, {"messages": [value]})


def _many_rows(path: Path) -> Path:
    return _table(path, {"text": pyarrow.array(["a"] * 20_000_000).dictionary_encode()})


def _nulls(path: Path) -> Path:
    return _table(path, {"text": pyarrow.nulls(30_000_000, pyarrow.string())})


def _many_columns(path: Path) -> Path:
    return _table(path, {f"c{number}": [1] for number in range(MOST_COLUMNS + 1)})


def _booleans(path: Path) -> Path:
    return _table(path, {"prompt": [[True] * 20_000_000], "completion": ["y"]})


BOMBS = (
    _one_text, _one_text_many_times, _long_list, _deep_lists, _many_rows, _nulls, _many_columns, _booleans,
)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits what a process allocates")
@pytest.mark.parametrize("bomb", tiers.some(BOMBS, 1), ids=lambda bomb: bomb.__name__.strip("_"))
def test_a_small_parquet_file_that_stands_for_gigabytes_is_refused(tmp_path: Path, usual: float, bomb: object) -> None:
    """Regression: a file of 6.8 KB took 6.5 GB, and one of 1 KB took 2.4 GB."""
    output, tree_mb = watched(bomb(tmp_path / "d.parquet"))  # type: ignore[operator]
    assert "refused" in output
    assert tree_mb < usual + 200, "a row of 15 MB takes 100 MB in each of two processes"


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The memory, in MB, that reading a small file takes."""
    return watched(_table(tmp_path_factory.mktemp("good") / "good.parquet", {"text": ["a"]}))[1]


def watched(path: Path) -> tuple[str, float]:
    """Return what a process that reads the file prints, and the most memory that it and its children take, in MB."""
    words = "from tests.data.test_record_limits import tries; import sys; tries(sys.argv[1])"
    found = watch.run([sys.executable, "-c", words, str(path)], tree=True)
    assert found.tree_mb is not None
    return found.output, found.tree_mb


def tries(path: str) -> None:
    """Read a file, and print whether it is refused."""
    try:
        print(sum(not isinstance(each, Bad) for each in items(path)))
    except FeatherbackError as error:
        print("refused:", error)


def test_values_that_are_long_but_fit_are_read_row_by_row(tmp_path: Path) -> None:
    texts = [os.urandom(500_000).hex() for _ in range(26)] + ["z"] * 10
    path = _table(tmp_path / "d.parquet", {"text": texts}, row_group_size=20)
    assert [example.text for example in read(path)] == texts


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.jsonl", f'{{"messages": [{OBJECTS}]}}'),
        ("d.json", f'[{{"text": "a"}}, {{"messages": [{OBJECTS}]}}]'),
        ("d.jsonl", json.dumps(dict.fromkeys(map(str, range(MOST_VALUES + 2)), 1))),
        ("d.csv", f'messages\n"[{OBJECTS}]"\n'),
        ("d.jsonl", json.dumps({"messages": f"[{OBJECTS}]"})),
        ("d.csv", ",".join(map(str, range(MOST_COLUMNS + 1))) + "\n1\n"),
        ("d.csv", "a,b\n1" + "," * (MOST_VALUES + 1)),
    ],
)
def test_too_many_values_are_refused_before_they_are_parsed(tmp_path: Path, name: str, content: str) -> None:
    """Regression: 12 MB of `{},` took 356 MB."""
    (tmp_path / name).write_text(content)
    with pytest.raises(FeatherbackError, match=f"more than {MOST_VALUES}|at most {MOST_COLUMNS} are read"):
        read(tmp_path / name)


def test_commas_and_brackets_in_a_text_are_no_values(tmp_path: Path) -> None:
    row = {"text": ',[{"' * MOST_VALUES}
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    (tmp_path / "d.json").write_text(json.dumps([row]))
    for name in ("d.jsonl", "d.json"):
        assert [len(example.text) for example in read(tmp_path / name)] == [4 * MOST_VALUES]


def test_a_misspelt_name_is_compared_with_a_few_others_only() -> None:
    """Regression: comparing it with 900,000 keys took two minutes."""
    compared = []

    def names() -> object:
        for number in range(100_000):
            compared.append(number)
            yield f"name {number}"

    assert near("name 7x", names())  # type: ignore[arg-type]
    assert len(compared) <= 1000


# --- budgets of the process that decodes ---


def test_half_of_the_memory_that_is_left_is_lent_to_the_decoding_process() -> None:
    watching = MemoryWatch("d.parquet", tree_unshared_rss(os.getpid()) + 80 * MB)
    watching.sample_memory(now=True)
    before = watching.most
    assert before < 16 << 20
    lent = watching.lend("d.parquet")
    assert 30 * MB < lent <= 40 * MB
    assert watching.most < before, "a record has less room while the other process decodes"
    watching.take_back(lent)
    assert watching.most == before


def test_a_refusal_of_a_row_names_a_budget_with_room_for_any_row() -> None:
    watching = MemoryWatch("d.parquet", 1)
    watching.sample_memory(now=True)
    assert watching.lend("d.parquet") == 0
    assert watching.refused
    with pytest.raises(FeatherbackError, match=r"decoding d.parquet needs more. Use --memory \d+MB, or split"):
        watching.conclude()


def test_what_decoding_took_counts_for_the_least_budget() -> None:
    watching = MemoryWatch("d.parquet")
    watching.sample_memory(now=True)
    before = watching.used
    watching.lend("d.parquet")
    watching.take_back(20 * MB)
    assert watching.used >= before + 40 * MB


# --- links ---


def test_a_link_that_leads_out_of_a_folder_of_texts_is_refused(tmp_path: Path) -> None:
    """Regression: a link to /etc/passwd became training text."""
    folder, outside = tmp_path / "notes", tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    outside.mkdir()
    (folder / "a.txt").write_text("a")
    (outside / "secret.txt").write_text("secret")
    (folder / "deep" / "same.txt").symlink_to("../a.txt")
    assert [document.where for document in _documents(folder)] == [
        str(folder / "a.txt"), str(folder / "deep" / "same.txt"),
    ]  # fmt: skip
    (tmp_path / "named").symlink_to(folder)
    assert len(_documents(tmp_path / "named")) == 2, "the path that the user gives may be a link"
    for place, target in (
        ("b.txt", outside / "secret.txt"),
        ("deep/b.md", Path("../../outside/secret.txt")),
        ("photo.jpg", outside / "secret.txt"),
        ("more", outside),
        ("none.txt", outside / "missing.txt"),
        ("p.txt", Path("/proc/self/root/etc/passwd")),
    ):
        (folder / place).symlink_to(target)
        with pytest.raises(FeatherbackError, match=r"is a link to .*, outside the folder .*, and is not followed\."):
            _documents(folder)
        (folder / place).unlink()


def _documents(folder: Path) -> list[object]:
    from featherback.data.readers import data_files

    return [document for file in data_files(Source.of(folder)) for document in file.documents()]
