"""What a model family says of itself. Each other module of this folder is one family and holds it as `FAMILY`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from featherback.engine.formats.writer import Value
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names, Naming
from featherback.models.rope import TENSORS as ROPE_TENSORS
from featherback.models.rope.base import Plain
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.glu import GatedUnit
from featherback.nn.rope import Rotary


class Family(ABC):
    """How configurations are read, what tensors are called, and what a layer computes."""

    architecture: ClassVar[str]
    """GGUF's general.architecture."""
    called: ClassVar[str]
    """The models that people know it by."""
    model_types: ClassVar[tuple[str, ...]]
    """The model_type entries of config.json."""
    gguf_names: ClassVar[Names] = GGUF_NAMES
    hf_names: ClassVar[Names] = HF_NAMES
    also_used: ClassVar[tuple[str, ...]] = ROPE_TENSORS
    """Tensors outside the layers that the configuration is read from."""
    window_period: ClassVar[int | None] = None
    """In a GGUF file with a window but no list of its layers: every n-th has none. 0: all have it; None: refused."""
    gguf_interleaved: ClassVar[bool] = False
    """Whether GGUF files hold rows of q and k for a rotation of neighbours: see `models.architecture.permute`."""
    hf_norm_offset: ClassVar[float] = 0.0
    """What Hugging Face's norm weights lack: its Gemma multiplies by 1 + w. GGUF files hold the sum."""

    @property
    def projections(self) -> tuple[str, ...]:
        """What an adapter may target in a layer, by the names that PEFT uses."""
        return tuple(name for name in self.hf_names if name.endswith("_proj"))

    @abstractmethod
    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        """The configuration of a GGUF file."""

    @abstractmethod
    def read_hf(self, config: HFConfig) -> ModelConfig:
        """The configuration of a Hugging Face folder."""

    def naming(self, config: HFConfig | None) -> Naming:
        """The names in the Hugging Face folder with this config.json; None: in a GGUF file."""
        return Naming(self.gguf_names if config is None else self.hf_names, self.hf_names)

    @abstractmethod
    def blocks(self, config: ModelConfig) -> list[Block]:
        """The layers in order. Layers that are alike may be one object."""

    def embedding_scale(self, config: ModelConfig) -> float:
        """What embeddings are multiplied by."""
        return 1.0

    def norm_eps(self, config: ModelConfig) -> float:
        """eps of the residual stream's norms, the last among them."""
        return config.rms_norm_eps

    def logit_divisor(self, config: ModelConfig) -> float:
        """What logits are divided by."""
        return 1.0

    def logit_softcap(self, config: ModelConfig) -> float:
        """cap, where logits become cap tanh(logits / cap); 0: they stay."""
        return 0.0

    def gguf_keys(self, config: ModelConfig) -> dict[str, Value]:
        """The metadata, without the architecture's prefix, that only this family writes: the inverse of read_gguf."""
        return {}


def rotary(config: ModelConfig) -> Rotary:
    """The rotation that a configuration's own entries describe."""
    plain = (config.rope_theta, config.head_dim, config.rope_interleaved)
    scaling, rotated = config.rope_scaling, config.rotary_dim
    if scaling is None:
        return Rotary(*plain, rotated=rotated)
    unscaled = Plain(rotated or config.head_dim, config.rope_theta, config.max_position_embeddings)
    return Rotary(*plain, scaling.factors(unscaled), rotated, scaling.attention_factor, scaling.beyond)


def by_window(config: ModelConfig, block_of: Callable[[int], Block]) -> list[Block]:
    """The layers in order: `block_of` their window, one object for all that are alike."""
    windows = config.windows or (0,) * config.num_hidden_layers
    made = {window: block_of(window) for window in set(windows)}
    return [made[window] for window in windows]


def silu_block(
    config: ModelConfig, turn: Rotary | None, window: int, fused_mlp: str | None = None, **attention: Any
) -> Block:
    """m = x + attention(rms(x) g);   y = m + mlp(rms(m) g'), with SiLU.

    `fused_mlp`: as `GatedUnit` has it. `attention`: further arguments of `Attention`.
    """
    return Block(
        [
            Attention(**attention_sizes(config), rotary=turn, bias=config.attention_bias, window=window, **attention),
            GatedUnit(**mlp_sizes(config), activation="silu", fused=fused_mlp),
        ]
    )


def attention_sizes(config: ModelConfig) -> dict[str, Any]:
    """The arguments of `Attention` that every configuration has."""
    return {
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "eps": config.rms_norm_eps,
        "interleaved": config.rope_interleaved,
    }


def mlp_sizes(config: ModelConfig) -> dict[str, Any]:
    """The arguments of `GatedUnit` that every configuration has."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "eps": config.rms_norm_eps,
    }
