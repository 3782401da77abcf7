"""MatMul-free LM (`hgrn_bit`), in Hugging Face folders: an MLGRU and an MLP of BitLinear layers in every layer.

A folder stores the weights of BitLinear layers as floats, and one matrix from which the lower bounds of all forget
gates follow. Both are converted when the folder is opened: to ternary weights, and to a vector per layer.
Source: Zhu et al., "Scalable MatMul-free Language Modeling" (2024), and the code published with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.safetensors import SafetensorsFolder
from featherback.engine.formats.store import floats, matrix
from featherback.engine.formats.types import TensorInfo, TensorType
from featherback.engine.formats.writer import OutTensor
from featherback.errors import FeatherbackError
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_config import NEUTRAL
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import Names
from featherback.models.bit_weights import ternary
from featherback.models.families.base import Family
from featherback.models.streams import copied
from featherback.nn.bit_head import BitHead
from featherback.nn.bit_linear import norm_of
from featherback.nn.bit_mlp import BitMLP
from featherback.nn.block import Block
from featherback.nn.mlgru import BOUND, MLGRU, OUTPUT_NORM

MIXER = ("i_proj", "f_proj", "g_proj", "o_proj")
MLP = ("gate_proj", "down_proj")
HEAD_NORM = "lm_head_norm"
ATTN_NORM, MLP_NORM = "attn_norm", "mlp_norm"
BOUNDS = "model.lower_bounds"
"""The stored matrix (layers, D) from which the lower bounds follow."""
ONLY: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "expand_ratio": (1, None),
    "use_short_conv": (False,),
    "tie_word_embeddings": (False,),
}
"""Entries that must have one of these values."""
MULTIPLE = 256
"""The default width of the MLP is rounded up to a multiple of this."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HgrnBitConfig(ModelConfig):
    bounded: bool  # whether the forget gates have lower bounds


