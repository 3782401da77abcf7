"""What the nodes of a federation must have in common: the architecture of the base model, and its tokenizer.

The file is not compared: nodes may have different quantisations of one model, or a GGUF file and a folder.
"""

from __future__ import annotations

import zlib
from dataclasses import fields
from typing import Any

import numpy as np

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.federated.messages import RefusedError
from featherback.models.model import Model

# Fields that describe a file, or how far a copy of the model may read, but not what an adapter must fit.
_OF_FILE = ("rope_interleaved", "max_position_embeddings")
_PROBE = (
    "The quick brown fox jumps over 13 lazy dogs; naïve café, Straße, 東京, Привет, שלום, 🙂🙃!\n"
    '\tdef f(x): return x**2 + 3.14159e-10  # \u00a0 \u200b  <tag attr="a\'b">&amp;</tag>\r\n    123 ÆØÅ 안녕 नमस्ते'
)
TOKENIZER = "tokenizer"
"""The entry of an identity with a checksum of how the tokenizer divides a text of many scripts."""

Identity = dict[str, Any]


def identity_of(model: Model) -> Identity:
    """Return what describes the model's architecture and tokenizer, as JSON values."""
    found: Identity = {}
    for entry in fields(model.config):
        value = getattr(model.config, entry.name)
        if entry.name not in _OF_FILE and _is_plain(value):
            found[entry.name] = _written(value)
    tokens = np.asarray(load_tokenizer(model.path).encode(_PROBE), np.int32)
    found[TOKENIZER] = f"{zlib.crc32(tokens.tobytes()):08x}"
    return found


def check_same(model: Model, wanted: Identity) -> None:
    """Raise RefusedError, in one sentence, unless the model's architecture and tokenizer are the federation's."""
    own = identity_of(model)
    different = [name for name in {**wanted, **own} if own.get(name) != wanted.get(name)]
    if different == [TOKENIZER]:
        raise RefusedError("This node's model has another tokenizer than the federation's, so it cannot join.")
    if different:
        shown = ", ".join(f"{name} {own.get(name)} instead of {wanted.get(name)}" for name in different[:3])
        raise RefusedError(f"This node's model is another one than the federation's ({shown}), so it cannot join.")


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value  # GGUF files hold float32
