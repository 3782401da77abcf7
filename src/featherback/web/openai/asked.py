"""The fields that chat and completion requests share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.errors import excerpt
from featherback.infer.sampler import Biased, Biases, Sampler
from featherback.web.openai.fields import Fields

MOST_ANSWERS = 16
"""The most answers to one request."""
MOST_LIKELY = 20
"""The most alternatives of a token that can be asked for."""
_MOST_STOPS, _LONGEST_STOP = 16, 1000
_MOST_BIAS = 100
_LEAST_PENALTY, _MOST_PENALTY = 0.01, 10
_WINDOW, _LONGEST_WINDOW = 64, 2**31 - 1
"""The tokens that `repeat_penalty` looks at: the default of llama.cpp, and the most."""
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
    biases: Biases
    schema: Mapping[str, Any] | None
    """The JSON schema that answers follow; None: they are text."""
    schema_field: str = "response_format"
    """The field of the request that has the schema."""

    @classmethod
    def of(cls, fields: Fields, defaults: Defaults, n_vocab: int) -> Asked:
        """Take the fields. `n_vocab`: the number of token ids. Raises RefusedError."""
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
            seed=secrets.randbits(63) if seed in (None, -1) else seed % 2**64,
            biases=_biases(fields, n_vocab),
            schema=_schema(fields),
        )

    def sampler(self, number: int, prompt: Sequence[int]) -> Callable[[NDArray[np.float32]], int]:
        """The sampler of the answer to `prompt` with this number. Each draws other tokens."""
        sampler = Sampler(self.temperature, self.top_p, self.top_k, self.seed + number, self.min_p)
        return Biased(sampler, self.biases, prompt) if self.biases != Biases() else sampler


def _schema(fields: Fields) -> Mapping[str, Any] | None:
    """Return the schema that answers follow, in OpenAI's form or in another server's; None: they are text."""
    form = fields.object("response_format")
    kind = form.choice("type", ("text", "json_object", "json_schema"))
    found = [fields.take("json_schema"), fields.take("guided_json")]  # llama.cpp, vLLM
    if kind != "text":
        found.append(form.take("schema"))
    if kind == "json_schema":
        described = dict(form.object("json_schema").all)
        for name in ("name", "description", "strict"):  # it is always followed
            described.pop(name, None)
        found.append(described.pop("schema", None))
        if described and found[-1] is not None:
            form.refuse("json_schema", f"has the unknown field {excerpt(next(iter(described)))}.")
        found.append(described or None)
    form.end()
    given = [each for each in found if each is not None]
    if kind == "json_schema" and not given:
        form.refuse("json_schema.schema", "is missing.")
    if any(not isinstance(each, dict) for each in given):
        form.refuse("schema", "must be an object.")
    if len(given) > 1:
        form.refuse("schema", "is given twice.")
    return given[0] if given else {"type": "object"} if kind == "json_object" else None


def _biases(fields: Fields, n_vocab: int) -> Biases:
    """Return what changes logits."""
    given = fields.object("logit_bias").all
    try:
        tokens = {int(token): float(bias) for token, bias in given.items()}
    except (TypeError, ValueError, OverflowError):
        tokens = {-1: 0.0}
    if not all(0 <= token < n_vocab and abs(bias) <= _MOST_BIAS for token, bias in tokens.items()):
        fields.refuse(
            "logit_bias",
            f"must have token ids from 0 to {n_vocab - 1}, each with a number from -{_MOST_BIAS} to {_MOST_BIAS}.",
        )
    frequency, presence = (fields.number(name, 0, -2, 2) for name in ("frequency_penalty", "presence_penalty"))
    return Biases(frequency, presence, tokens, *_repetition(fields))


def _repetition(fields: Fields) -> tuple[float, int | None]:
    """Return the penalty for tokens of the prompt and the answer, and how many it looks at: vLLM's, or llama.cpp's."""
    everywhere = fields.number("repetition_penalty", 1, _LEAST_PENALTY, _MOST_PENALTY)
    recent = fields.number("repeat_penalty", 1, _LEAST_PENALTY, _MOST_PENALTY)
    window = fields.whole("repeat_last_n", _WINDOW, -1, _LONGEST_WINDOW)
    if everywhere != 1 and recent != 1:
        fields.refuse("repeat_penalty", "and repetition_penalty are the same; remove one of the two.")
    if everywhere != 1 or recent == 1:
        return everywhere, None
    return (1.0, None) if window == 0 else (recent, None if window == -1 else window)


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.take("stop", [])
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        fields.refuse("stop", f"must be a string, or a list of at most {_MOST_STOPS} strings.")
    if not all(isinstance(stop, str) and 0 < len(stop) <= _LONGEST_STOP for stop in stops):
        fields.refuse("stop", f"must have strings of 1 to {_LONGEST_STOP} characters.")
    return tuple(stops)
