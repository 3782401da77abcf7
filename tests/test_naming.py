"""Messages name options as their reader writes them, and what was probably meant."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from featherback.core.naming import argument, argument_is, arguments, as_flags, in_python
from featherback.errors import did_you_mean, expected, near
from tests.support.sources import parsed

PACKAGE = Path(__file__).parents[1] / "src" / "featherback"
COMMAND_LINE = ("cli", "worker.py", "core/failure.py", "federated")
"""What only the command line runs, and what names options of Flower's programs."""
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def test_on_the_command_line() -> None:
    assert argument("seq_len") == "--seq-len"
    assert argument("seq_len", 8) == "--seq-len 8"
    assert argument("cut", True) == "--cut"
    assert argument("from") == "--from"
    assert argument("map", ["prompt=the question", "a=b"]) == "--map 'prompt=the question' --map a=b"
    assert argument_is("rank", 0) == "--rank is 0"
    assert arguments("steps") == "--steps"
    assert arguments("steps", "epochs", "patience") == "--steps, --epochs or --patience"


@pytest.mark.usefixtures("in_python")
def test_in_python() -> None:
    assert argument("seq_len") == "seq_len"
    assert argument("seq_len", 8) == "seq_len=8"
    assert argument("cut", True) == "cut=True"
    assert argument("memory", "96MB") == 'memory="96MB"'
    assert argument("from") == "start"
    assert argument("map", ["prompt=question", "a=b"]) == 'map=["prompt=question", "a=b"]'
    assert argument_is("rank", 0) == "rank=0"
    assert argument_is("from", "''") == "start=''"
    assert arguments("steps", "epochs") == "steps or epochs"


@pytest.mark.usefixtures("in_python")
def test_the_words_of_a_process() -> None:
    assert in_python()
    with as_flags():
        assert not in_python()
        with as_flags():
            assert argument("lr") == "--lr"
        assert argument("lr") == "--lr"
    assert in_python()


def test_names_that_are_near() -> None:
    assert near("smollm2", ["smollm2-135m", "ollama:qwen"]) == ["smollm2-135m"]
    assert near("adam", ["adamw", "sgd", "lion"]) == ["adamw"]
    assert near("cos", ["cosine", "linear", "constant"]) == ["cosine"]
    assert near("--seqlen", ["--seed", "--seq-len", "--lr"]) == ["--seq-len"]
    assert near("lora_rank", ["rank", "alpha"]) == ["rank"]
    assert near("SEQ-LEN", ["seq_len"]) == ["seq_len"]
    assert near("xyzzy", ["cosine", "linear"]) == []
    assert near("", ["cosine"]) == []
    assert near("a" * 10_000_000, ["adamw"]) == []
    assert did_you_mean([]) == ""
    assert did_you_mean(["a", "b", "c"]) == " Did you mean `a`, `b` or `c`?"
    assert expected("cos", ["cosine", "linear"]) == "expected one of: cosine, linear. Did you mean `cosine`?"


def sentences(source: Path) -> Iterator[str]:
    """The texts of a module that have several words, but for docstrings and the help of the command line."""
    tree = parsed(source)
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "shown_default"):
            left_out.update(ast.walk(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.value


COMMANDS = ("featherback ", "pandoc ", "soffice ")
"""Programs whose whole commands messages quote."""


def test_no_message_that_python_may_see_spells_a_flag() -> None:
    """`argument("seq_len")` is how a message names an option."""
    found = []
    for source in sorted(PACKAGE.rglob("*.py")):
        place = source.relative_to(PACKAGE).as_posix()
        if place.startswith(COMMAND_LINE) or "/report/" in place:
            continue
        found += [
            f"{place}: {text!r}"
            for text in sentences(source)
            if " " in text.strip() and _FLAG.search(text) and not text.startswith(("# ", *COMMANDS))
        ]
    assert not found, "messages that spell a flag:\n" + "\n".join(found)


def test_a_planted_flag_is_found(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text('"""Doc --a."""\nx = option(help="see --b")\nraise E(f"lower --lr {x}")\n')
    assert [text for text in sentences(source) if _FLAG.search(text)] == ["lower --lr "]
