"""Result files: what was measured, by which command, on which machine and on which version of the code.

`docs/results/NAME.json` holds one part of the measurements. README and docs quote figures from these files alone.
"""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "results"
SHOWN = 3  # changed files that a warning names
LIBRARIES = ("numpy", "tokenizers", "torch", "transformers", "peft")

Row = dict[str, Any]


@dataclass
class Result:
    """The rows of one part, and where they come from. Sizes in MB (10^6 bytes), times in seconds."""

    name: str
    command: str
    commit: str
    date: str  # YYYY-MM-DD
    machine: dict[str, Any]
    versions: dict[str, str]
    measures: list[str]
    """Files and folders whose changes make the figures old, relative to the repository's root."""
    note: str = ""
    modified: bool = False
    """Whether one of `measures` had changes that were not committed."""
    rows: dict[str, Row] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Row -> why it was not measured."""

    @classmethod
    def begin(cls, name: str, command: str, measures: Sequence[str]) -> Result:
        """A result without rows, of this machine, this day and the code as it is checked out."""
        from datetime import date

        return cls(
            name,
            command,
            _git("rev-parse", "HEAD").strip(),
            date.today().isoformat(),
            describe_machine(),
            library_versions(),
            list(measures),
            modified=bool(_git("status", "--porcelain", "--", *measures).strip()),
        )

    @classmethod
    def read(cls, path: Path) -> Result:
        """The result in the file `path`. FeatherbackError if it is not one."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise FeatherbackError(f"{path} is not a result file: {error}. Run `make measure` to write it.") from error

    def write(self, path: Path) -> None:
        """Write the file, one line per row."""
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {key: value for key, value in asdict(self).items() if key != "rows"}
        lines = [f"  {json.dumps(key)}: {json.dumps(row, ensure_ascii=False)}" for key, row in self.rows.items()]
        rows = "{\n" + ",\n".join(lines) + "\n }" if lines else "{}"
        start = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
        temporary = path.with_suffix(".new")
        temporary.write_text(f'{start},\n "rows": {rows}\n}}\n', encoding="utf-8")
        temporary.replace(path)

    def continues(self, other: Result) -> bool:
        """Whether rows of `other` may stand beside new rows of this: the same code, machine and libraries."""
        same = ("name", "command", "commit", "machine", "versions", "modified")
        return all(getattr(self, key) == getattr(other, key) for key in same) and not self.modified


def read_all(folder: Path = FOLDER) -> dict[str, Result]:
    """Name -> result, of every file in the folder."""
    return {path.stem: Result.read(path) for path in sorted(folder.glob("*.json"))}


def changed_since(result: Result, root: Path = ROOT, most: int | None = None) -> list[str] | None:
    """The files that a result measures and that changed since its commit, other than in comments and docstrings.

    `most`: stop after so many. None if git does not know the commit, as in a shallow clone.
    """
    try:
        names = _git("diff", "--name-only", result.commit, "--", *result.measures, root=root).splitlines()
        new = _git("ls-files", "--others", "--exclude-standard", "--", *result.measures, root=root).splitlines()
        changed = (name for name in sorted({*names, *new}) if _differs(result.commit, name, root))
        return list(islice(changed, most))
    except (OSError, subprocess.CalledProcessError):
        return None


def warnings(results: Sequence[Result], root: Path = ROOT) -> list[str]:
    """A line for each result that is older than the code that it measures."""
    lines = []
    for result in results:
        changed = changed_since(result, root, SHOWN + 1)
        where = f"docs/results/{result.name}.json ({result.date}, commit {result.commit[:7]})"
        if changed is None:
            lines.append(f"{where}: git does not know this commit, so its age is unknown.")
        elif changed:
            others = " and others" if len(changed) > SHOWN else ""
            lines.append(
                f"{where} is older than the code that it measures: {', '.join(changed[:SHOWN])}{others} changed. "
                f"Run `{result.command}`."
            )
        elif result.modified:
            lines.append(f"{where} was measured with uncommitted changes. Run `{result.command}`.")
    return lines


def describe_machine() -> dict[str, Any]:
    """The CPU's model, its instruction sets as the kernels see them, cores, memory and system."""
    from featherback.engine import kernels

    found: dict[str, Any] = {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "instruction_sets": sorted(kernels.available()),
        "kernels": kernels.current(),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found["memory_gb"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9)
    return found


def library_versions() -> dict[str, str]:
    """Return the versions of Python, Featherback and the libraries that are measured or compared with."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return " ".join(match[1].split()) if match else platform.machine()


def _git(*words: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout


def _differs(commit: str, name: str, root: Path) -> bool:
    """Whether the code of a file is another than at `commit`."""
    path = root / name
    after = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    try:
        before = _git("show", f"{commit}:{name}", root=root)
    except subprocess.CalledProcessError:
        before = ""
    return _code(name, before) != _code(name, after)


def _code(name: str, text: str) -> str:
    """A file's text without comments and docstrings."""
    if name.endswith((".cpp", ".h")):
        return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())
    if not name.endswith(".py"):
        return text
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_docstring(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
