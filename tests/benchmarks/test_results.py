"""Result files: what they record, how they are continued, and the warning when they are older than their code."""

from __future__ import annotations

import json
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.measure import Part, _measure
from benchmarks.place import Place, SkippedRowError
from benchmarks.results import Result, changed_since
from featherback.errors import FeatherbackError


def test_old_results_are_listed() -> None:
    """A warning, not a failure: new code is measured before a release, not with each change."""
    for line in results.warnings(list(results.read_all().values())):
        warnings.warn(line, stacklevel=1)


def test_what_a_file_records(tmp_path: Path) -> None:
    result = Result.begin("memory", "make measure PARTS=memory", ["csrc"])
    result.rows = {"a": {"rss_mb": 1.5}, "b": {"rss_mb": 2.0}}
    result.write(tmp_path / "memory.json")
    assert Result.read(tmp_path / "memory.json") == result
    values = json.loads((tmp_path / "memory.json").read_text())
    assert len(values["commit"]) == 40
    assert len(values["date"].split("-")) == 3
    assert {"cpu", "instruction_sets", "kernels", "cores"} <= set(values["machine"])
    assert {"python", "numpy"} <= set(values["versions"])
    assert not (tmp_path / "memory.new").exists()


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"name": "a"}')
    with pytest.raises(FeatherbackError, match="is not a result file"):
        Result.read(tmp_path / "a.json")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a module and a kernel, committed."""
    for name, text in (("a.py", '"""A module."""\n\nN = 1  # one\n'), ("k.cpp", "int n = 1;  // one\n"), ("b.py", "")):
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    options = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *options, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def commit(folder: Path) -> str:
    git(folder, "commit", "-q", "-a", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD").strip()


def measured(folder: Path, **changed: object) -> Result:
    head = git(folder, "rev-parse", "HEAD").strip()
    result = Result("speed", "make measure PARTS=speed", head, "2026-01-02", {}, {}, ["a.py", "k.cpp"])
    return replace(result, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""A module."""\n\nN = 2  # one\n', ["a.py"]),
        ("a.py", '"""Another text."""\n\nN = 1  # the first\n', []),
        ("k.cpp", "int n = 2;  // one\n", ["k.cpp"]),
        ("k.cpp", "int n = 1;  /* the\n first */\n", []),
        ("b.py", "N = 2\n", []),
    ],
)
def test_code_that_changed(repository: Path, name: str, text: str, expected: list[str], committed: bool) -> None:
    result = measured(repository)
    (repository / name).write_text(text)
    if committed:
        commit(repository)
    assert changed_since(result, repository) == expected
    lines = results.warnings([result], repository)
    assert len(lines) == len(expected)
    for line in lines:
        assert f"is older than the code that it measures: {name} changed" in line
        assert "Run `make measure PARTS=speed`." in line


def test_a_file_that_is_gone_or_new(repository: Path) -> None:
    result = measured(repository, measures=["a.py", "c.py"])
    (repository / "a.py").unlink()
    (repository / "c.py").write_text("N = 1\n")
    assert changed_since(result, repository) == ["a.py", "c.py"]


def test_an_unknown_commit_is_said(repository: Path) -> None:
    (line,) = results.warnings([measured(repository, commit="0" * 40)], repository)
    assert "git does not know this commit" in line


PLAIN = {"machine": {"cpu": "a"}, "versions": {}}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Result:
    """What a new result has: this commit, nothing modified."""
    result = Result("part", "make measure PARTS=part", "1" * 40, "2026-01-02", {"cpu": "a"}, {}, [])
    monkeypatch.setattr(Result, "begin", classmethod(lambda cls, *_: replace(result, rows={}, missing={})))
    return result


def test_a_measurement_goes_on_where_it_stopped(begun: Result, tmp_path: Path) -> None:
    done: list[str] = []
    broken = True

    def row(key: str) -> dict[str, int]:
        if key == "b" and broken:
            raise KeyboardInterrupt
        done.append(key)
        return {"n": len(done)}

    part = Part("part", lambda _: {key: lambda key=key: row(key) for key in "abc"}, 1, ())
    place = Place(tmp_path, lambda _: None, patience=0)
    with pytest.raises(KeyboardInterrupt):
        _measure(part, place, tmp_path / "results", tmp_path / "unfinished", None)
    assert not (tmp_path / "results").exists()
    broken = False
    _measure(part, place, tmp_path / "results", tmp_path / "unfinished", None)
    assert done == ["a", "b", "c"]
    assert list(Result.read(tmp_path / "results" / "part.json").rows) == ["a", "b", "c"]
    assert not list((tmp_path / "unfinished").iterdir())


def test_rows_of_other_code_are_measured_again(begun: Result, tmp_path: Path) -> None:
    old = replace(begun, commit="2" * 40, rows={"a": {"n": 0}})
    old.write(tmp_path / "unfinished" / "part.json")
    part = Part("part", lambda _: {"a": lambda: {"n": 1}}, 1, ())
    _measure(part, Place(tmp_path, lambda _: None, patience=0), tmp_path / "results", tmp_path / "unfinished", None)
    assert Result.read(tmp_path / "results" / "part.json").rows["a"]["n"] == 1


def test_a_row_that_this_machine_cannot_measure(begun: Result, tmp_path: Path) -> None:
    def row() -> dict[str, int]:
        raise SkippedRowError("it needs 6 GB of free disk, and 3 GB are free")

    part = Part("part", lambda _: {"a": row, "b": lambda: {"n": 1}}, 1, ())
    _measure(part, Place(tmp_path, lambda _: None, patience=0), tmp_path / "results", tmp_path / "unfinished", None)
    found = Result.read(tmp_path / "results" / "part.json")
    assert (list(found.rows), list(found.missing)) == (["b"], ["a"])
