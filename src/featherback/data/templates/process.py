"""Render chat templates in a separate, limited process: `python -m featherback.data.templates.process`.

A template is a program from a downloaded file. Jinja's sandbox keeps it away from the system, but cannot stop an
endless loop or a full memory. So it runs in this process, whose CPU time and memory the system limits
(docs/decisions/templates.md). Each line of standard input is a request, and each line of standard output its answer,
both in JSON:

    {"template": text, "names": {"bos_token": ...}}  ->  {"loaded": true}, or {"error": [kind, detail]}
    {"conversations": [[messages, add_generation_prompt], ...], "tools": tools, "variables": {...}, "moment": time,
     "begins": [index, ...]}  ->  {"answers": [...], "begins": [...]}

For each index of a message, "begins" has the length of the prompt before it if the first answer begins with this
prompt, and null if not. An answer is a text, or [kind, detail] with the kind "syntax", "refused", "failed", "memory" or
"output". A request that takes too much CPU time ends the process with status `signals.TOO_LONG`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from typing import Any, ClassVar, NoReturn

if find_spec("_sha1"):  # Python's own hashes are enough for Jinja's cache; OpenSSL would take 3 MB
    sys.modules["_hashlib"] = None  # type: ignore[assignment]

import jinja2.debug  # noqa: F401 - loaded now, because an error needs it when memory is short
from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from featherback.core.system import limits, signals
from featherback.data.templates import SECONDS

# Limits of a request. Each character of it adds to the limit (*_EACH), so that long conversations get more.
SECONDS_EACH = 2e-6
MEMORY, MEMORY_EACH = 48 << 20, 40
OUTPUT, OUTPUT_EACH = 1 << 20, 16

_DETAIL = 300  # most characters of an error's text


def main() -> None:
    """Answer requests until standard input ends."""
    signals.ignore_interrupts()  # the parent process handles Ctrl-C
    service, used = _Service(), limits.address_space()
    while line := sys.stdin.buffer.readline():
        size = len(line)
        with _bounded(size, used):
            request = json.loads(line)
            del line  # each form of a long conversation is freed as soon as the next one exists
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


class _Moment:
    """The time of a request: all its renderings use the same, so that they can be compared."""

    now = datetime(1970, 1, 1)

    def strftime(self, form: str) -> str:
        """Write the time, as templates ask for it."""
        return self.now.strftime(form)


class _Service:
    """Answers requests with the template that was loaded last."""

    def __init__(self) -> None:
        self._template: Any = None
        self._moment = _Moment()
        self._names: dict[str, str] = {}

    def reply(self, request: dict[str, Any], size: int) -> dict[str, Any]:
        """Return the answer to a request of `size` bytes."""
        if "template" in request:
            self._names = request["names"]
            self._template = _guarded(_environment(self._moment).from_string, request["template"])
            return {"loaded": True} if isinstance(self._template, Template) else {"error": self._template}
        assert isinstance(self._template, Template)
        self._moment.now = datetime.fromisoformat(request["moment"])
        values = {**request["variables"], **self._names, "tools": request["tools"], "documents": None}
        limit = OUTPUT + OUTPUT_EACH * size
        answers = [
            _guarded(_rendered, self._template, values, messages, prompt, limit)
            for messages, prompt in request["conversations"]
        ]
        begins = []
        _limit_time(size * (1 + len(request["begins"])))
        for i in request["begins"]:
            asked = _guarded(_rendered, self._template, values, request["conversations"][0][0][:i], True, limit)
            found = isinstance(asked, str) and isinstance(answers[0], str) and answers[0].startswith(asked)
            begins.append(len(asked) if found else None)
        return {"answers": answers, "begins": begins}


@contextmanager
def _bounded(size: int, used: int | None) -> Iterator[None]:
    """Limit CPU time and memory while a request of `size` characters is answered.

    `used`: bytes of address space at the start of the process, or None if memory cannot be limited.
    """
    if used is not None:
        limits.limit_memory(used + MEMORY + MEMORY_EACH * size)
    _limit_time(size)
    try:
        yield
    finally:
        limits.limit_time(0)
        if used is not None:
            limits.limit_memory(None)


def _limit_time(size: int) -> None:
    """Limit CPU time, from now on, to that of a request of `size` characters."""
    limits.limit_time(SECONDS + SECONDS_EACH * size)


class _TooLongError(Exception):
    """The output of the template exceeds its limit."""


def _guarded(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `work`, or [kind, detail] if it fails. A template can fail in any way."""
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
        return ["failed", "it is nested or recurses too deeply"]
    except Exception as error:
        return ["failed", f"{type(error).__name__}: {str(error)[:_DETAIL]}"]


def _rendered(
    template: Template, values: dict[str, Any], messages: list[dict[str, Any]], prompt: bool, limit: int
) -> str:
    """Render a conversation as text of at most `limit` characters."""
    parts, size = [], 0
    for part in template.generate({**values, "messages": messages, "add_generation_prompt": prompt}):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _TooLongError
    return "".join(parts)


def _environment(moment: _Moment) -> ImmutableSandboxedEnvironment:
    """Return a Jinja environment configured as in Hugging Face transformers, with the time of `moment`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = moment.strftime
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Write plain JSON. Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _Generation(Extension):
    """Accept {% generation %} ... {% endgeneration %}, a Hugging Face tag around answers, without any effect."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


if __name__ == "__main__":
    main()
