"""Every kind of file that Featherback reads: a good example, a way to damage it and a way to use it.

A kind is a class under `@kind`; the suite and `make fuzz` find it here.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import featherback as fb
from featherback.cli.inspect import describe
from featherback.data.containers import CONTAINERS, decoded
from featherback.data.containers.base import Records
from featherback.data.encoder import Encoder
from featherback.data.example import Bad
from featherback.data.inputs import Input
from featherback.data.readers import data_files
from featherback.data.source import Source
from featherback.data.templates.chat import ChatTemplate
from featherback.data.templates.renderer import Renderer
from featherback.data.token_file import TokenFile, TokenFileWriter
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.engine.host.process_tree import sizes, tree_pss
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import gguf, mlx, peft
from featherback.exports.safetensors_writer import write_safetensors
from featherback.infer.grammar import MEMORY_IN_BUDGET, PROCESS, Grammars
from featherback.models import load
from featherback.models.adapter import LoRA, Pair
from featherback.models.architecture.names import HF_NAMES
from featherback.models.hub.stores.ollama import HOST, MODEL, NAMESPACE, TAG, Ollama
from featherback.models.layout import layer_shapes, top_shapes
from featherback.models.rope.llama3 import Llama3
from tests.data import templates
from tests.data import test_documents as documents
from tests.data.library_tokenizers import FAMILIES, save
from tests.data.support import byte_core, byte_tokenizer
from tests.data.test_talks import IOS, SIGTOP, TELEGRAM, THREAD, chatgpt
from tests.fuzz.forked import forked
from tests.fuzz.mutate import damaged, reworded
from tests.support.changing import changing
from tests.support.tiny_chat import write_messages, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, tiny, write_tiny
from tests.web.echo_server import echoing
from tests.web.scripted import scripted

SMALL = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "vocab_size": 3}
SAID = [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris."}]


class Kind(ABC):
    """A kind of input. It has its own `folder`, and `use` is called with many damaged versions of its files."""

    mutate: ClassVar[Callable[[np.random.Generator, bytes, int], bytes]] = staticmethod(reworded)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The good files, each of which may be damaged."""

    @abstractmethod
    def use(self, changed: Path) -> None:
        """Read the files as the commands do. `changed`: the file that may be damaged."""

    def header(self, good: bytes) -> int:
        """Return the number of leading bytes of a good file to damage."""
        return len(good)

    def spoilt(self, rng: np.random.Generator, path: Path, good: bytes, header: int) -> bytes:
        """Return a damaged version of one of the `files`."""
        return type(self).mutate(rng, good, header)


KINDS: dict[str, type[Kind]] = {}


def kind(entry: type[Kind]) -> type[Kind]:
    KINDS[entry.__name__.lower()] = entry
    return entry


class Several(Kind):
    """Files of text and binary ones that are read together."""

    def spoilt(self, rng: np.random.Generator, path: Path, good: bytes, header: int) -> bytes:
        how = reworded if path.suffix in (".json", ".jsonl") else damaged
        return how(rng, good, header)


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
        return _and_some_data(good)

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
        return _and_some_data(good)

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
class Adapter(Kind):
    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        peft.FORMAT.save(LoRA(self.model, rank=2), self.folder)
        return [self.folder / "adapter_config.json"]

    def use(self, changed: Path) -> None:
        formats.load(self.model, self.folder)
        describe(str(self.folder))


@kind
class AdapterWeights(Adapter):
    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        return [super().files[0].with_name("adapter_model.safetensors")]

    def header(self, good: bytes) -> int:
        return _and_some_data(good)


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


@kind
class AdapterPatterns(Adapter):
    """A PEFT adapter with different ranks and alphas, and without one projection."""

    @property
    def files(self) -> list[Path]:
        found = super().files
        unusual = {(0, "q_proj"): Pair(3, 4.0), (1, "v_proj"): None}
        peft.FORMAT.save(LoRA(self.model, rank=2, rslora=True, exceptions=unusual), self.folder)
        return found


