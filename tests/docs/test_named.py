"""What the pages only name: commands in sentences, and in blocks that do not run.

Their options are those of the command line, the targets the Makefile's, the extras the package's; scripts are there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from featherback.cli.app import read
from featherback.cli.commands import COMMANDS, command_of
from featherback.cli.help import GENERAL
from featherback.cli.parameters import parameters_of
from featherback.errors import FeatherbackError
from tests.docs.pages import PAGES, ROOT, blocks, name_of, spans

PROGRAMS = ("featherback", "make", "pip", ".venv/bin/python")
_PREFIX = re.compile(r"(sudo|nohup|\w+=\S*)$")
"""Words before a program's name."""
_REDIRECTION = re.compile(r"\d?[<>]\S*\s*\S+")


def programs(line: str) -> Iterator[list[str]]:
    """The words of each program that a line of a shell starts."""
    line = _REDIRECTION.sub(" ", line) if "'" not in line else line
    for part in re.split(r"&&|[|;&]", line):
        words = shlex.split(part, comments=True)
        while words and _PREFIX.match(words[0]):
            del words[0]
        if words:
            yield words


def said(page: Path) -> Iterator[tuple[str, list[str], bool]]:
    """Where each command that is not run stands, its words, and whether it is whole."""
    for block in blocks(page):
        if block.language == "sh" and not block.runs:
            for command in block.commands():
                yield from ((block.where, words, True) for words in programs(command))
    for span in spans(page):
        if span.split()[0] in PROGRAMS and "..." not in span:
            yield name_of(page), shlex.split(span), False


def problem(words: list[str], whole: bool) -> str | None:
    """Return what is wrong with a command, as far as that is visible without running it."""
    program, *rest = words
    if program == "featherback" and rest:
        return _of_featherback(rest, whole)
    if program == "make" and rest:
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if rest[0] in targets else f"no target {rest[0]}"
    if program == "pip":
        known = re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        extras = [extra for word in rest for extra in re.findall(r"\[([\w-]+)\]", word)]
        return next((f"no extra {extra}" for extra in extras if extra not in known), None)
    if program == ".venv/bin/python" and rest:
        return _of_python(rest)
    return None


def _of_featherback(words: list[str], whole: bool) -> str | None:
    name, *rest = words
    if name not in COMMANDS and not name.startswith("-"):
        return f"no command {name}"
    if name.startswith("-") or not whole:
        words = [name] if name.startswith("-") else rest
        return next((f"no option {word}" for word in words if unknown(word, options_of(name))), None)
    try:
        read(words)
    except FeatherbackError as error:
        return str(error)
    return None


def _of_python(words: list[str]) -> str | None:
    if words[:2] == ["-m", "pytest"]:
        return None
    path = words[1].replace(".", "/") if words[0] == "-m" else words[0]
    places = (ROOT / path, ROOT / f"{path}.py", ROOT / "src" / f"{path}.py", ROOT / path / "__main__.py")
    source = next((place for place in places if place.is_file()), None)
    if source is None:
        return f"no file {path}"
    text = source.read_text(encoding="utf-8")
    return next((f"no option {word}" for word in words[1:] if word.startswith("--") and word not in text), None)


@cache
def options_of(name: str) -> set[str]:
    """The options of a command of `featherback`, or with an option in its place those of all of them."""
    general = {flag for flags in GENERAL for flag in flags.split(", ")}
    if name.startswith("-"):
        return general
    own = {flag for each in parameters_of(command_of(name)) for flag in (*each.flags, *each.about.aliases)}
    return own | {"--help", "-h", "--help-all"}


def unknown(word: str, known: set[str]) -> bool:
    return word.startswith("--") and word.partition("=")[0] not in known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_only_named(page: Path) -> None:
    wrong = [
        f"{where}: {' '.join(words)}: {what}" for where, words, whole in said(page) if (what := problem(words, whole))
    ]
    assert not wrong, "\n".join(wrong)


@cache
def every_option() -> set[str]:
    """Return the options of all commands, and of the scripts that measure."""
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").rglob("*.py"))
    known = set(re.findall(r'"(--[a-z][a-z-]*)"', scripts))
    return known.union(*map(options_of, (*COMMANDS, "--help")))


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=name_of)
def test_options_in_sentences(page: Path) -> None:
    wrong = [span for span in spans(page) if span.startswith("--") and unknown(span.split()[0], every_option())]
    assert not wrong, f"{name_of(page)}: no such option: {', '.join(wrong)}"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("nohup featherback train m.gguf --data d --out r --rnak 4 > log 2>&1 &", "--rnak"),
        ("git clone x && featherback trian m.gguf", "no command trian"),
        ("featherback generate --prompt x", "MODEL"),
        ("make tests", "no target tests"),
        ("pip install '.[hubs]'", "no extra hubs"),
        ("sudo .venv/bin/python benchmarks/cgroup_cap.py m.gguf --limits 96MB", "--limits"),
        (".venv/bin/python benchmarks/nothing.py", "no file"),
        ("A=1 pip install '.[hub]' && make docs", ""),
    ],
)
def test_what_is_wrong_is_noticed(line: str, what: str) -> None:
    found = [each for words in programs(line) if (each := problem(words, whole=True))]
    assert bool(found) == bool(what)
    assert what in "".join(found)
