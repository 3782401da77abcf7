"""Requests to the server."""

from __future__ import annotations

import json
import logging
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.host.process_tree import sizes, tree_pss
from featherback.errors import FeatherbackError
from featherback.exports.formats import peft
from featherback.infer.grammar import MEMORY_IN_BUDGET, PROCESS, Grammars
from featherback.models import load
from featherback.models.adapter import LoRA
from tests.data import templates
from tests.fuzz.kinds.base import SAID, Kind, kind
from tests.fuzz.mutate import damaged, reworded
from tests.support.tiny_chat import write_tiny_chat
from tests.web.echo_server import echoing
from tests.web.scripted import scripted


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
