"""The interface of a model family. Each other module of this folder defines one family as `FAMILY`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from featherback.engine.formats.safetensors import SafetensorsFolder
from featherback.engine.formats.writer import Value
from featherback.models.architecture import gguf_metadata, hf_config
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.expert_tensors import Stored, Tensors, stored_experts
from featherback.models.architecture.experts import ExpertsConfig, expert_keys
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import GGUF_NAMES, HF_NAMES, Names, Naming
from featherback.models.rope import TENSORS as ROPE_TENSORS
from featherback.models.rope.base import Plain
from featherback.models.source import Source
from featherback.nn.attention import Attention
from featherback.nn.block import Block
from featherback.nn.experts import Experts
from featherback.nn.glu import GatedUnit
from featherback.nn.loss import Head
from featherback.nn.rope import Rotary
from featherback.nn.shared_expert import SharedExpert
from featherback.nn.slots import NORM_BIAS


class Family(ABC):
    """How to read a family's configurations, the names of its tensors, and the computation of its layers.

    `config`: of the type that `read_gguf` and `read_hf` return.
    """

    architecture: ClassVar[str]
    """The `general.architecture` of GGUF files."""
    called: ClassVar[str]
    """The names of the models, for people."""
    other_architectures: ClassVar[tuple[str, ...]] = ()
    """Other values of `general.architecture` with the same keys and tensors."""
    model_types: ClassVar[tuple[str, ...]]
    """The model_type entries of config.json."""
    gguf_names: ClassVar[Names] = GGUF_NAMES
    hf_names: ClassVar[Names] = HF_NAMES
    also_used: ClassVar[tuple[str, ...]] = ROPE_TENSORS
    """Tensors outside the layers that `read_gguf` reads."""
    window_period: ClassVar[int | None] = None
    """For GGUF files with a window but no list of layers: every n-th layer has none. 0: all have it; None: reject."""
    gguf_interleaved: ClassVar[bool] = False
    """Whether GGUF files store the rows of q and k in interleaved order: see `hf_to_gguf_rows`."""
    folders_only: ClassVar[str] = ""
    """Why there are neither GGUF files nor merged models of the family, as a clause; empty: there are."""
    is_encoder: ClassVar[bool] = False
    """Whether tokens see later ones, so that a model gives embeddings and writes no text."""
    mlx_names: ClassVar[Names] = {}
    """The modules that mlx-lm names otherwise than transformers."""
    gate_up_in_turns: ClassVar[bool] = False
    """Whether transformers' gate_up_proj of experts has the rows of gate and up in turns, not gate's first."""
    turned: ClassVar[tuple[str, ...]] = ()
    """Endings of the names of stacks whose matrices transformers stores as (in, out)."""
    hf_norm_offset: ClassVar[float] = 0.0
    """Added to Hugging Face's norm weights: its Gemma multiplies by 1 + w. GGUF files store the sum."""

    @property
    def projections(self) -> tuple[str, ...]:
        """The projections that an adapter may target, with PEFT's names."""
        return tuple(name for name in self.hf_names if name.endswith("_proj"))

    def read_gguf(self, keys: GGUFKeys) -> ModelConfig:
        """Read the configuration of a GGUF file."""
        return ModelConfig(**self.common(keys))

    def common(self, keys: GGUFKeys, followed: Collection[str] = (), **further: Any) -> dict[str, Any]:
        """Read what every family stores in the same way in a GGUF file, as arguments of ModelConfig."""
        return gguf_metadata.common_config(keys, self.window_period, followed, **further)

    def common_hf(
        self, config: HFConfig, followed: Collection[str] = (), rotation: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Read what every family stores in the same way in a config.json, as arguments of ModelConfig."""
        return hf_config.common_config(config, self.architecture, followed, rotation)

    @abstractmethod
    def read_hf(self, config: HFConfig) -> ModelConfig:
        """Read the configuration of a Hugging Face folder."""

    def unused(self, keys: GGUFKeys) -> tuple[str, ...]:
        """The tensors of a GGUF file that text does not use, besides `also_used`."""
        return ()

    def naming(self, config: HFConfig | None) -> Naming:
        """The names of the parts in a Hugging Face folder with this config.json; None: in a GGUF file."""
        if config is None:
            return Naming(self.gguf_names, self.hf_names)
        return Naming(self.hf_names, self.hf_names, norm_offset=self.hf_norm_offset)

    def of_layers(self, naming: Naming, layers: int) -> Naming:
        """Return the names in a model with this many layers."""
        return naming

    def as_stored(self, config: ModelConfig, naming: Naming, tensors: Tensors) -> Stored:
        """Return how a folder with these tensors stores the model that its config.json describes."""
        if isinstance(config, ExpertsConfig):
            return stored_experts(config, naming, tensors)
        return Stored(config, naming, {})

    def blocks(self, config: Any) -> list[Block]:
        """Return the layers in order. Equal layers may be the same object."""
        turn = rotary(config)
        return by_window(config, lambda window: self.block(config, turn, window))

    def block(self, config: Any, turn: Rotary, window: int) -> Block:
        """Return a layer whose queries see `window` keys, 0: all; `blocks` calls it for each window."""
        return silu_block(config, turn, window)

    def embedding_scale(self, config: Any) -> float:
        """The factor of the embeddings."""
        return 1.0

    def norm_eps(self, config: Any) -> float:
        """The eps of the norms of the residual stream, including the last norm."""
        return config.rms_norm_eps

    def logit_divisor(self, config: Any) -> float:
        """The divisor of the logits."""
        return 1.0

    def logit_softcap(self, config: Any) -> float:
        """The cap of the logits, which become cap tanh(logits / cap); 0: no cap."""
        return 0.0

    def top_vectors(self, config: Any) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the vectors outside the layers, besides the last norm."""
        return {}

    def head(self, config: ModelConfig, norm: Any, weight: Any, vectors: Mapping[str, Any]) -> Head:
        """Return the output head. `norm` (D,), `weight` (V, D), and the `top_vectors` by name."""
        scaled = self.logit_softcap(config), self.logit_divisor(config)
        return Head(norm, weight, self.norm_eps(config), *scaled, bias=vectors.get(NORM_BIAS))

    def conversion(self, folder: SafetensorsFolder, config: ModelConfig) -> Source | None:
        """Return the conversion of a folder's weights, if the family's are not used as they are stored."""
        return None

    def gguf_keys(self, config: Any) -> dict[str, Value]:
        """The GGUF metadata that only this family has, without the architecture's prefix: the inverse of read_gguf."""
        return expert_keys(config) if isinstance(config, ExpertsConfig) else {}


def rotary(config: ModelConfig) -> Rotary:
    """Make the rotary embedding of a configuration."""
    plain = (config.rope_theta, config.head_dim, config.rope_interleaved)
    scaling, rotated = config.rope_scaling, config.rotary_dim
    if scaling is None:
        return Rotary(*plain, rotated=rotated)
    unscaled = Plain(rotated or config.head_dim, config.rope_theta, config.max_position_embeddings)
    return Rotary(*plain, scaling.factors(unscaled), rotated, scaling.attention_factor, scaling.beyond)


def by_window(config: ModelConfig, block_of: Callable[[int], Block]) -> list[Block]:
    """Return the layers in order, each made by `block_of(window)`; layers with the same window are one object."""
    windows = config.windows or (0,) * config.num_hidden_layers
    made = {window: block_of(window) for window in set(windows)}
    return [made[window] for window in windows]


def silu_block(
    config: ModelConfig, turn: Rotary | None, window: int, fused_mlp: str | None = None, **attention: Any
) -> Block:
    """Make a block with SiLU: m = x + attention(rms(x) g);   y = m + mlp(rms(m) g').

    `fused_mlp`: the argument `fused` of `GatedUnit`. `attention`: further arguments of `Attention`.
    """
    return Block(
        [
            Attention(**attention_sizes(config), rotary=turn, bias=config.attention_bias, window=window, **attention),
            GatedUnit(**mlp_sizes(config), activation="silu", fused=fused_mlp),
        ]
    )


def expert_block(config: ExpertsConfig, turn: Rotary | None, window: int, **attention: Any) -> Block:
    """Make a block with experts: m = x + attention(rms(x) g);   y = m + experts(rms(m) g').

    `attention`: further arguments of `Attention`.
    """
    first = Attention(**attention_sizes(config), rotary=turn, bias=config.attention_bias, window=window, **attention)
    return Block([first, mixture(config)])


def mixture(config: ExpertsConfig, *, shared_is_gated: bool = False, eps: float = 0.0, **others: Any) -> Experts:
    """Make the branch of experts. `eps`: of the sum of sigmoids. `others`: further arguments of `Experts`."""
    shared = None
    if config.shared_size:
        fused = "gate_up_proj" if config.shared_fused else None
        shared = SharedExpert(config.hidden_size, config.shared_size, gated=shared_is_gated, fused=fused)
    return Experts(
        hidden_size=config.hidden_size,
        expert_size=config.expert_size,
        gating=config.gating(eps),
        eps=config.rms_norm_eps,
        shared=shared,
        fused=config.gate_up_fused,
        **others,
    )


def attention_sizes(config: ModelConfig) -> dict[str, Any]:
    """The arguments of `Attention` that follow from every configuration."""
    return {
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "eps": config.rms_norm_eps,
        "interleaved": config.rope_interleaved,
    }


def mlp_sizes(config: ModelConfig) -> dict[str, Any]:
    """The arguments of `GatedUnit` that follow from every configuration."""
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "eps": config.rms_norm_eps,
    }
