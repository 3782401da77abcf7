"""The part of the configuration that is stored in the same GGUF metadata by every family."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models import rope
from featherback.models.architecture.gguf_keys import ROTARY_DIM, SCALING_TYPE, THETA, USUAL_THETA, GGUFKeys
from featherback.models.architecture.names import GGUF_NAMES
from featherback.models.rope.base import Plain

KV_HEADS = "attention.head_count_kv"
RMS_EPS, LAYER_NORM_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
WINDOW = "attention.sliding_window"
WINDOW_PATTERN = "attention.sliding_window_pattern"


def common_config(
    keys: GGUFKeys,
    window_period: int | None,
    followed: Collection[str] = (),
    *,
    width: int | None = None,
    eps: str = RMS_EPS,
) -> dict[str, Any]:
    """Read the arguments of ModelConfig that every family stores in the same way.

    `window_period`: the `period` of `layer_windows`. `followed`: further keys that the family reads itself; all other
    keys must have no effect. `width`: of the gated units, if the file does not state it; None: it must. `eps`: the key
    of the norms' eps. Raises FeatherbackError if a key is missing or unsupported.
    """
    file = keys.file
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    context, layers = keys.integer("context_length"), keys.integer("block_count")
    head_dim = keys.integer("attention.key_length", 0) or _even_split(file, hidden, heads)
    theta = keys.number(THETA, USUAL_THETA)
    rotated = keys.integer(ROTARY_DIM, head_dim) if ROTARY_DIM in followed else head_dim
    plain = Plain(rotated, theta, context)
    scaling = None if SCALING_TYPE in followed else rope.read_gguf(keys, plain)
    keys.refuse_unsupported(head_dim, (*followed, *(scaling.gguf_followed if scaling else ())))
    return {
        "architecture": keys.architecture,
        "hidden_size": hidden,
        "intermediate_size": keys.integer("feed_forward_length", width),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if KV_HEADS in followed else keys.integer(KV_HEADS, heads),
        "head_dim": head_dim,
        "vocab_size": keys.tensor(GGUF_NAMES["embed_tokens"], 2).shape[0],
        "rms_norm_eps": keys.number(eps),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rotary_dim": None if rotated == head_dim else rotated,
        "max_position_embeddings": context,
        "tie_word_embeddings": GGUF_NAMES["lm_head"] not in file.tensors,
        "windows": layer_windows(keys, layers, context, window_period),
    }


def layer_windows(keys: GGUFKeys, layers: int, context: int, period: int | None, default: int = 0) -> tuple[int, ...]:
    """Read the `windows` of ModelConfig. The file has a list of the layers with a window, or a period.

    `period`: used if the file has neither; None: such a file is rejected, unless the window is the whole context.
    `default`: the window if the file states none.
    """
    window = min(keys.integer(WINDOW, default), context)
    if window <= 0 or layers > len(keys.file.tensors):  # a corrupt count of layers is rejected later, with the tensors
        return ()
    local = keys.flags(WINDOW_PATTERN, layers)
    if local is None:
        stated = keys.integer(WINDOW_PATTERN, -1 if period is None else period)
        if stated < 0:
            if window == context:
                return ()
            raise keys.wrong(
                WINDOW, window, f"{context}, the whole context, or a window together with {WINDOW_PATTERN}"
            )
        local = local_layers(layers, stated)
    return tuple(window if is_local else 0 for is_local in local)


def local_layers(layers: int, period: int) -> list[bool]:
    """Whether each layer has a window, if every `period`-th has none (0: all have one)."""
    return [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]


def window_keys(windows: tuple[int, ...], period: int | None) -> dict[str, Value]:
    """The metadata from which `layer_windows` reads these windows."""
    if not windows:
        return {}
    local = [window > 0 for window in windows]
    stated: dict[str, Value] = {WINDOW: max(windows)}
    if period is None or local != local_layers(len(windows), period):
        stated[WINDOW_PATTERN] = np.array(local)
    return stated


def _even_split(file: GGUFFile, width: int, heads: int) -> int:
    """The head size of a file that does not state it. Raises FeatherbackError if the width does not divide evenly."""
    if heads < 1 or width % heads:
        raise FeatherbackError(f"{file.path} has {heads} attention heads, which do not divide its width {width}.")
    return width // heads


Index = NDArray[np.intp]


def hf_to_gguf_rows(n_heads: int, rows: int) -> Index:
    """Return an index (rows,) such that `hf_array[index]` is in GGUF order, for arrays of shape (rows, ...).

    Both orders describe the same heads. Hugging Face rotates column i of a head together with column i + head_dim/2
    (half-split). GGUF's llama rotates neighbouring columns (interleaved), so its converter reorders the rows of q and
    k: within a head, GGUF row 2i + j is Hugging Face row i + j * head_dim/2.
    """
    head_dim, rest = divmod(rows, n_heads)
    if rest or head_dim % 2:
        raise ValueError(f"{rows} rows do not make {n_heads} heads of even size")
    return np.arange(rows).reshape(n_heads, 2, head_dim // 2).swapaxes(1, 2).reshape(rows)
