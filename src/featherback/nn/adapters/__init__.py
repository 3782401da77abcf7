"""Kinds of adapters (LoRA, DoRA): each module here is one, and holds its class as `KIND`. To add one, add a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from featherback.core.registry import Registry
from featherback.nn.adapters.base import Kind

KINDS: Registry[type[Kind]] = Registry(__name__, "KIND", "adapter", shared=("base", "dropout"))


def kind_of(options: Mapping[str, Any]) -> type[Kind]:
    """The kind that a user's options choose; DoRA may be chosen by a switch of its own."""
    return KINDS["dora" if options.get("dora") else options.get("adapter") or "lora"]


def made(options: Mapping[str, Any]) -> Kind:
    """The kind that the options choose, with its settings. FeatherbackError for a value that a setting cannot have."""
    kind = kind_of(options)
    return kind(**{entry.name: options[entry.name] for entry in fields(kind) if entry.name in options})