@kind
class DoRA(Several, Adapter):
    """A PEFT directory with magnitudes, one pair of another rank and one left out."""

    def header(self, good: bytes) -> int:
        return _and_some_data(good)

    @property
    def files(self) -> list[Path]:
        [config] = super().files
        unusual = {(0, "q_proj"): Pair(3, 4.0), (1, "v_proj"): None}
        peft.FORMAT.save(LoRA(self.model, rank=2, dora=True, exceptions=unusual), self.folder)
        return [config, config.with_name("adapter_model.safetensors")]


@kind
class GGUFAdapter(Kind):
    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        gguf.FORMAT.save(LoRA(self.model, rank=2), self.folder / "adapter.gguf", "someone/tiny")
        return [self.folder / "adapter.gguf"]

    def header(self, good: bytes) -> int:
        return good.index(b"blk.1.")

    def use(self, changed: Path) -> None:
        formats.load(self.model, self.folder / "adapter.gguf")
        describe(str(self.folder / "adapter.gguf"))


@kind
class MLXAdapter(Adapter):
    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        mlx.FORMAT.save(LoRA(self.model, rank=2), self.folder)
        return [self.folder / "adapter_config.json"]


@kind
class Template(Kind):
    @property
    def files(self) -> list[Path]:
        self.renderer = Renderer()
        found = []
        for name in ("CHATML", "QWEN2_5", "QWEN3", "LLAMA3_1", "MISTRAL_V3"):
            found.append(self.folder / f"{name}.jinja")
            found[-1].write_text(getattr(templates, name))
        return found

    def use(self, changed: Path) -> None:
        tokenizer = byte_tokenizer(changed.read_bytes().decode("utf-8", "replace"), bos="<s>")
        chat = ChatTemplate(tokenizer, self.renderer)
        chat.encode(chat.training(SAID))
        chat.encode_prompt(SAID[:1])


@kind
class Data(Kind):
    @property
    def files(self) -> list[Path]:
        self.encoder = Encoder(load_tokenizer(write_tiny_chat(self.folder / "model.gguf")))
        path = write_messages(self.folder / "data.jsonl", 3)
        rows = [{"prompt": "a", "completion": "b", "system": "c"}, {"text": "Once upon a time"}]
        path.write_text(path.read_text() + "".join(json.dumps(row) + "\n" for row in rows))
        return [path]

    def use(self, changed: Path) -> None:
        """Read to the end in spite of bad records, then raise the first error."""
        bad = []
        for file in data_files(Source.of(changed)):
            bad += [each for each in self.encoder.encode_all(file.examples()) if isinstance(each, Bad)]
        if bad:
            raise FeatherbackError(f"{bad[0].where}: {bad[0].problem}")


@kind
class JsonArray(Data):
    @property
    def files(self) -> list[Path]:
        [path] = super().files
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        (self.folder / "data.json").write_text(json.dumps(rows, indent=1))
        return [self.folder / "data.json"]


@kind
class Table(Data):
    @property
    def files(self) -> list[Path]:
        _ = super().files
        (self.folder / "data.csv").write_text('prompt,completion\na,b\n"c, ""d""\ne",f\n' + "g,h\n" * 5)
        return [self.folder / "data.csv"]


@kind
class Parquet(Data):
    """The decoding process is forked from this one, because importing pyarrow takes a second."""

    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        from pyarrow import Table, parquet

        [path] = super().files
        rows = [json.loads(line) for line in path.read_text().splitlines()] * 20
        said = [row for row in rows if "messages" in row]
        options = {"zstd": {"compression": "zstd"}, "pages": {"data_page_version": "2.0", "use_dictionary": False}}
        for name, how in options.items():
            parquet.write_table(Table.from_pylist(said), self.folder / f"{name}.parquet", **how)
        table = Table.from_pylist([{"prompt": f"a{row}", "completion": "b", "n": row / 7} for row in range(99)])
        parquet.write_table(table, self.folder / "table.parquet", row_group_size=40)
        decoded.started = forked
        return sorted(self.folder.glob("*.parquet"))


@kind
class Text(Data):
    @property
    def files(self) -> list[Path]:
        _ = super().files
        (self.folder / "data.txt").write_text("Once upon a time, 12 é 日本.\r\n\n" * 9)
        return [self.folder / "data.txt"]

    def use(self, changed: Path) -> None:
        for file in data_files(Source.of(self.folder / "data.txt")):
            for document in file.documents():
                for _ in self.encoder.stream(document.pieces):
                    pass


