"""The JSON body of a request: its fields are taken one by one, with checks, and none may be left over."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from starlette.requests import Request

from featherback.errors import did_you_mean, excerpt, near
from featherback.web.guard import hold
from featherback.web.refusal import RefusedError

HARMLESS = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prediction", "cache_prompt"),
        # Ollama loads a model with them.
        *("num_ctx", "num_batch", "num_thread", "num_gpu", "use_mmap", "use_mlock", "keep_alive"),
        *("mirostat_eta", "mirostat_tau"),  # of mirostat
    )
)
"""Fields that do not change the answer. They are accepted and ignored, except `user`."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "mirostat": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "grammar": ("",),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Fields that would change the answer and that the server does not know how to apply, with the values of no effect."""


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # a character that may be half of a pair
_MOST_VALUES = 50_000
"""The most opening brackets in a body."""
_MOST_NAMES, _MOST_COMMAS = 50_000, 400_000
"""The most names of fields, and commas. Nothing else can be done while they are parsed."""


_VALUE_BYTES, _NAME_BYTES, _ITEM_BYTES, _CHARACTER_BYTES = 240, 120, 60, 4
"""Memory of an object or list, of a field, of another item and of a character in Python, rounded up."""


class Fields:
    """A JSON object of a request. A field with the value null counts as missing."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self._known: set[str] = set()

    @classmethod
    async def of(cls, request: Request) -> Fields:
        """Read the body of a request. Raises RefusedError unless it is a JSON object."""
        body = b"".join([part async for part in request.stream()])  # `body()` would keep it as long as the request
        values, names, items = body.count(b"{") + body.count(b"["), body.count(b'":'), body.count(b",")
        if values > _MOST_VALUES:
            raise RefusedError("The body of the request has too many brackets.")
        if names > _MOST_NAMES:
            raise RefusedError("The body of the request has too many fields.")
        if items > _MOST_COMMAS:
            raise RefusedError("The body of the request has too many commas. Send long prompts as text, not as ids.")
        size = values * _VALUE_BYTES + names * _NAME_BYTES + items * _ITEM_BYTES + len(body) * _CHARACTER_BYTES
        hold(request.scope, size)
        try:
            found = json.loads(body, parse_constant=_no_constant, parse_float=_finite)
            if _SURROGATE.search(body):
                json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise RefusedError("The request has half a surrogate pair, which is not valid Unicode.") from None
        except RecursionError:
            raise RefusedError("The body of the request is nested too deeply.") from None
        except ValueError as error:  # also bytes that are not UTF-8
            said = str(error) if isinstance(error, json.JSONDecodeError) else "it has invalid bytes or numbers"
            raise RefusedError(f"The body of the request is not valid JSON: {said}.") from None
        if not isinstance(found, dict):
            raise RefusedError("The body of the request must be a JSON object.")
        return cls(found)

    def refuse(self, name: str, what: str, code: str | None = None) -> NoReturn:
        """Raise RefusedError about a field: `what` follows its name."""
        raise RefusedError(f'"{self._where}{name}" {what}', param=f"{self._where}{name}", code=code)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a field of any type."""
        self._known.add(name)
        return self._values.get(name, default)

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        value = self.take(name, default)
        if not isinstance(value, str):
            self.refuse(name, f"is {excerpt(value)}; it must be a string.")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false; the default if it is missing."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            self.refuse(name, f"is {excerpt(value)}; it must be true or false.")
        return value

    def number(self, name: str, default: float, least: float, most: float | None = None) -> float:
        """Return a number from `least` to `most`."""
        value = self.take(name, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        try:
            fits = is_number and math.isfinite(value) and value >= least and (most is None or value <= most)
        except OverflowError:  # an integer that no float can hold
            fits = False
        if not fits:
            self.refuse(name, f"is {excerpt(value)}; it must be a number {_between(least, most)}.")
        return float(value)

    def whole(self, name: str, default: int | None, least: int, most: int | None = None) -> int | None:
        """Return an integer from `least` to `most`, or the default."""
        value = self.take(name, default)
        if value is default:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < least or (most is not None and value > most):
            self.refuse(name, f"is {_short(value)}; it must be a whole number {_between(least, most)}.")
        return int(value)

    def length(self, name: str, default: int | None) -> int | None:
        """Return the most tokens of an answer; None if it may fill the context, which -1 also says."""
        return None if self.take(name) == -1 else self.whole(name, default, 1)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the strings; the first one if it is missing."""
        value = self.take(name, choices[0])
        if value not in choices:
            self.refuse(name, f"is {_short(value)}; expected one of: {', '.join(choices)}.")
        return str(value)

    def object(self, name: str) -> Fields:
        """Return the fields of an object; none if it is missing."""
        value = self.take(name, {})
        if not isinstance(value, dict):
            self.refuse(name, f"is {_short(value)}; it must be an object.")
        return Fields(value, f"{self._where}{name}.")

    @property
    def all(self) -> Mapping[str, Any]:
        """All fields, which count as taken."""
        self._known.update(self._values)
        return self._values

    def end(self, harmless: Collection[str] = HARMLESS) -> None:
        """Raise RefusedError for a field that was not taken and may change the answer."""
        for name, value in self._values.items():
            if name in self._known or name in harmless:
                continue
            if name in UNSUPPORTED:
                if any((value == each and type(value) is not bool) or value is each for each in UNSUPPORTED[name]):
                    continue
                self.refuse(name, "is not supported; remove it.", "unsupported_parameter")
            advice = did_you_mean(near(name, self._known))
            self.refuse(" ".join(name.split())[:100], f"is not a field of this request.{advice}", "unknown_parameter")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):  # 1e999
        raise ValueError(text)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _short(value: object) -> str:
    """The value for a message. Python does not print integers of thousands of digits."""
    return "a number of many digits" if isinstance(value, int) and abs(value) >= 10**100 else excerpt(value)


def _between(least: float, most: float | None) -> str:
    """The accepted range. All digits of a whole number are written, because a rounded bound may be rejected."""
    first, last = (f"{each:g}" if isinstance(each, float) else str(each) for each in (least, most))
    return f"of at least {first}" if most is None else f"from {first} to {last}"
