"""docs/everyday.md: its file is read, its sizes are sizes."""

from __future__ import annotations

import re
from pathlib import Path

from featherback.runs import parse
from featherback.runs.run_file import read

PAGE = (Path(__file__).parents[2] / "docs" / "everyday.md").read_text(encoding="utf-8")


def _example(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_example("yaml"))
    file = read(path)
    assert file.model == "model.gguf"
    assert file.values["learning_rate"] == 1e-4
    assert file.values["data"] == ("notes.jsonl", "more.jsonl")
    assert len(file.values) == 6


def test_the_sizes_are_sizes() -> None:
    [line] = [line for line in PAGE.splitlines() if line.startswith("`--memory 96MB`")]
    sizes = [size.removeprefix("--memory ") for size in re.findall(r"`([^`]*)`", line)]
    assert [parse.memory(size) for size in sizes] == [96_000_000, 1_500_000_000, 67_108_864, 96_000_000]