@kind
class Documents(Kind):
    """A web page and the files that documents are made of."""

    @property
    def files(self) -> list[Path]:
        members = {"page.html": documents.PAGE, "word/document.xml": documents.DOCX, "content.xml": documents.ODT}
        for name, text in (members | documents.EPUB).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return [self.folder / name for name in (*members, *documents.EPUB)]

    def use(self, changed: Path) -> None:
        for name in ("page.html", "d.docx", "d.odt", "d.epub"):
            path = self.folder / name
            if path.suffix != ".html":
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                    for member in self.members:
                        archive.write(self.folder / member, member)
            [file] = data_files(Source.of(path))
            for document in file.documents():
                deque(document.pieces, maxlen=0)

    members = ("word/document.xml", "content.xml", *documents.EPUB)


@kind
class Talks(Kind):
    """Chats and mail, each read by its own reader, whatever the damage does to its beginning."""

    @property
    def files(self) -> list[Path]:
        chat = {"name": "Ben", "type": "personal_chat", "id": 7, "messages": TELEGRAM}
        texts = {"whatsapp": IOS, "signal": SIGTOP, "mail": THREAD, "telegram": json.dumps(chat)}
        texts["chatgpt"] = json.dumps(chatgpt())
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8", newline="")
        return [self.folder / name for name in texts]

    def use(self, changed: Path) -> None:
        reader = CONTAINERS[changed.name]
        assert isinstance(reader, Records)
        for record in reader.read(Input(changed, me=("Anna", "You", "Anna Example"))):
            if isinstance(record, Bad):
                raise FeatherbackError(f"{record.where}: {record.problem}")
            assert record.values["messages"]


@kind
class Tokens(Kind):
    """A token file."""

    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        path = self.folder / "train.tokens"
        with TokenFileWriter(path) as writer:
            for length in (5, 3, 9):
                writer.add(list(range(length)), [True] * length)
            writer.metadata.update(seq_len=9, n_vocab=259)
        return [path]

    def use(self, changed: Path) -> None:
        describe(str(self.folder / "train.tokens"))
        file = TokenFile(self.folder / "train.tokens")
        for index in range(len(file)):
            file.seq(index)


@kind
class Run(Several):
    """A finished run, which is inspected and resumed."""

    @property
    def files(self) -> list[Path]:
        self.model = fb.load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        self._train(self.folder / "run", resume=False)
        return sorted(path for path in (self.folder / "run").rglob("*") if path.suffix not in (".svg", ".safetensors"))

    def use(self, changed: Path) -> None:
        place = self.folder / "place"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "run", place)
        describe(str(place))
        self._train(place, resume=True)

    def _train(self, out: Path, resume: bool) -> None:
        examples, options = (
            [[1, 2, 0, 1]] * 4,
            {"steps": 2, "rank": 2, "threads": 1, "progress": False, "keep_checkpoints": True},
        )
        fb.train(self.model, examples, out, eval_data=[[1, 2]], resume=resume, **options)


@kind
class Body(Kind):
    """The JSON body of a request to `featherback serve`. An answer that says "it is a bug" is not a refusal."""

    @property
    def files(self) -> list[Path]:
        model, folder = write_tiny_chat(self.folder / "model.gguf"), self.folder / "adapters"
        peft.FORMAT.save(LoRA(load(model), rank=2), folder / "notes")
        self.open = ExitStack()
        self.api = self.open.enter_context(scripted(model, "Hello", chat_template=templates.QWEN2_5, folders=[folder]))
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        said = [*SAID, {"role": "assistant", "content": None, "tool_calls": [call]}, SAID[0]]
        usual = {"stop": ["a", "b"], "seed": 3, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "n": 2, "max_tokens": 5}
        chat = {"model": "tiny", "messages": said[:2], "logprobs": True, "top_logprobs": 2, "stream": True, **usual}
        bodies = {
            "chat": chat,
            "tools": {"messages": said, "tools": [tool], "tool_choice": "auto", "response_format": {"type": "text"}},
            "completion": {"prompt": [[1, 2], "b"], "echo": True, "stream_options": None, "user": "me", **usual},
            "embedding": {"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": None},
            "adapter": {"name": "notes", "path": "notes"},
        }
        places = [self.folder / f"{name}.json" for name in bodies]
        for place, body in zip(places, bodies.values(), strict=True):
            place.write_text(json.dumps(body))
        return places

    def use(self, changed: Path) -> None:
        for name, path in (
            ("chat", "chat/completions"),
            ("tools", "chat/completions"),
            ("completion", "completions"),
            ("embedding", "embeddings"),
            ("adapter", "adapters"),
        ):
            if changed.stem == name:
                answer = self.api.post(f"/v1/{path}", changed.read_bytes())
                if answer.status_code >= 500:
                    raise AssertionError(f"status {answer.status_code}: {answer.text}")
                if answer.status_code >= 400:
                    raise FeatherbackError(answer.json()["error"]["message"])


