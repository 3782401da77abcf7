"""docs/data.md: every example has the shape that it states, and the table lists all suffixes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from featherback.data.containers import CONTAINERS
from featherback.data.source import columns_of
from tests.data.test_readers import read

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(jsonl|json|csv|tsv) (\w+) ?(.*)\n((?:.|\n)*?)```", PAGE)


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{kind} {shape}" for kind, shape, _, _ in BLOCKS])
def test_examples(tmp_path: Path, block: tuple[str, str, str, str]) -> None:
    kind, shape, columns, content = block
    path = tmp_path / f"data.{kind}"
    path.write_text(content, encoding="utf-8")
    found = read(path, columns=columns_of(columns.split()))
    assert {(example.shape, example.unused) for example in found} == {(shape, ())}


def test_every_shape_and_every_name_is_there() -> None:
    others = PAGE.count("```sh") + PAGE.count("```text")  # commands, and a chat for them
    assert len(BLOCKS) == PAGE.count("```") // 2 - others
    assert {shape for _, shape, _, _ in BLOCKS} == {"messages", "sharegpt", "alpaca", "prompt_completion", "text"}
    table = "".join(line for line in PAGE.splitlines() if line.startswith("|"))
    for name in CONTAINERS.names:
        for suffix in CONTAINERS[name].suffixes:
            assert f"`{suffix}`" in table
