"""Every figure that README and docs quote is the one in its result file, and pages quote no other figures."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import figures, results
from benchmarks.figures import FIGURES, PICTURES, digest, drawn_from, pages, rendered, run_picture, without_figures
from benchmarks.measure import parts
from benchmarks.place import Place
from benchmarks.results import FOLDER, ROOT, Result
from featherback.errors import FeatherbackError

RENEW = "it differs from docs/results: run `make figures`"
TRACED = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "small-machines.md")
"""Pages on which every measured figure comes from a result file."""
_MEASURED = re.compile(r"\d[\d,.]*(?:\s| to | - )?(?:MB|GB|ms|s|seconds|minutes|hours|times|x|%|tok/s|GFLOP/s)(?!\w)")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NOT_MEASURED = {
    "98 MB": "a download's size",
    "96 MB": "an example of a budget",
    "1 MB": "the unit, and a board's memory in the pages that name it",
    "1 GB": "a board's memory",
    "6 s": "10^6 bytes",
    "10 minutes": "the time that llama.cpp takes to build",
    "25 minutes": "the time of make measure",
}


@pytest.fixture(scope="module")
def found() -> Mapping[str, Result]:
    return results.read_all()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_quoted_figures(page: Path, found: Mapping[str, Result]) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == rendered(text, found), RENEW


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str, found: Mapping[str, Result]) -> None:
    part, _ = PICTURES[name]
    assert drawn_from(FIGURES / f"{name}.svg") == digest(found[part]), RENEW


def test_the_recorded_run_is_its_picture(found: Mapping[str, Result]) -> None:
    text = (FIGURES / "run.svg").read_text(encoding="utf-8")
    assert text.startswith(run_picture(found).rstrip()), RENEW


@pytest.mark.parametrize("page", TRACED, ids=lambda page: page.name)
def test_no_figure_is_typed_by_hand(page: Path) -> None:
    assert not typed(page.read_text(encoding="utf-8")), "quote it from a result file: benchmarks/figures.py says how"


def typed(text: str) -> list[str]:
    """What looks like a measured figure outside of quotes, code and links."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", _FENCED.sub("", without_figures(text)))
    return [each for each in (match[0] for match in _MEASURED.finditer(prose)) if each not in NOT_MEASURED]


def test_every_part_has_a_file(found: Mapping[str, Result]) -> None:
    assert set(found) == set(parts())
    for name, result in found.items():
        assert result.name == name
        assert result.rows, name
        assert result.command == parts()[name].run_by
        for path in result.measures:
            assert (ROOT / path).exists(), f"{FOLDER / name}.json measures {path}, which does not exist"


# Planted faults


QUOTE = "It takes <!--=memory:0.5b-256-mesp:footprint_mb-->{}<!--/--> MB."


def test_a_wrong_figure_is_noticed(found: Mapping[str, Result]) -> None:
    value = found["memory"].rows["0.5b-256-mesp"]["footprint_mb"]
    right, wrong = QUOTE.format(f"{value:.0f}"), QUOTE.format(f"{value + 1:.0f}")
    assert rendered(right, found) == right
    assert rendered(wrong, found) == right


def test_a_changed_result_is_noticed_on_the_front_page(found: Mapping[str, Result]) -> None:
    changed = copy.deepcopy(dict(found))
    changed["peft"].rows["0.5b-ours-least"]["footprint_mb"] += 10
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert rendered(text, changed) != text


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("memry:0.5b-256-mesp:footprint_mb", r"unknown result file 'memry'.*Did you mean .memory"),
        ("memory:0.5b-257-mesp:footprint_mb", "no row '0.5b-257-mesp'"),
        ("memory:0.5b-256-mesp:footprint", "no 'footprint'"),
        ("memory:@dat", "unknown fact @dat"),
        ("derived:budget-runs", "unknown figure"),
    ],
)
def test_a_figure_that_is_in_no_file_is_noticed(asked: str, says: str, found: Mapping[str, Result]) -> None:
    with pytest.raises(FeatherbackError, match=says):
        figures.figure(asked, found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It takes 34 MB.", ["34 MB"]),
        ("| a | 0.75 s |", ["0.75 s"]),
        ("It is 3.1 times as fast, at 12% less.", ["3.1 times", "12%"]),
        (QUOTE.format(34), []),
        ("Name `--memory 34MB`.\n```sh\nfeatherback plan m --memory 34MB\n```\n", []),
    ],
)
def test_a_figure_typed_by_hand_is_noticed(text: str, expected: list[str]) -> None:
    assert typed(text) == expected


def test_every_row_has_a_name_of_its_own(tmp_path: Path) -> None:
    place = Place(tmp_path, print)
    for part in parts().values():
        assert part.rows(place), part.name
        assert not any(" " in key or ":" in key for key in part.rows(place)), part.name


def test_how_figures_look() -> None:
    sizes = [figures.shown(value, "rss_mb") for value in (37.6, 2240.0, None)]
    assert sizes == ["38", "2,240", "-"]
    assert [figures.shown(value, "step_s") for value in (0.754, 1.94, 56.8)] == ["0.75", "1.9", "57"]
    assert [figures.shown(value, "ratio") for value in (3.14, 12.6)] == ["3.1", "13"]