_FRAMES = (
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: identity\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 18446744073709551617\r\n"),
    *(b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n"),
    *(b"0\r\n\r\n", b"fffffffffffffffff\r\n", b"1\r\nx\r\n" * 40, b"1;" + b"a" * 9000 + b"\r\nx\r\n", b" folded\r\n"),
    *(b"a: b\r\n" * 120, b"a: " + b"b" * 33_000 + b"\r\n", b"\r\n", b"\n", b"\r"),
    b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n" * 20,
)  # fmt: skip


def reframed(rng: np.random.Generator, good: bytes, _: int) -> bytes:
    """Insert, remove, repeat or swap lines of requests."""
    lines = good.splitlines(keepends=True)
    for _ in range(rng.integers(1, 4)):
        how, at, other = rng.integers(4), int(rng.integers(len(lines))), int(rng.integers(len(lines)))
        if how == 0:
            lines.insert(at, _FRAMES[rng.integers(len(_FRAMES))])
        elif how == 1 and len(lines) > 1:
            del lines[at]
        elif how == 2:
            lines[at] *= int(rng.integers(2, 30))
        else:
            lines[at], lines[other] = lines[other], lines[at]
    return b"".join(lines)


@kind
class Schema(Kind):
    """A JSON schema for answers, followed for some tokens. Half of the cases are put together from what takes long."""

    numbers = (0, -1, 0.01, 1e-9, 2, 7, 100, 997, 9973, 10**6 + 3, 10**9, 10**18, 10**400, 1e308)
    patterns = ("a", "(a|b)*a(a|b){18}", "^\\p{L}{1,500}$", "((x{1,99}){1,99}){1,99}", "^.*a.*b.*c$", "(\\w+ ?){1,200}")

    @property
    def files(self) -> list[Path]:
        self.tokenizer = load_tokenizer(write_tiny_chat(self.folder / "model.gguf"))
        self.grammars = Grammars(self.tokenizer, MEMORY_IN_BUDGET)
        parts = {
            "id": {"type": "integer", "minimum": 1, "multipleOf": 5},
            "mail": {"type": "string", "format": "email"},
        }
        tree = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3}
        schemas = [
            {"type": "object", "properties": parts, "required": ["id"], "additionalProperties": False, "$defs": {}},
            {"anyOf": [{"enum": ["a", 1, None]}, {"type": "string", "pattern": "^[a-z]{2,9}$", "maxLength": 5}]},
            {"$ref": "#/$defs/tree", "$defs": {"tree": tree}},
        ]
        places = [self.folder / f"{number}.json" for number in range(len(schemas))]
        for place, schema in zip(places, schemas, strict=True):
            place.write_text(json.dumps(schema))
        return places

    def spoilt(self, rng: np.random.Generator, path: Path, good: bytes, header: int) -> bytes:
        return json.dumps(self._made(rng, 3)).encode() if rng.integers(2) else reworded(rng, good, header)

    def _made(self, rng: np.random.Generator, depth: int) -> object:
        """A random schema."""
        number, pattern = self.numbers[rng.integers(len(self.numbers))], str(rng.choice(self.patterns))
        some = range(int(rng.choice([1, 2, 4, 12])))
        if depth == 0:
            bounds = ("minimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "const")
            leaf = {str(rng.choice(bounds)): number, "type": str(rng.choice(["integer", "number", "string"]))}
            return [leaf, {"type": "string", "pattern": pattern}, {"enum": [pattern * n for n in some]}, True][
                rng.integers(4)
            ]
        several = [self._made(rng, depth - 1) for _ in some]
        names = {f"property {n}": each for n, each in enumerate(several)}
        return [
            {str(rng.choice(["anyOf", "allOf", "oneOf"])): several},
            {"type": "object", "properties": names, "required": [*names] * 50, "minProperties": number},
            {"type": "object", "properties": names, "additionalProperties": several[0]},
            {"type": "object", "patternProperties": {pattern: several[0]}, "required": [f"x{n}" for n in range(900)]},
            {"type": "array", "items": several[0], "minItems": number},
            {
                "type": "array",
                "prefixItems": several,
                "maxItems": number,
                "x-guidance": {"whitespace_pattern": pattern},
            },
        ][rng.integers(6)]

    def use(self, changed: Path) -> None:
        try:
            schema = json.loads(changed.read_bytes())
        except (ValueError, RecursionError):
            raise FeatherbackError("It is not JSON.") from None
        if not isinstance(schema, dict):
            raise FeatherbackError("It is not an object.")
        rng, followed = np.random.default_rng(0), self.grammars.json(schema)
        answer = followed.answer(0)
        for _ in range(20):
            token = int(rng.choice(np.flatnonzero(answer.allowed(self.tokenizer.n_vocab))))
            if token in self.tokenizer.end_ids:
                break
            answer.take(token)
        held = tree_pss(os.getpid()) - sizes(os.getpid(), "smaps_rollup").get("Pss", 0)
        followed.close()
        rest = tree_pss(os.getpid()) - sizes(os.getpid(), "smaps_rollup").get("Pss", 0)
        if held - rest > MEMORY_IN_BUDGET + PROCESS:
            raise AssertionError(f"{held - rest} bytes")


@kind
class HTTP(Kind):
    """What comes over a connection, in packets of several sizes. No error may reach the event loop."""

    @property
    def files(self) -> list[Path]:
        self.errors = list[str]()
        self.port = echoing(lambda error: self.errors.append(repr(error)))
        logging.getLogger("asyncio").addFilter(lambda record: bool(self.errors.append(record.getMessage())))
        head = b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n"
        length = head + b'Content-Length: 13\r\nContent-Type: application/json\r\n\r\n{"a": [1, 2]}'
        get = b"GET /echo?a=1&b=%20 HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: x/1.0\r\nCookie: a=b\r\n\r\n"
        chunks = head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n \r\n0\r\n"
        requests = {
            "get": get,
            "length": length,
            "chunks": chunks + b"\r\n",
            "trailer": chunks + b"Digest: x\r\n\r\n",
            "browser": head + b"Origin: http://127.0.0.1\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 0\r\n\r\n",
            "several": get + length + chunks + b"\r\n" + get,
            "expect": head + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
        }
        places = [self.folder / f"{name}.http" for name in requests]
        for place, request in zip(places, requests.values(), strict=True):
            place.write_bytes(request)
        return places

    def spoilt(self, rng: np.random.Generator, path: Path, good: bytes, header: int) -> bytes:
        return (reworded, damaged, reframed, reframed)[rng.integers(4)](rng, good, header)

    def use(self, changed: Path) -> None:
        sent, answer = changed.read_bytes(), b""
        size = (1 << 20, 1000, 7)[len(sent) % 3]
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, min(len(sent), 300 * size), size):
                connection.sendall(sent[at : at + size])
            while b"}" not in answer and (part := connection.recv(1 << 16)):
                answer += part
        if self.errors:
            raise AssertionError(self.errors.pop())
        status = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")[9:12].decode()
        if status[:1] == "5" or (answer and not answer.startswith(b"HTTP/1.1 ")):
            raise AssertionError(answer.decode("latin-1"))
        if status[:1] != "2":
            raise FeatherbackError(f"Status {status or 'none'}.")


def _and_some_data(safetensors: bytes) -> int:
    """The bytes to change: the header and a quarter more, because few changes leave its JSON valid."""
    return min(len(safetensors), 8 + int.from_bytes(safetensors[:8], "little") * 5 // 4)


def _speak(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("Hello é 日 <|im_end|> world", special=True, bos=True)
    tokenizer.decode([i for i in ids if i < tokenizer.n_vocab], special=True)


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
