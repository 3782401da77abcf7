"""Find the question and the answer among columns with common names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import chain, islice
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError, excerpt, near

_QUESTIONS = ("prompt", "instruction", "question", "query", "request")
_LESS_USUAL_QUESTIONS = (("input",), ("prompts", "instructions", "questions", "queries", "q"), ("user", "human"))
_ANSWERS = ("completion", "output", "answer", "response", "reply")
_LESS_USUAL_ANSWERS = (("completions", "outputs", "answers", "responses", "replies", "a"), ("assistant", "bot", "gpt"))
"""Each group is looked for only if the groups before it are missing. The last group comes after `_by_words`."""
_BESIDE = ("input", "context")
"""Text that an instruction refers to."""
_ASKING = {
    "prompt", "instruction", "question", "query", "request", "ask", "asked",
    "frage", "anfrage", "pregunta", "pergunta", "domanda", "vraag",
}  # fmt: skip
_ANSWERING = {
    "completion", "output", "answer", "response", "reply", "solution",
    "antwort", "respuesta", "resposta", "risposta", "antwoord", "reponse", "réponse",
}  # fmt: skip
"""Words in names of columns that say what the column holds, in several languages."""
_COMPOUND = re.compile(r"\w*?(?<!um)(frage|antwort|vraag|antwoord)(?:text|tekst)?")
"""German and Dutch words that end like one of these: Kundenanfrage, Antworttext. An Umfrage is something else."""
_ASKERS = {"user", "human", "customer", "client", "kunde", "visitor", "student", "patient", "caller"}
_ANSWERERS = {"assistant", "agent", "bot", "gpt", "ai", "model", "support", "teacher", "doctor", "chatbot"}
"""Words that say who wrote the text of a column. They count if only words of `_SAYING` stand beside them.

Without such a word, the column may hold names of people; it counts only in a table of two columns."""
_SAYING = {"message", "messages", "text", "content", "says", "said", "turn", "utterance", "the", "of", "by", "from"}
_NAMING = {"by", "from", "von", "to"}
"""Last words of a name such as "Answered by": the column says who wrote a text."""
_SHAPED = (
    {"anchor", "positive"},
    {"query", "positive"},
    {"messages"},
    {"conversations"},
    {"text"},
    {"prompt", "completion"},
)
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")
_MOST_WORDS = 4  # in a column's name; a longer one is a text
_ALPACA = {"instruction", "output"}
_PEOPLE = {*_ASKERS, *_ANSWERERS, "my", "your", "our", "expected", "correct", "final"}
_ENDS = tuple(".?!")
_MOST_COLUMNS = 100  # that are looked at
_LOOKED_AT = 1000  # characters of a text that are searched for a letter
_LONGEST = 40  # characters of a column's name that an error repeats in an option


def usual_columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Map keys of a shape ("prompt") to the row's columns ("question"), where the names differ.

    The result is empty if the row already has a shape's keys, or if no question or no answer was found. If several
    columns could be the question or the answer, a FeatherbackError lists the options to choose one.
    """
    if any(keys <= row.keys() for keys in (*_SHAPED, _ALPACA)):
        return {}
    is_pair = row.keys() >= {"chosen", "rejected"}
    if is_pair and row.keys() & {"prompt", "instruction"}:
        return {}
    names: dict[str, list[str]] = {}
    for column in row:
        names.setdefault(column.strip().lower(), []).append(column)

    def found(known: tuple[str, ...]) -> list[str]:
        return [column for name in known for column in names.get(name, ())]

    beside = found(_BESIDE)

    def first(usual: tuple[str, ...], *less: tuple[str, ...], words: list[str]) -> list[str]:
        return next(filter(None, (*map(found, (usual, *less[:-1])), words, found(less[-1]))), [])

    answers = first(_ANSWERS, *_LESS_USUAL_ANSWERS, words=_by_words(row, _ANSWERING, _ANSWERERS))
    questions = [name for name in _by_words(row, _ASKING, _ASKERS) if name not in answers]
    questions = first(_QUESTIONS, *_LESS_USUAL_QUESTIONS, words=questions)
    if is_pair:
        if len(questions) > 1:
            raise _several(questions, "question", {"prompt": questions[0], "chosen": "chosen", "rejected": "rejected"})
        return {"prompt": questions[0]} if questions else {}
    beside = [column for column in beside if column not in questions]
    if not questions or not answers:
        return {}
    follows = questions[0].strip().lower() == "instruction"
    keys = ("instruction", "output", "input") if follows or beside else ("prompt", "completion")
    columns = dict(zip(keys, (questions[0], answers[0], *beside), strict=False))
    for several, what in ((questions, "question"), (answers, "answer"), (beside, "input")):
        if len(several) > 1:
            raise _several(several, what, columns)
    if beside and not follows:
        pair = {"prompt": questions[0], "completion": answers[0]}
        raise FeatherbackError(
            f"the column {excerpt(beside[0])} may be part of the question. To train with it: {map_options(columns)}. "
            f"To train without it: {map_options(pair)}."
        )
    return {key: column for key, column in columns.items() if key != column}


