"""Kinds of adapters, such as LoRA and DoRA. Each module here is one, with its class as `KIND`.

To add one, add a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from featherback.core.registry import OwnOptions, Registry
from featherback.nn.adapters.base import Kind

KINDS: Registry[type[Kind]] = Registry(__name__, "KIND", "adapter", shared=("base", "dropout", "several", "stacked"))

OPTIONS: OwnOptions[Any] = OwnOptions(KINDS, lambda name: KINDS[name].settings, usual="lora")
"""The options that only one kind has."""


def kind_of(options: Mapping[str, Any]) -> type[Kind]:
    """Return the adapter kind that the options select. DoRA can also be selected by its own switch."""
    return KINDS["dora" if options.get("dora") else options.get("adapter") or "lora"]


def made(options: Mapping[str, Any]) -> Kind:
    """Return the adapter kind that the options select, with its settings. Raises FeatherbackError for a bad value."""
    kind = kind_of(options)
    return kind(**{entry.name: options[entry.name] for entry in fields(kind) if entry.name in options})
