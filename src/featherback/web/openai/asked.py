"""The fields that chat and completion requests share."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from featherback.infer.sampler import Sampler
from featherback.web.openai.fields import Fields

MOST_ANSWERS = 16
"""The most answers to one request."""
MOST_LIKELY = 20
"""The most alternatives of a token that can be asked for."""
_MOST_STOPS, _LONGEST_STOP = 16, 1000
_LEAST_TEMPERATURE = 1e-4
"""Below it, the likeliest token is always taken."""


@dataclass(frozen=True)
class Defaults:
    """How answers are sampled if the request does not say it."""

    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True)
class Asked:
    """How a request wants its answers."""

    model: str
    client: str
    stream: bool
    with_usage: bool
    """A stream ends with the numbers of tokens."""
    count: int
    """Answers per prompt."""
    stops: tuple[str, ...]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    schema: Mapping[str, Any] | None
    """The JSON schema that answers follow; None: they are text."""

    @classmethod
    def of(cls, fields: Fields, defaults: Defaults) -> Asked:
        """Take the fields. Raises RefusedError."""
        stream = fields.flag("stream")
        options = fields.object("stream_options")
        with_usage = options.flag("include_usage")
        options.flag("include_obfuscation")
        options.end()
        if fields.take("stream_options") and not stream:
            fields.refuse("stream_options", 'needs "stream": true.')
        seed = fields.whole("seed", None, -(2**63), 2**64 - 1)
        temperature = fields.number("temperature", defaults.temperature, 0)
        return cls(
            model=fields.text("model"),
            client=fields.text("user"),
            stream=stream,
            with_usage=with_usage,
            count=fields.whole("n", 1, 1, MOST_ANSWERS) or 1,
            stops=_stops(fields),
            temperature=temperature if temperature >= _LEAST_TEMPERATURE else 0.0,
            top_p=fields.number("top_p", defaults.top_p, 0, 1) or _LEAST_TEMPERATURE,
            top_k=max(0, fields.whole("top_k", defaults.top_k, -1) or 0),
            min_p=fields.number("min_p", 0, 0, 1),
            seed=secrets.randbits(63) if seed is None else seed % 2**64,
            schema=_schema(fields.object("response_format")),
        )

    def sampler(self, number: int) -> Sampler:
        """The sampler of the answer with this number. Each draws other tokens."""
        return Sampler(self.temperature, self.top_p, self.top_k, self.seed + number, self.min_p)


def _schema(form: Fields) -> Mapping[str, Any] | None:
    """Return the schema of a response_format."""
    kind, schema = form.choice("type", ("text", "json_object", "json_schema")), None
    if kind == "json_object":
        schema = form.take("schema", {"type": "object"})  # llama.cpp's form
    elif kind == "json_schema":
        described = form.object("json_schema")
        described.text("name")
        described.text("description")
        described.flag("strict")  # the schema is always followed
        if (schema := described.take("schema")) is None:
            described.refuse("schema", "is missing.")
        described.end()
    if schema is not None and not isinstance(schema, dict):
        form.refuse("schema", "must be an object.")
    form.end()
    return schema


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.take("stop", [])
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        fields.refuse("stop", f"must be a string, or a list of at most {_MOST_STOPS} strings.")
    if not all(isinstance(stop, str) and 0 < len(stop) <= _LONGEST_STOP for stop in stops):
        fields.refuse("stop", f"must have strings of 1 to {_LONGEST_STOP} characters.")
    return tuple(stops)
