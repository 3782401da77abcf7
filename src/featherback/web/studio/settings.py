"""The options of training as a form, made from their descriptions, and back to the words of a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from featherback.core.options import Option, described, flags, from_text
from featherback.errors import FeatherbackError, excerpt
from featherback.runs.by_name import field_of, given
from featherback.runs.config import CHOICES
from featherback.runs.names import accepted, combined, default_of, grouped, known
from featherback.runs.panels.distillation import DistillationOptions
from featherback.runs.panels.rollouts import RolloutOptions
from featherback.web.refusal import RefusedError
from featherback.web.studio.goals import QUESTIONS

ELSEWHERE = {"data", "eval_data", "out", "start", "log_to", *described(DistillationOptions), *described(RolloutOptions)}
"""Options that the page has in other places, or that name other files and programs: those are for the command line."""
READING = ("columns", "skip_bad", "table", "me")
"""Options that say how a data file is read."""
_MOST_TEXT = 1000  # characters of a value


def form() -> list[dict[str, Any]]:
    """Return the groups of options: their titles, and what a form needs to know about each option."""
    groups = []
    for title, fields in grouped().items():
        if options := [_described(field) for field in fields if field not in ELSEWHERE]:
            groups.append({"title": title, "options": options})
    return groups


def questions() -> list[dict[str, Any]]:
    """Return the questions that come before the form, with their answers."""
    return [asdict(question) for question in QUESTIONS]


def _described(field: str) -> dict[str, Any]:
    """Return the label, help, default, kind of input and choices of an option."""
    kinds = known()[field]
    about = combined(field)
    default = default_of(kinds[0], field)
    own = next((own for own in CHOICES if field in own.by_option()), None)
    return {
        "name": field,
        "flag": flags(kinds[0], field)[0],
        "brief": about.brief,
        "help": about.meaning,
        "default": about.default_in_words or _written(default),
        "kind": _kind(about, field),
        "choices": list(about.choices),
        "words": list(about.known_words),
        "only_for": about.only_for,
        "instead_of": about.instead_of,
        "only_with": None if own is None else {"option": own.choice, "values": list(own.by_option()[field])},
    }


def _kind(about: Option, field: str) -> str:
    """Return which input suits an option: choice, switch, number or text."""
    kinds = set(accepted(field)) - {type(None)}
    if about.choices:
        return "choice"
    if kinds == {bool}:
        return "switch"
    return "number" if kinds <= {int, float} and about.parse is None else "text"


def _written(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def words(settings: object) -> list[str]:
    """Return the words for a form's values: option -> text; empty texts are not given. The order is that of the form.

    Raises RefusedError for an unknown option, and for a value that the option does not accept.
    """
    if not isinstance(settings, Mapping) or not all(isinstance(value, str) for value in settings.values()):
        raise RefusedError("`settings` must be an object of texts.", param="settings")
    asked = {str(name): value.strip() for name, value in settings.items() if value.strip()}
    order = [field for fields in grouped().values() for field in fields if field not in ELSEWHERE]
    if unknown := [name for name in asked if name not in order]:
        raise RefusedError(f"There is no option {excerpt(unknown[0])} on this page.", param="settings")
    return [word for field in order if field in asked for word in _words_of(field, asked[field])]


def reading_words(settings: object) -> list[str]:
    """Return the words for the values that say how a data file is read. Raises RefusedError as `words` does."""
    if not isinstance(settings, Mapping):
        raise RefusedError("`settings` must be an object of texts.", param="settings")
    return words({name: settings[name] for name in READING if name in settings})


def _words_of(field: str, text: str) -> list[str]:
    if len(text) > _MOST_TEXT:
        raise RefusedError(f"The value of {field} is longer than {_MOST_TEXT} characters.", param=field)
    kind = known()[field][0]
    about, flag = described(kind)[field], flags(kind, field)[0]
    parts = [line.strip() for line in text.splitlines() if line.strip()] if about.several else [text]
    try:
        given(field_of(field, "The page"), _typed(about, field, parts if about.several else text))
    except FeatherbackError as error:
        raise RefusedError(str(error), param=field) from None
    if _kind(about, field) == "switch":
        return [flag] if text == "yes" else []
    return [word for part in parts for word in ([f"{flag}={part}"] if part.startswith("-") else [flag, part])]


def _typed(about: Option, field: str, text: Any) -> Any:
    """Return a form's text as the option's own check takes it: a number, a truth value, or the text."""
    if about.parse is not None or not isinstance(text, str):
        return text
    kinds = accepted(field)
    return {"yes": True, "no": False}.get(text, text) if bool in kinds else from_text(kinds, text)
