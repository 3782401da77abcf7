"""Targets of `export`. Each module defines one target as `TARGET`; to add a target, add a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featherback.core.registry import Registry

if TYPE_CHECKING:
    from featherback.exports.targets.base import Target

TARGETS: Registry[Target] = Registry(
    __name__,
    "TARGET",
    "export target",
    shared=("base", "base_of", "chat_parts", "tool_parts", "report", "whole", "commands"),
)
