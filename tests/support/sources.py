"""Modules as syntax trees. Several tests read all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

_parsed = cache(ast.parse)


def parsed(path: Path) -> ast.Module:
    """Parse a module, each text once."""
    return _parsed(path.read_text(encoding="utf-8"))
