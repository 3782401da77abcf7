"""SmolLM 3: like Llama, but some layers do not rotate queries and keys: every fourth, or those that config.json lists.

GGUF has no key for the list, so every fourth layer of a GGUF file does not rotate, as in llama.cpp. In all layers the
rows of q and k are in llama's order there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featherback.engine.formats.writer import Value
from featherback.errors import FeatherbackError
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import LOCAL, MOST_LAYERS, HFConfig
from featherback.models.families.base import Family, rotary, silu_block
from featherback.nn.block import Block

PERIOD = 4

HF_DEFAULTS: Mapping[str, Any] = {
    "max_position_embeddings": 32_768,
    "no_rope_layer_interval": PERIOD,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 128_256,
}
"""The defaults of transformers for missing entries of config.json."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SmolLM3Config(ModelConfig):
    rope_layers: tuple[bool, ...] = ()  # whether each layer rotates queries and keys; empty: all but every fourth

    def rotates(self, layer: int) -> bool:
        """Whether a layer rotates queries and keys."""
        return self.rope_layers[layer] if self.rope_layers else (layer + 1) % PERIOD != 0


class SmolLM3(Family):
    architecture = "smollm3"
    called = "SmolLM 3"
    model_types = ("smollm3",)
    gguf_interleaved = True

    def read_gguf(self, keys: GGUFKeys) -> SmolLM3Config:
        common = self.common(keys)
        return SmolLM3Config(**common, rope_interleaved=self.gguf_interleaved)

    def read_hf(self, config: HFConfig) -> SmolLM3Config:
        """Read the configuration.

        If windows are in use, the layers that do not rotate have the window, unless `layer_types` lists others.
        """
        config = config.with_defaults(HF_DEFAULTS)
        layers = config.integer("num_hidden_layers")
        if not 0 < layers <= MOST_LAYERS:
            raise config.unsupported("num_hidden_layers", layers)
        rotated = _rope_layers(config, layers)
        in_use = config.flag("use_sliding_window", False)
        windows = config.windows(config.integer("sliding_window", 0) if in_use else 0, lambda layer: not rotated[layer])
        if not in_use and LOCAL in (types := config.entries.get("layer_types") or ()):
            raise config.unsupported("layer_types", types)
        return SmolLM3Config(
            **self.common_hf(config),
            attention_bias=config.flag("attention_bias", False),
            windows=windows,
            rope_layers=() if rotated == _all_but_every(PERIOD, layers) else rotated,
        )

    def blocks(self, config: SmolLM3Config) -> list[Block]:
        turn, layers = rotary(config), config.num_hidden_layers
        kinds = list(zip(map(config.rotates, range(layers)), config.windows or (0,) * layers))
        made = {
            (rotates, window): silu_block(config, turn if rotates else None, window) for rotates, window in set(kinds)
        }
        return [made[kind] for kind in kinds]

    def gguf_keys(self, config: SmolLM3Config) -> dict[str, Value]:
        if config.rope_layers:
            raise FeatherbackError(
                "GGUF cannot store this SmolLM 3: in GGUF, three of every four layers use rotary embedding, and this "
                "model uses it in other layers. Export it in another format."
            )
        return {}


def _all_but_every(period: int, layers: int) -> tuple[bool, ...]:
    """Whether each layer rotates, if every `period`-th does not."""
    return tuple((layer + 1) % period != 0 for layer in range(layers))


def _rope_layers(config: HFConfig, layers: int) -> tuple[bool, ...]:
    """Whether each layer rotates: from the list in config.json, which may be too long, or from its interval."""
    listed = config.entries.get("no_rope_layers")
    if listed is None:
        period = config.integer("no_rope_layer_interval")
        if period < 1:
            raise config.unsupported("no_rope_layer_interval", period)
        return _all_but_every(period, layers)
    if not isinstance(listed, list) or len(listed) < layers or any(entry not in (0, 1) for entry in listed):
        raise config.unsupported("no_rope_layers", listed, (f"a list of 0 and 1 for {layers} layers",))
    return tuple(map(bool, listed[:layers]))


FAMILY = SmolLM3()
