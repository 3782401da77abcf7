"""Training data, in each form, and what is prepared of them."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import deque
from pathlib import Path

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
from featherback.errors import FeatherbackError
from tests.data import templates
from tests.data import test_documents as documents
from tests.data.support import byte_tokenizer
from tests.data.test_chat_exports import SIGTOP, TELEGRAM, chatgpt
from tests.data.test_mail import THREAD
from tests.data.test_whatsapp import IOS
from tests.fuzz.forked import forked
from tests.fuzz.kinds.base import SAID, SMALL, Kind, Several, kind
from tests.fuzz.mutate import damaged
from tests.support.tiny_chat import write_messages, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny


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
