"""Files of models and of their tokenizers."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.exports import formats
from featherback.exports.formats import gguf, mlx, peft
from featherback.exports.safetensors_writer import write_safetensors
from featherback.models import load
from featherback.models.adapter import LoRA
from featherback.models.architecture.names import HF_NAMES
from featherback.models.hub.stores.ollama import HOST, MODEL, NAMESPACE, TAG, Ollama
from featherback.models.layout import layer_shapes, top_shapes
from featherback.models.rope.llama3 import Llama3
from tests.data.library_tokenizers import FAMILIES, save
from tests.data.support import byte_core
from tests.fuzz.kinds.base import SMALL, Kind, Several, kind
from tests.fuzz.mutate import damaged, reworded
from tests.support.changing import changing
from tests.support.tiny_chat import write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, tiny, write_tiny


@kind
class GGUF(Kind):
    """A model file. Half of the cases have biases."""

    mutate = staticmethod(damaged)
    config = tiny(TINY_LLAMA, **SMALL, rope_scaling=Llama3(np.ones(4, np.float32)))

    @property
    def files(self) -> list[Path]:
        types = {"": TensorType.Q4_0, "embed_tokens": TensorType.F16}
        extra = {"words": ["a", "bb"] * 20, "numbers": np.arange(9)}
        return [write_tiny(self.folder / "model.gguf", self.config, types, metadata=extra)]

    def header(self, good: bytes) -> int:
        file = GGUFFile(self.folder / "model.gguf")
        return min(info.offset for info in file.tensors.values())

    def use(self, changed: Path) -> None:
        load(self.folder / "model.gguf").close()


@kind
class GGUFQwen2(GGUF):
    config = tiny(TINY_QWEN2, **SMALL)


@kind
class Safetensors(Kind):
    """The weights of a Hugging Face folder."""

    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        return [_hf_folder(self.folder) / "model.safetensors"]

    def header(self, good: bytes) -> int:
        return and_some_data(good)

    def use(self, changed: Path) -> None:
        load(self.folder).close()


@kind
class SafetensorsIndex(Safetensors):
    mutate = staticmethod(reworded)

    @property
    def files(self) -> list[Path]:
        (_hf_folder(self.folder) / "model.safetensors").rename(self.folder / "part")
        index = self.folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "part", "b": "part"}}))
        return [index]


@kind
class Configuration(Kind):
    @property
    def files(self) -> list[Path]:
        return [_hf_folder(self.folder) / "config.json"]

    def use(self, changed: Path) -> None:
        load(self.folder).close()


@kind
class MLX(Several):
    """A base model in MLX's groups, converted again in each case."""

    def header(self, good: bytes) -> int:
        return and_some_data(good)

    @property
    def files(self) -> list[Path]:
        from tests.support.mlx_folder import mlx_folder  # imports PyTorch, which nothing else here needs

        os.environ["FEATHERBACK_CACHE"] = str(self.folder / "cache")
        (self.folder / "hf").mkdir()
        _hf_folder(self.folder / "hf")
        eight = {"bits": 8, "group_size": 32}
        mlx_folder(
            self.folder / "hf",
            self.folder / "mlx",
            size=32,
            modules=lambda name: eight if name.endswith("q_proj") else True,
        )
        return [self.folder / "mlx" / name for name in ("config.json", "model.safetensors")]

    def use(self, changed: Path) -> None:
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        load(self.folder / "mlx").close()


@kind
class TokenizerGGUF(Kind):
    """The vocabulary in a model file."""

    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        return [write_tiny_chat(self.folder / "model.gguf")]

    def header(self, good: bytes) -> int:
        return good.index(b"token_embd.weight")

    def use(self, changed: Path) -> None:
        _speak(self.folder / "model.gguf")


