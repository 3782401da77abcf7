"""`python -m featherback.data.templates.process`: render a chat template where it can do no harm.

A template is a program out of a downloaded file. Jinja's sandbox keeps it from the system, but not from
computing for ever or filling the memory; so it runs in this process of its own, whose CPU time and memory the
system bounds (docs/decisions/templates.md). Each line of standard input is a request, each line of standard
output its answer, both JSON:

    {"template": text, "names": {"bos_token": ...}}  ->  {"loaded": true}, or {"error": [kind, detail]}
    {"conversations": [[messages, add_generation_prompt], ...], "tools": tools}  ->  {"answers": [...]}

An answer is a text, or [kind, detail] with the kind "syntax", "refused", "failed", "memory" or "output". A
request that takes too much CPU time ends the process by SIGPROF.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import Any, ClassVar, NoReturn

if find_spec("_sha1"):  # Python's own, which are enough for Jinja's cache: OpenSSL would take 3 MB
    sys.modules["_hashlib"] = None  # type: ignore[assignment]

import jinja2.debug  # noqa: F401 - what an error brings in, before memory is short
from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from featherback.data.templates.limits import SECONDS

# Of a request; a character of it adds to what it may take, so that a long conversation has more.
SECONDS_EACH = 2e-6
MEMORY, MEMORY_EACH = 48 << 20, 40
OUTPUT, OUTPUT_EACH = 1 << 20, 16

_DETAIL = 300  # characters of an error's text


def main() -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked decides what Ctrl-C means
    service, used = _Service(), _address_space()
    while line := sys.stdin.buffer.readline():
        size = len(line)
        with _bounded(size, used):
            request = json.loads(line)
            del line  # a conversation may have megabytes: of each form no more is held than the next one needs
            reply = service.reply(request, size)
            del request
            answer = json.dumps(reply)
            del reply
            written = answer.encode("ascii")
            del answer
        sys.stdout.buffer.write(written)
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
        del written


class _Service:
    """The template that was loaded last."""

    def __init__(self) -> None:
        self._template: Any = None
        self._names: dict[str, str] = {}

    def reply(self, request: dict[str, Any], size: int) -> dict[str, Any]:
        """What a request of `size` bytes is answered with."""
        if "template" in request:
            self._names = request["names"]
            self._template = _guarded(_environment().from_string, request["template"])
            return {"loaded": True} if isinstance(self._template, Template) else {"error": self._template}
        assert isinstance(self._template, Template)
        tools, limit = request["tools"], OUTPUT + OUTPUT_EACH * size
        return {
            "answers": [
                _guarded(_rendered, self._template, self._names, messages, prompt, tools, limit)
                for messages, prompt in request["conversations"]
            ]
        }


@contextmanager
def _bounded(size: int, used: int | None) -> Iterator[None]:
    """While entered, the process may take as much CPU time and memory as a request of `size` characters may.

    `used`: the address space that it had in the beginning.
    """
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if used is not None:
        limit = used + MEMORY + MEMORY_EACH * size
        resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
    signal.setitimer(signal.ITIMER_PROF, SECONDS + SECONDS_EACH * size)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if used is not None:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _address_space() -> int | None:
    """Bytes of address space in use; None on systems that do not bound it."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


class _TooLongError(Exception):
    """The template writes more than it may."""


def _guarded(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns, or [kind, detail] of its failure: a foreign program may fail in any way."""
    try:
        return work(*arguments)
    except MemoryError:
        return ["memory", ""]
    except _TooLongError:
        return ["output", ""]
    except TemplateSyntaxError as error:
        return ["syntax", f"in line {error.lineno}: {str(error)[:_DETAIL]}"]
    except TemplateError as error:
        return ["refused", str(error)[:_DETAIL]]
    except RecursionError:
        return ["failed", "it is nested, or calls itself, too deeply"]
    except Exception as error:
        return ["failed", f"{type(error).__name__}: {str(error)[:_DETAIL]}"]


def _rendered(
    template: Template,
    names: dict[str, str],
    messages: list[dict[str, Any]],
    prompt: bool,
    tools: list[dict[str, Any]] | None,
    limit: int,
) -> str:
    """The conversation as text of at most `limit` characters."""
    parts, size = [], 0
    values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt}
    for part in template.generate(**names, **values):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _TooLongError
    return "".join(parts)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as Hugging Face sets it up for chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    # one moment for all renderings, or they could not be compared
    environment.globals["strftime_now"] = datetime.now().strftime
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Plain JSON; Jinja's own filter writes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}, a Hugging Face tag around answers: accepted, no effect."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


if __name__ == "__main__":
    main()