def _several(columns: Sequence[str], what: str, choice: Mapping[str, str]) -> FeatherbackError:
    return FeatherbackError(
        f"the columns {' and '.join(map(excerpt, columns[:3]))} could each be the {what}. Choose the columns "
        f"to read: {map_options(choice)}."
    )


def is_answer_name(column: str) -> bool:
    """Whether a column's name says that it holds an answer."""
    name = column.strip().lower()
    return name in (*_ANSWERS, *chain(*_LESS_USUAL_ANSWERS)) or bool(_by_words([column], _ANSWERING, _ANSWERERS))


def _by_words(columns: Collection[str], kinds: Set[str], speakers: Set[str]) -> list[str]:
    """Return the columns whose names say in words what they hold: "Agent reply", "customerMessage"."""
    found = []
    are_two = len(columns) <= 2
    for column in islice(columns, _MOST_COLUMNS):
        words = [_simple(word.lower()) for word in _WORD.findall(column[:_LONGEST])]
        others = {word for word in words if word not in _SAYING and len(word) > 1 and not word.isdecimal()}
        known = others & (_ASKING | _ANSWERING)
        names_people = bool(known) and words[-1] in _NAMING
        if len(words) > _MOST_WORDS or column.rstrip()[-1:] in _ENDS or not others or names_people:
            continue
        people = others - known
        is_said = are_two or any(word in _SAYING for word in words)
        if (known and known <= kinds and people <= _PEOPLE) or (not known and people <= speakers and is_said):
            found.append(column)
    return found


def _simple(word: str) -> str:
    """Return the last part of a compound that says what a column holds; other words unchanged."""
    return found[1] if (found := _COMPOUND.fullmatch(word)) else word


def map_options(columns: Mapping[str, str]) -> str:
    """The options that read these columns, to paste."""
    return argument("map", [f"{key}={column}" for key, column in columns.items()])


def likely_pair(row: Mapping[str, Any]) -> dict[str, str]:
    """Guess which of unknown columns are prompt and completion: by similar names, then the two with the longest texts.

    Long names and missing columns are replaced by the placeholder COLUMN.
    """
    columns = list(islice(row, _MOST_COLUMNS))
    questions = [name for group in (_QUESTIONS, *_LESS_USUAL_QUESTIONS) for name in group if len(name) > 1]
    answers = [name for name in (*_ANSWERS, *chain(*_LESS_USUAL_ANSWERS)) if len(name) > 1]
    texts = [name for name in columns if isinstance(row[name], str) and any(map(str.isalpha, row[name][:_LOOKED_AT]))]
    longest = sorted(texts, key=lambda name: -len(row[name]))[:2]
    free = list(columns) if len(columns) == 2 else [name for name in columns if name in longest and len(longest) == 2]
    pair = dict[str, str]()
    for column in columns:
        known = [*questions, *answers]  # among many columns, only names of these words; a misspelt one is no evidence
        similar = near(column, known, 1) if len(columns) == 2 else [name for name in known if name == column.lower()]
        key = "prompt" if similar and similar[0] in questions else "completion"
        if similar and key not in pair and column in (texts or columns):
            pair[key] = column
            free = [name for name in free if name != column]
    found = {}
    for key in ("prompt", "completion"):
        column = pair.get(key) or (free.pop(0) if free else "COLUMN")
        found[key] = column if len(column) <= _LONGEST else "COLUMN"
    return found