@kind
class TokenizerFolder(Kind):
    @property
    def files(self) -> list[Path]:
        tokenizer, config = self.folder / "tokenizer.json", self.folder / "tokenizer_config.json"
        tokenizer.write_text(byte_core().to_str())
        config.write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "T"}))
        (self.folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
        return [tokenizer, config, self.folder / "generation_config.json"]

    def use(self, changed: Path) -> None:
        _speak(self.folder)


class LikeModels(Kind):
    """The tokenizer.json of a family, for the native encoders."""

    family: ClassVar[str]

    @property
    def files(self) -> list[Path]:
        save(FAMILIES[self.family](), self.folder)
        return [self.folder / "tokenizer.json"]

    def use(self, changed: Path) -> None:
        _speak(self.folder)


@kind
class QwenTokenizer(LikeModels):
    family = "qwen2"


@kind
class LlamaTokenizer(LikeModels):
    family = "llama2"


@kind
class OllamaManifest(Kind):
    """The manifest of a model in Ollama's store. It must not lead to files elsewhere."""

    @property
    def files(self) -> list[Path]:
        digest, place = "a" * 64, self.folder / "manifests" / HOST / NAMESPACE / "m" / TAG
        layers = [{"mediaType": kind, "digest": f"sha256:{digest}", "size": 4} for kind in ("text", MODEL)]
        for path in (place, self.folder / "blobs" / f"sha256-{digest}"):
            path.parent.mkdir(parents=True)
            path.write_bytes(b"GGUF")
        place.write_text(json.dumps({"schemaVersion": 2, "config": layers[0], "layers": layers}))
        return [place]

    def use(self, changed: Path) -> None:
        store = Ollama()
        store.folders = lambda: [self.folder]  # type: ignore[method-assign]
        assert store.path("m") == self.folder / "blobs" / f"sha256-{'a' * 64}"


@kind
class Changing(Kind):
    """The weights of adapters. Another program writes the damaged version over the good one while it is read."""

    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        adapter = LoRA(self.model, rank=2)
        for each in (peft, mlx, gguf):
            each.FORMAT.save(adapter, self.folder / f"{each.__name__}.gguf")
        self.expected = adapter.state()
        places = [*self.folder.rglob("*.safetensors"), self.folder / f"{gguf.__name__}.gguf"]
        self.good = {path: path.read_bytes() for path in places}
        return places

    def header(self, good: bytes) -> int:
        return len(good)

    def use(self, changed: Path) -> None:
        bad, good = changed.read_bytes(), self.good[changed]
        at = zlib.crc32(bad) % 40 - 1  # beyond the last access of the file: it is changed too late to matter
        if at == -1 and changed.suffix == ".gguf":  # the first time, only its kind is read
            at = -2

        def change(path: Path) -> None:
            with open(path, "r+b") as file:
                if at % 2:
                    file.truncate(len(bad))
                file.write(bad)
                file.truncate()

        changed.write_bytes(good)
        with pytest.MonkeyPatch.context() as patch, changing(patch, changed, change if bad != good else None, at):
            found = formats.load(self.model, changed.parent if changed.suffix == ".safetensors" else changed)
        for name, values in found.state().items():
            assert np.array_equal(values, self.expected[name]), name


def and_some_data(safetensors: bytes) -> int:
    """The bytes to change: the header and a quarter more, because few changes leave its JSON valid."""
    return min(len(safetensors), 8 + int.from_bytes(safetensors[:8], "little") * 5 // 4)


def _hf_folder(folder: Path) -> Path:
    """Write a tiny Llama in the Hugging Face format."""
    config = tiny(TINY_LLAMA, **SMALL)
    entries = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": 8,
        "vocab_size": 3,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    }
    (folder / "config.json").write_text(json.dumps(entries))
    shapes = {HF_NAMES[part]: shape for part, shape in top_shapes(config).items()}
    for layer, parts in enumerate(layer_shapes(config)):
        shapes |= {HF_NAMES[part].format(layer): shape for part, shape in parts.items()}
    write_safetensors(folder / "model.safetensors", shapes, _ones(shapes))
    return folder


def _ones(shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, np.ndarray]]:
    for name, shape in shapes.items():
        yield name, np.ones(shape, np.float32)


def _speak(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("Hello é 日 <|im_end|> world", special=True, bos=True)
    tokenizer.decode([i for i in ids if i < tokenizer.n_vocab], special=True)
