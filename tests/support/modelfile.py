"""Modelfiles by Ollama's documentation of them (https://docs.ollama.com/modelfile), and nothing of Featherback's.

Stricter than Ollama where it would take a mistake for something else: a path that is not there for a model's name, a
mistyped parameter for one of its own, characters that cannot be seen for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

INSTRUCTIONS = ("FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "REQUIRES")
ONCE = ("FROM", "TEMPLATE", "SYSTEM", "ADAPTER", "REQUIRES")
ROLES = ("system", "user", "assistant")
PARAMETERS: dict[str, Callable[[str], object]] = {
    "num_ctx": int,
    "repeat_last_n": int,
    "repeat_penalty": float,
    "temperature": float,
    "seed": int,
    "stop": str,
    "num_predict": int,
    "draft_num_predict": int,
    "top_k": int,
    "top_p": float,
    "min_p": float,
}
"""The documented parameters, and what their values are."""
TRIPLE = '"""'
_WORD = re.compile(r"[ \t]*([A-Za-z]+)(?:[ \t]+|$)")
_ACTION = re.compile(r"\{\{-? *(\w*).*?\}\}", re.DOTALL)
_OPENS = ("if", "range", "with", "define", "block")


class ModelfileError(Exception):
    """What is wrong, and in which line."""


class Instruction(NamedTuple):
    """One instruction; `key`: a parameter's name or a message's role."""

    name: str
    key: str
    value: str


def parse(text: str) -> list[Instruction]:
    """A Modelfile's instructions; ModelfileError if it is none."""
    found, at = [], 0
    while at < len(text):
        start, (line, at) = at, _line(text, at)
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        number = text.count("\n", 0, start) + 1
        word = _WORD.match(line)
        name = word[1].upper() if word else ""
        if word is None or name not in INSTRUCTIONS:
            raise ModelfileError(f"line {number}: {line[:40]!r} is no instruction")
        rest, key = start + word.end(), ""
        if name in ("PARAMETER", "MESSAGE"):
            key, between = re.match(r"(\S*)([ \t]*)", text[rest:at]).groups()  # type: ignore[union-attr]
            rest += len(key + between)
        value, at = _value(text, rest, at, number)
        _check(Instruction(name, key, value), number)
        found.append(Instruction(name, key, value))
    names = [each.name for each in found]
    if "FROM" not in names:
        raise ModelfileError("there is no FROM")
    for name in ONCE:
        if names.count(name) > 1:
            raise ModelfileError(f"there are several {name}")
    return found


def check_folder(folder: Path) -> list[Instruction]:
    """The instructions of a folder's Modelfile, whose files are there, beside it or by their whole paths."""
    found = parse((folder / "Modelfile").read_bytes().decode())
    for each in found:
        if each.name in ("FROM", "ADAPTER") and not (folder / each.value).is_file():
            raise ModelfileError(f"{each.name} names {each.value!r}, which is no file")
    return found


def _line(text: str, at: int) -> tuple[str, int]:
    """The line that begins there, without its end, and where the next begins."""
    end = text.find("\n", at)
    return (text[at:], len(text)) if end < 0 else (text[at:end], end + 1)


def _value(text: str, at: int, line_end: int, number: int) -> tuple[str, int]:
    """An argument that begins there: to the end of the line, in quotes, or in three of them over several lines."""
    if text.startswith(TRIPLE, at):
        at += 3
        end = text.find(TRIPLE, at)
        if end < 0:
            raise ModelfileError(f"line {number}: three quotes are not closed")
        value = text[at:end]
        rest, line_end = _line(text, end + 3)
    else:
        rest = text[at:line_end].strip()
        if rest.startswith('"'):
            value, quote, rest = rest[1:].partition('"')
            if not quote:
                raise ModelfileError(f"line {number}: a quote is not closed")
        else:
            value, rest = rest, ""
    if rest.strip():
        raise ModelfileError(f"line {number}: {rest.strip()[:40]!r} stands behind the closing quotes")
    if not value:
        raise ModelfileError(f"line {number}: nothing is given")
    return value, line_end


def _check(each: Instruction, number: int) -> None:
    if unseen := [c for c in each.value if not c.isprintable() and c not in "\n\t"]:
        raise ModelfileError(f"line {number}: Ollama drops the character {unseen[0]!r}")
    if each.name == "PARAMETER":
        if each.key not in PARAMETERS:
            raise ModelfileError(f"line {number}: there is no parameter {each.key!r}")
        try:
            PARAMETERS[each.key](each.value)
        except ValueError:
            raise ModelfileError(f"line {number}: {each.key} cannot be {each.value!r}") from None
    if each.name == "MESSAGE" and each.key not in ROLES:
        raise ModelfileError(f"line {number}: there is no role {each.key!r}")
    if each.name == "REQUIRES" and not re.fullmatch(r"\d+\.\d+\.\d+", each.value):
        raise ModelfileError(f"line {number}: {each.value!r} is no version")
    if each.name == "TEMPLATE":
        _check_template(each.value, number)


def _check_template(text: str, number: int) -> None:
    """Actions are closed, and every block has its end."""
    if "{{" in _ACTION.sub("", text) or any("{{" in action[0][2:] for action in _ACTION.finditer(text)):
        raise ModelfileError(f"line {number}: an action of the template is not closed")
    depth = 0
    for action in _ACTION.finditer(text):
        depth += (action[1] in _OPENS) - (action[1] == "end")
        if depth < 0 or (action[1] == "else" and not depth):
            raise ModelfileError(f"line {number}: the template has {{{{ {action[1]} }}}} outside of a block")
    if depth:
        raise ModelfileError(f"line {number}: a block of the template has no end")
