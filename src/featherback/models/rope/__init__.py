"""Rotary scalings, such as YaRN and LongRoPE. Each module defines one class as `SCALING`; to add one, add a module.

`nn/rope.py` computes the angles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featherback.core.registry import Registry
from featherback.errors import FeatherbackError
from featherback.models.architecture.gguf_keys import SCALING_TYPE, GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.rope.base import Plain, Scaling

_MODULES: Registry[type[Scaling]] = Registry(__name__, "SCALING", "rotary scaling", shared=("base",))
SCALINGS = tuple(map(_MODULES.__getitem__, _MODULES.names))
TENSORS = tuple(name for scaling in SCALINGS for name in scaling.gguf_tensors)
"""All tensors of GGUF files that describe rotary scalings."""
_BY_TYPE = {name: scaling for scaling in SCALINGS for name in scaling.hf_types}


def read_hf(config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Scaling | None:
    """Read the scaling from the entries `rope` of a config.json; None if there is none.

    Raises FeatherbackError if the scaling is unsupported.
    """
    kind = rope_type(rope)
    if kind == "default":
        return None
    if kind not in _BY_TYPE:
        raise config.unsupported("rope_type", kind, ("default", *_BY_TYPE))
    return _BY_TYPE[kind].read_hf(config, rope, plain)


def rope_type(rope: Mapping[str, Any]) -> str:
    """The name of the scaling: the entry "rope_type", or "type" before transformers 4.45."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def read_gguf(keys: GGUFKeys, plain: Plain) -> Scaling | None:
    """Read the scaling of a GGUF file; None if there is none. Raises FeatherbackError if it is unsupported."""
    kind = keys.text(SCALING_TYPE)
    known = [scaling.gguf_type for scaling in SCALINGS if scaling.gguf_type]
    if kind not in (None, "none", *known):
        raise keys.wrong(SCALING_TYPE, kind, f"none, {', '.join(known)}")
    made = [scaling.read_gguf(keys, kind, plain) for scaling in SCALINGS]
    found = [scaling for scaling in made if scaling is not None]
    if len(found) > 1:
        names = " and ".join(type(scaling).hf_types[0] for scaling in found)
        raise FeatherbackError(f"{keys.file.path} has two rotary scalings ({names}); at most one is supported.")
    return found[0] if found else None
