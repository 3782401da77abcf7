"""How many adapters a server keeps open, whatever names requests give them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from featherback.models import load
from featherback.web.openai import shelf
from featherback.web.openai.shelf import Shelf
from featherback.web.refusal import RefusedError
from tests.web.conftest import Files

LOADED, NAMED = 3, 6


class Opened:
    """An adapter that counts how many are open."""

    count = 0

    def __init__(self) -> None:
        Opened.count += 1

    def close(self) -> None:
        Opened.count -= 1


@pytest.fixture
def kept(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """A shelf of a folder with eight adapters, which keeps three of them open and six names."""
    monkeypatch.setattr(shelf, "MOST_LOADED", LOADED)
    monkeypatch.setattr(shelf, "MOST_NAMED", NAMED)
    monkeypatch.setattr(Opened, "count", 0)
    for number in range(8):
        shutil.copytree(files.notes, tmp_path / f"a{number}")
    opened: Any = lambda model, path: Opened()  # noqa: E731
    found = Shelf(load(files.model), "tiny", [tmp_path], opened)
    yield found
    found.close()
    assert Opened.count == 0


def test_names_of_one_adapter_share_it(kept: Shelf) -> None:
    for number in range(NAMED):
        kept.add(f"name {number}", "a0")
    assert Opened.count == 1
    with pytest.raises(RefusedError, match=f"added {NAMED} adapters, .* Remove one") as refused:
        kept.add("one more", "a0")
    assert refused.value.status == 409
    for number in range(NAMED - 1):
        kept.remove(f"name {number}")
        assert Opened.count == 1
    kept.remove(f"name {NAMED - 1}")
    assert Opened.count == 0
    kept.add("one more", "a1")


def test_the_adapters_that_are_open_are_limited(kept: Shelf) -> None:
    for _ in range(2):
        for number in range(8):
            taken = kept.take(f"a{number}")
            assert taken is not None
            taken.release()
            assert Opened.count <= LOADED


def test_an_adapter_that_is_used_stays_open(kept: Shelf) -> None:
    used = kept.take("a0")
    assert used is not None
    for number in range(1, 8):
        kept.add(f"a{number}", f"a{number}")
    assert Opened.count == LOADED + 1
    used.release()
    assert Opened.count == LOADED


def test_a_refusal_names_no_folder(kept: Shelf, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as refused:
        kept.add("x", "../elsewhere")
    assert refused.value.status == 403
    assert str(tmp_path) not in str(refused.value)
