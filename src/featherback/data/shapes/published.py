"""Rewrite records of published data sets and of other programs, so that they have the keys of a shape.

Each form has one function in `_FORMS`. It returns the new record, or None if the record has another form. It raises
FeatherbackError if the form is known, but does not say by itself what to train on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from featherback.data.shapes.base import Row, structure
from featherback.errors import FeatherbackError, excerpt

_HUMAN, _ASSISTANT = "\n\nHuman:", "\n\nAssistant:"
_ANSWERS = ("response", "answer", "completion", "output", "conversation")
_CHOICES = ("choices", "options")


def standard_form(row: Row) -> Row:
    """Return a record with the keys of a shape. A record that has them already is returned unchanged."""
    return next((found for form in _FORMS if (found := form(row)) is not None), row)


def _openai_pair(row: Row) -> Row | None:
    """OpenAI's preferences: {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}"""
    keys = {"input": "prompt", "preferred_output": "chosen", "non_preferred_output": "rejected"}
    if not keys.keys() <= row.keys():
        return None
    given = structure(row, "input")
    if not isinstance(given, Mapping) or "messages" not in given:
        raise FeatherbackError('"input" beside "preferred_output" must be an object with "messages".')
    others = {key: value for key, value in row.items() if key not in keys}
    tools = {"tools": given["tools"]} if given.get("tools") else {}
    return {
        **others, **tools, "prompt": given["messages"], "chosen": structure(row, "preferred_output"),
        "rejected": structure(row, "non_preferred_output"),
    }  # fmt: skip


def _compared(row: Row) -> Row | None:
    """Arenas: two answers, such as "response_a" and "response_b", and a "winner"."""
    stems = [key[:-2] for key in row if key.endswith("_a") and f"{key[:-2]}_b" in row]
    stem = next((stem for stem in stems if stem in _ANSWERS), None)
    if stem is None or row.keys() & {"chosen", "completion"}:
        return None
    winner = str(row.get("winner", "")).strip().lower().rpartition("_")[2]
    if winner not in ("a", "b"):
        raise FeatherbackError(
            f'the record has two answers, "{stem}_a" and "{stem}_b", and "winner" does not say which is better. Write '
            'the better one as "chosen" and the other one as "rejected".'
        )
    worse = "b" if winner == "a" else "a"
    others = {key: value for key, value in row.items() if key not in (f"{stem}_a", f"{stem}_b", "winner")}
    return {**others, "chosen": row[f"{stem}_{winner}"], "rejected": row[f"{stem}_{worse}"]}


def _gemini(row: Row) -> Row | None:
    """Gemini: {"systemInstruction": {"parts": [...]}, "contents": [{"role": "model", "parts": [...]}]}"""
    contents = structure(row, "contents")
    if not isinstance(contents, list) or not all(isinstance(each, Mapping) and "parts" in each for each in contents):
        return None
    system = next((key for key in ("systemInstruction", "system_instruction") if row.get(key)), None)
    messages = [{"role": each.get("role", "user"), "content": _parts(each)} for each in contents]
    if system is not None:
        given = structure(row, system)
        messages.insert(0, {"role": "system", "content": given if isinstance(given, str) else _parts(given)})
    return {**{key: value for key, value in row.items() if key not in ("contents", system)}, "messages": messages}


def _parts(content: Any) -> Any:
    """Return the parts of a Gemini content as those of OpenAI. Other parts than text keep their name as a type."""
    parts = content.get("parts") if isinstance(content, Mapping) else None
    if not isinstance(parts, list):
        raise FeatherbackError('"parts" of Gemini\'s "contents" must be a list of {"text": ...}.')
    return [
        part if not isinstance(part, Mapping) or set(part) == {"text"} else {"type": next(iter(part), "empty"), **part}
        for part in parts
    ]


def _squad(row: Row) -> Row | None:
    """SQuAD: {"context": ..., "question": ..., "answers": {"text": [...], "answer_start": [...]}}"""
    answers = structure(row, "answers")
    if not (isinstance(answers, Mapping) and "text" in answers and "question" in row):
        return None
    texts = answers["text"] if isinstance(answers["text"], list) else [answers["text"]]
    if not texts:
        raise FeatherbackError(
            'the question has no answer: "answers" has an empty "text" (SQuAD 2). Write the answer to train on.'
        )
    others = {key: value for key, value in row.items() if key not in ("question", "context", "answers", "title")}
    context = {"input": row["context"]} if row.get("context") else {}
    return {**others, "instruction": row["question"], **context, "output": texts[0]}


def _choices(row: Row) -> None:
    """MMLU and others: the answer is the number or the letter of a choice."""
    listed = next((key for key in _CHOICES if isinstance(structure(row, key), (list, Mapping))), None)
    if listed is not None and not {"messages", "conversations"} & row.keys():
        raise FeatherbackError(
            f"the answer is one of the {excerpt(listed)}, which would not be trained on. Write the choices into "
            f'"prompt", and the text of the answer as "completion".'
        )


def _tree_message(row: Row) -> None:
    """OpenAssistant: one message of a tree per record, or a tree with "replies"."""
    prompt = row.get("prompt")
    if {"message_id", "text", "role"} <= row.keys() or (isinstance(prompt, Mapping) and "replies" in prompt):
        raise FeatherbackError(
            "this is a tree of messages, as in OpenAssistant's data. Choose a path from the first message to a last "
            'answer, and write it as one object {"messages": [...]}.'
        )


def _lm_studio(row: Row) -> Row | None:
    """LM Studio: each message has several versions, and one of them is selected."""
    messages = structure(row, "messages")
    if not isinstance(messages, list) or not messages or not all(_is_versions(each) for each in messages):
        return None
    chosen = [each["versions"][each.get("currentlySelected", 0)] for each in messages]
    system = {"system": row["systemPrompt"]} if row.get("systemPrompt") else {}
    return {"messages": [_selected(each) for each in chosen], **system}


def _is_versions(message: Any) -> bool:
    versions = message.get("versions") if isinstance(message, Mapping) else None
    number = message.get("currentlySelected", 0) if versions else None
    return isinstance(versions, list) and isinstance(number, int) and 0 <= number < len(versions)


def _selected(version: Any) -> dict[str, Any]:
    steps = version.get("steps", [version]) if isinstance(version, Mapping) else []
    contents = [step.get("content", []) for step in steps if isinstance(step, Mapping)]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    return {"role": version.get("role") if isinstance(version, Mapping) else None, "content": parts}


def _hh(row: Row) -> Row | None:
    """Anthropic's HH: transcripts with "Human:" and "Assistant:" as chosen and rejected."""
    texts = [row.get(key) for key in ("chosen", "rejected")]
    if not all(isinstance(text, str) and text.startswith(_HUMAN) for text in texts) or row.get("prompt"):
        return None
    return {**row, **{key: _transcript(row[key]) for key in ("chosen", "rejected")}}


def _transcript(text: str) -> list[dict[str, str]]:
    pieces = re.split(f"({re.escape(_HUMAN)}|{re.escape(_ASSISTANT)})", text)[1:]
    roles = {_HUMAN: "user", _ASSISTANT: "assistant"}
    return [
        {"role": roles[sign], "content": said.strip()} for sign, said in zip(pieces[::2], pieces[1::2], strict=True)
    ]


_FORMS: tuple[Callable[[Row], Row | None], ...] = (
    _openai_pair, _compared, _gemini, _squad, _choices, _tree_message, _lm_studio, _hh,
)  # fmt: skip
