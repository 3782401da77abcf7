"""Rotary scalings (YaRN, LongRoPE and others): each module here is one and holds its class as `SCALING`.

Adding a scaling is adding a file. Angles without scaling: `nn/rope.py`.
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
"""All that a GGUF file may hold about rotary embedding."""
_BY_TYPE = {name: scaling for scaling in SCALINGS for name in scaling.hf_types}


def read_hf(config: HFConfig, rope: Mapping[str, Any], plain: Plain) -> Scaling | None:
    """The scaling that the entries `rope` of a config.json tell, None if there is none.

    FeatherbackError for one that is not known.
    """
    kind = rope_type(rope)
    if kind == "default":
        return None
    if kind not in _BY_TYPE:
        raise config.unsupported("rope_type", kind, ("default", *_BY_TYPE))
    return _BY_TYPE[kind].read_hf(config, rope, plain)


def rope_type(rope: Mapping[str, Any]) -> str:
    """What entries about rotary embedding call their scaling; before transformers 4.45 that was "type"."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def read_gguf(keys: GGUFKeys, plain: Plain) -> Scaling | None:
    """The scaling that a GGUF file tells, None if there is none; FeatherbackError for one that is not known."""
    kind = keys.text(SCALING_TYPE)
    known = [scaling.gguf_type for scaling in SCALINGS if scaling.gguf_type]
    if kind not in (None, "none", *known):
        raise keys.wrong(SCALING_TYPE, kind, f"one of none, {', '.join(known)}")
    made = [scaling.read_gguf(keys, kind, plain) for scaling in SCALINGS]
    found = [scaling for scaling in made if scaling is not None]
    if len(found) > 1:
        names = " and ".join(type(scaling).hf_types[0] for scaling in found)
        raise FeatherbackError(f"{keys.file.path} scales rotary embedding twice ({names}); one is supported.")
    return found[0] if found else None