class HgrnBit(Family):
    architecture = "hgrn_bit"
    called = "MatMul-free LM"
    model_types = ("hgrn_bit",)
    folders_only = "its weights become ternary when they are loaded, and llama.cpp and mlx-lm do not have its layers"
    hf_names: ClassVar[Names] = {
        "embed_tokens": "model.embeddings.weight",
        "norm": "model.norm.weight",
        "lm_head": "lm_head.weight",
        HEAD_NORM: "lm_head.norm.weight",
        ATTN_NORM: "model.layers.{}.attn_norm.weight",
        MLP_NORM: "model.layers.{}.mlp_norm.weight",
        **{name: f"model.layers.{{}}.attn.{name}.weight" for name in MIXER},
        **{norm_of(name): f"model.layers.{{}}.attn.{name}.norm.weight" for name in MIXER},
        OUTPUT_NORM: "model.layers.{}.attn.g_norm.weight",
        BOUND: "model.layers.{}.attn.lower_bound",
        **{name: f"model.layers.{{}}.mlp.{name}.weight" for name in MLP},
        **{norm_of(name): f"model.layers.{{}}.mlp.{name}.norm.weight" for name in MLP},
    }
    gguf_names = hf_names  # there are no others

    def read_gguf(self, keys: GGUFKeys) -> NoReturn:
        raise FeatherbackError(f"There are no GGUF files of {self.called}; name its Hugging Face folder.")

    def read_hf(self, config: HFConfig) -> HgrnBitConfig:
        for name, accepted in ONLY.items():
            if config.entries.get(name, accepted[0]) not in accepted:
                raise config.unsupported(name, config.entries[name])
        size = config.integer("hidden_size", 2048)
        width = int(size * config.integer("hidden_ratio", 4) * 2 / 3)
        return HgrnBitConfig(
            architecture=self.architecture,
            hidden_size=size,
            intermediate_size=config.integer("intermediate_size", -(-width // MULTIPLE) * MULTIPLE),
            num_hidden_layers=config.integer("num_hidden_layers", 24),
            vocab_size=config.integer("vocab_size", 32_000),
            rms_norm_eps=config.number("rms_norm_eps", 1e-6),
            max_position_embeddings=config.integer("max_position_embeddings", 2048),
            tie_word_embeddings=False,
            bounded=config.flag("use_lower_bound", True),
            # There is no attention: these say nothing about the model.
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=2,
            rope_theta=1.0,
        )

    def blocks(self, config: HgrnBitConfig) -> list[Block]:
        sizes: dict[str, Any] = {"hidden_size": config.hidden_size, "eps": config.rms_norm_eps}
        mixer = MLGRU(**sizes, pre_norm=ATTN_NORM, bounded=config.bounded)
        mlp = BitMLP(**sizes, intermediate_size=config.intermediate_size, pre_norm=MLP_NORM)
        return [Block([mixer, mlp])] * config.num_hidden_layers

    def top_vectors(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        return {HEAD_NORM: (config.hidden_size,)}

    def head(self, config: ModelConfig, norm: Any, weight: Any, vectors: Mapping[str, Any]) -> BitHead:
        return BitHead(norm, weight, self.norm_eps(config), inner=vectors[HEAD_NORM])

    def conversion(self, folder: SafetensorsFolder, config: ModelConfig) -> BitFolder:
        assert isinstance(config, HgrnBitConfig)
        return BitFolder(folder, config, self.hf_names)


class BitFolder:
    """The weights of a folder: ternary matrices, and a lower bound for each layer instead of `model.lower_bounds`."""

    label = "ternary"

    def __init__(self, folder: SafetensorsFolder, config: HgrnBitConfig, names: Names) -> None:
        self.path, self.store = folder.path, folder
        layers = range(config.num_hidden_layers if config.num_hidden_layers <= len(folder.tensors) else 0)
        self._matrices = {names[name].format(layer) for name in (*MIXER, *MLP) for layer in layers} | {names["lm_head"]}
        self._bounds = {names[BOUND].format(layer): layer for layer in layers} if config.bounded else {}
        self.tensors: Mapping[str, TensorInfo] = {
            name: info for name, info in folder.tensors.items() if not (config.bounded and name == BOUNDS)
        }
        if config.bounded:
            shape, info = (config.num_hidden_layers, config.hidden_size), folder.tensors.get(BOUNDS)
            if info is None or info.shape != shape:
                found = "is missing" if info is None else f"has shape {info.shape}"
                raise FeatherbackError(
                    f"{folder.path} does not fit its configuration: tensor {BOUNDS} {found}; lower bounds of "
                    f"{shape[0]} layers need {shape}."
                )
            one = replace(info, type=TensorType.F32, shape=shape[1:], nbytes=4 * shape[1])
            self.tensors |= {name: replace(one, name=name) for name in self._bounds}

    def output(self, name: str) -> OutTensor:
        """The tensor as the cache's file will store it."""
        info = self.tensors[name]
        if name in self._matrices:
            return ternary(matrix(self.store, name), name)
        if name in self._bounds:
            return OutTensor(name, info.type, info.shape, partial(self._bound, self._bounds[name]))
        return OutTensor(name, info.type, info.shape, lambda: copied(self.store.data(name)))

    def close(self) -> None:
        """Close the files."""
        self.store.close()

    def _bound(self, layer: int) -> Iterator[memoryview]:
        """Yield the lower bound of a layer (D,), float32."""
        yield lower_bounds(floats(self.store, BOUNDS))[layer].data


def lower_bounds(stored: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the lower bounds (layers, D): sums of the softmax over layers, from layer 1 on; those of layer 0 are 0."""
    with np.errstate(all="ignore"):  # a file may hold NaN, which `models.finite` reports
        exponentials = np.exp(stored.astype(np.float64) - stored.max(axis=0))
        shares = exponentials / exponentials.sum(axis=0)
    shares[0] = 0
    return np.ascontiguousarray(shares.cumsum(axis=0).astype(np.float32))


FAMILY = HgrnBit()
