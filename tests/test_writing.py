"""One module makes files: `private` knows how, and no other opens one to write, or makes a folder, by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import parsed

PACKAGE = Path(__file__).parents[1] / "src" / "featherback"

MAKERS = ("core/private.py", "core/files.py", "core/system/posix/folders.py", "core/system/windows/folders.py")
"""The primitives, and what renames and copies with them."""

EXCUSED = {
    "core/terminal.py: os.open": "the empty device, in place of a standard stream that is closed",
    "core/system/posix/branches.py: os.open": "the empty device, in place of the standard streams",
    "core/system/windows/branches.py: os.open": "the same",
    "core/system/posix/processes.py: open": "the name of the process itself, in /proc",
}

_WRITES = {"write_text", "write_bytes", "mkdir", "touch", "symlink_to", "hardlink_to", "rename", "tofile", "savez"}
"""Methods of paths and arrays."""
_OF_MODULES = {
    "os": {"mkdir", "makedirs", "replace", "rename", "renames", "link", "symlink", "truncate", "mkfifo", "mknod"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move"},
    "np": {"save", "savez", "savez_compressed", "savetxt", "memmap"},
}


def test_no_other_module_makes_files() -> None:
    found = [
        f"{where}: {what} (line {line})"
        for path in sorted(PACKAGE.rglob("*.py"))
        if (where := path.relative_to(PACKAGE).as_posix()) not in MAKERS and where.split("/")[0] not in EXCUSED
        for line, what in _writing(parsed(path))
        if f"{where}: {what}" not in EXCUSED
    ]
    assert not found, "files made past featherback.core.private and featherback.core.files:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("open(p, 'w')", "open"),
        ("open(p, mode='ab')", "open"),
        ("p.open('r+b')", "open"),
        ("io.open(p, 'x')", "open"),
        ("os.open(p, os.O_RDWR)", "os.open"),
        ("os.open(p, os.O_RDONLY | os.O_CREAT)", "os.open"),
        ("p.write_text('')", "write_text"),
        ("p.parent.mkdir()", "mkdir"),
        ("os.makedirs(p)", "os.makedirs"),
        ("np.save(p, a)", "np.save"),
        ("shutil.copyfile(p, q)", "shutil.copyfile"),
    ],
)
def test_a_planted_one_is_found(source: str, what: str) -> None:
    assert [found for _, found in _writing(ast.parse(source))] == [what]


@pytest.mark.parametrize(
    "source", ["open(p)", "open(p, 'rb')", "p.open()", "os.open(p, os.O_RDONLY)", "s.replace(a, b)"]
)
def test_reading_is_not(source: str) -> None:
    assert not list(_writing(ast.parse(source)))


def _writing(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The calls that write: their lines, and what they call."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name):
            if called.id == "open" and _opens_to_write(node, 1):
                yield node.lineno, "open"
        elif isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else None
            if owner == "os" and called.attr == "open":
                if any(isinstance(part, ast.Attribute) and part.attr in _FLAGS for part in ast.walk(node)):
                    yield node.lineno, "os.open"
            elif called.attr == "open":
                if _opens_to_write(node, 1 if owner in ("io", "os") else 0):
                    yield node.lineno, "open"
            elif owner in _OF_MODULES:
                if called.attr in _OF_MODULES[owner]:
                    yield node.lineno, f"{owner}.{called.attr}"
            elif called.attr in _WRITES:
                yield node.lineno, called.attr


_FLAGS = {"O_RDWR", "O_WRONLY", "O_CREAT", "O_TRUNC", "O_APPEND"}


def _opens_to_write(call: ast.Call, place: int) -> bool:
    """Whether a call of `open`, whose mode is the argument at `place`, opens to write."""
    named = [word.value for word in call.keywords if word.arg == "mode"]
    mode = named[0] if named else call.args[place] if len(call.args) > place else None
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set("wax+") & set(mode.value))
