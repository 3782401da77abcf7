"""The wheels of a release, those that `make wheel` builds, and what pyproject.toml supports are the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tools.wheels import FOLLOWING, TRIALS, VERSIONS, Python, dotted

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_there_is_a_wheel_for_every_python_that_is_supported() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = int(project["project"]["requires-python"].removeprefix(">=3."))
    stable = int(project["tool"]["scikit-build"]["wheel"]["py-api"].removeprefix("cp3"))
    assert tuple((3, minor) for minor in range(oldest, stable + 1)) == VERSIONS
    assert project["tool"]["cibuildwheel"]["build"] == [f"cp{major}{minor}-*" for major, minor in VERSIONS]


def test_the_workflow_has_every_python_that_wheels_are_built_for_and_tried_on() -> None:
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    steps = [step for job in jobs for step in job["steps"]]
    lists = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    assert len(lists) == 2
    for versions in lists:
        assert set(versions.split()) == {dotted(version) for version in VERSIONS + FOLLOWING}


@pytest.mark.parametrize(
    ("wheel", "version", "machine", "fits"),
    [
        ("cp310-cp310-manylinux_2_17_x86_64", (3, 10), "x86_64", True),
        ("cp310-cp310-manylinux_2_17_x86_64", (3, 11), "x86_64", False),
        ("cp310-cp310-manylinux_2_17_x86_64", (3, 10), "aarch64", False),
        ("cp312-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64", (3, 13), "aarch64", True),
        ("cp312-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64", (3, 11), "aarch64", False),
    ],
)
def test_wheels_are_tried_on_what_they_are_for(wheel: str, version: tuple[int, int], machine: str, fits: bool) -> None:
    python = SimpleNamespace(version=version, machine=machine)
    assert Python.runs(python, Path(f"dist/featherback-0.1.0-{wheel}.whl")) is fits  # type: ignore[arg-type]


def test_the_page_says_how_each_platform_was_tried() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    table = page.partition("<!-- table trials -->\n")[2].partition("<!-- end -->")[0]
    rows = [f"| {platform} | {how} | {command and f'`{command}`'} |" for platform, how, command in TRIALS]
    assert table.splitlines()[2:] == [row.replace("|  |", "| |") for row in rows]


def test_the_commands_that_try_platforms_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in {command for *_, command in TRIALS if command}:
        program, *words = command.split()
        if program == "make":
            assert all(f"\n{word}:" in makefile for word in words), command
        else:
            assert f"    {command} " in (ROOT / "tools" / "windows.py").read_text(), command
