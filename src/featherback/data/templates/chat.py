"""Render conversations with the model's own chat template, and find the characters to supervise.

The rule: the loss is taken on every assistant turn, including its end-of-turn token, and on nothing else.

A chat template is a program, and does not report which characters of its output came from which message. Therefore each
conversation is rendered a second time with marks around the contents of its messages. If that rendering without its
marks equals the first one, the marks show exactly where each content is. Some templates split an answer, for example to
drop its reasoning, which loses a mark. In that case the rendering up to a turn is compared with the rendering after it.
If that fails too, the data are rejected, because a wrong mask would go unnoticed.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.report import SYNONYMS
from featherback.data.templates.renderer import Answers, Renderer, RenderingError, Tools
from featherback.data.tokenizers.tokenizer import Ids, Span, Tokenizer
from featherback.errors import FeatherbackError, excerpt

Message = Mapping[str, Any]
Messages = Sequence[Message]

# A mark is OPEN number CLOSE, at the start and at the end of a content. Unicode reserves these two characters for
# internal use.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_ROLE = re.compile(r"[\w-]+")
_BLOCK = 1 << 14  # tokens whose mask is computed at once
_NO_SPACE = {code: None for code in range(0x3001) if chr(code).isspace()}  # all white space in Unicode

# What to do about a message that the template drops, by role.
_ANOTHER_ROLE = "Use a role that the template knows, or remove the message."
_REMEDIES = {
    "system": "Move it to the start of the first user message, or remove it.",
    "assistant": "Remove the dropped part, such as the reasoning, from the answer, or remove the example.",
}


@dataclass(frozen=True)
class Rendering:
    """A conversation as text."""

    text: str
    contents: tuple[Span, ...]
    """Spans of the messages' contents, where the name of a control token is plain text. Sorted and disjoint."""
    supervised: tuple[Span, ...]
    """Spans of the assistant turns, each with its end-of-turn token. Sorted and disjoint."""


@dataclass(frozen=True)
class Pending:
    """A conversation that is being rendered, without and with marks."""

    messages: Messages
    tools: Tools | None
    renamed: Counter[str]
    number: int


class NoTemplateError(FeatherbackError):
    """A chat model is needed, but the model has no chat template."""

    def __init__(self) -> None:
        super().__init__(
            "The model has no chat template, so it cannot be used with conversations. Use an instruct model, or train "
            "on plain text."
        )


class ChatTemplate:
    """The chat template of a tokenizer. Several templates may share the process of one `renderer`."""

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer | None = None) -> None:
        if tokenizer.chat_template is None:
            raise NoTemplateError
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template
        self._renderer = renderer or Renderer()
        self._end: str | None = None
        self._headers: tuple[str, ...] | None = None
        self.renamed: Counter[str] = Counter()
        """The number of messages so far, by role, whose role was replaced because the template does not know it."""
        self._synonyms = {
            role: other for role, other in SYNONYMS.items() if not re.search(f"[\"']{role}[\"']", self._template)
        }

    def start(self) -> None:
        """Start the process that renders."""
        self._renderer.start()

    def render(self, messages: Messages, add_generation_prompt: bool = False, tools: Tools | None = None) -> str:
        """Render a conversation as text. Raises FeatherbackError if the template rejects it."""
        (text,) = self._render((messages, add_generation_prompt), tools=tools)
        return _text(text)

    def _render(
        self,
        *conversations: tuple[Messages, bool],
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Answers:
        return self._receive(self._request(*conversations, tools=tools, variables=variables))

    def _request(
        self,
        *conversations: tuple[Messages, bool],
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> int:
        bare = [
            ([{key: m[key] for key in m if key != "weight"} for m in messages], prompt)
            for messages, prompt in conversations
        ]
        tokenizer = self._tokenizer
        names, source = tokenizer.special_names, tokenizer.template_source
        return self._renderer.ask(self._template, names, source, bare, tools, variables)

    def _receive(self, number: int) -> Answers:
        return self._renderer.take(number, self._tokenizer.template_source)

    def training(self, messages: Messages, tools: Tools | None = None) -> Rendering:
        """Render a conversation for training, with its supervised spans (none if there is no assistant message)."""
        return self.finish(self.begin(messages, tools))

    def begin(self, messages: Messages, tools: Tools | None = None) -> Pending:
        """Start the first half of `training`: the process renders the conversation."""
        check_messages(messages)
        renamed = Counter(message["role"] for message in messages if message["role"] in self._synonyms)
        messages = self._with_known_roles(messages)
        return Pending(messages, tools, renamed, self._request(*_with_marks(messages, False), tools=tools))

    def finish(self, pending: Pending) -> Rendering:
        """Do the second half of `training`: wait for the rendering and find the supervised spans."""
        messages = pending.messages
        self.renamed.update(pending.renamed)
        text, spans = _unmarked(self._receive(pending.number), len(messages))
        supervised = None if spans is None else self._by_marks(text, spans, messages, pending.tools)
        self._check_whole(text, spans, messages, but="assistant")
        if supervised is None:
            supervised = self._by_prefixes(text, messages, pending.tools)
        self._check_whole(text, spans, messages)
        trained = []
        for (start, end), (i, message) in zip(supervised, _answers(messages), strict=True):
            self._check_calls(text[start:end], i, message)
            if message.get("weight", 1):
                trained.append((start, end))
        self._check_tools(text, messages, pending.tools)
        return Rendering(text, self._contents(text, spans, messages), tuple(trained))

    def prompt(
        self,
        messages: Messages,
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> Rendering:
        """Render a conversation up to the point where the assistant answers.

        `variables`: more variables of the template. `continues`: the answer continues the last message.
        """
        if continues:
            begun = self.prompt(messages[:-1], tools, variables)
            whole = begun.text + messages[-1]["content"]
            return Rendering(whole, (*begun.contents, (len(begun.text), len(whole))), ())
        check_messages(messages)
        self._check_spelling("the variables of the chat template", variables or {})
        messages = self._with_known_roles(messages)
        text, spans = self._marked(messages, add_generation_prompt=True, tools=tools, variables=variables)
        # Earlier answers may be shortened, because some templates drop their reasoning.
        self._check_whole(text, spans, messages, but="assistant")
        self._check_tools(text, messages, tools)
        for i, message in _answers(messages):
            self._check_spelling(f"a tool call of message {i + 1}", message.get("tool_calls", ()))
        return Rendering(text, self._contents(text, spans, messages), ())

    def encode(self, rendering: Rendering) -> tuple[list[int], list[bool]]:
        """Encode a rendering: token ids, and whether each token contains a character of a supervised span."""
        ids, mask = self.encode_arrays(rendering)
        return ids.tolist(), mask.tolist()

    def encode_arrays(self, rendering: Rendering) -> tuple[Ids, NDArray[np.bool_]]:
        """Encode a rendering as arrays, without a Python object per token."""
        tokenizer = self._tokenizer
        ids, offsets = tokenizer.encode_with_offsets(rendering.text, special=True, protected=rendering.contents)
        # A token is supervised if the first span that ends after its start begins before its end.
        spans = np.array([*rendering.supervised, (len(rendering.text) + 1,) * 2], np.uint32)
        mask = np.empty(ids.size, np.bool_)
        for at in range(0, ids.size, _BLOCK):  # the intermediate arrays take several times the result
            block = slice(at, at + _BLOCK)
            starts, ends = offsets[block, 0], np.maximum(offsets[block, 1], offsets[block, 0] + 1)
            mask[block] = spans[np.searchsorted(spans[:, 1], starts, side="right"), 0] < ends
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1].tolist() != [tokenizer.bos_id]:
            return np.insert(ids, 0, tokenizer.bos_id), np.insert(mask, 0, False)
        return ids, mask

    def encode_prompt(
        self,
        messages: Messages,
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """Return the token ids of a conversation for the assistant to answer. `tools`: those that it may call.

        `variables` and `continues`: see `prompt`.
        """
        return self.encode(self.prompt(messages, tools, variables, continues))[0]

    @property
    def end_of_turn(self) -> str:
        """The control token that ends an assistant turn. Raises FeatherbackError if the template writes none."""
        if self._end is None:
            text, spans = self._marked([_message("user", "a"), _message("assistant", "b")])
            end = text[spans[1][0][1] :].lstrip() if spans and len(spans[1]) == 1 else text.rpartition("b")[2].lstrip()
            token = next(self._tokenizer.control_tokens(end), None)
            if token is None or token[1] != 0:
                raise FeatherbackError(
                    "The model's chat template writes no end-of-turn token after an answer; a model tuned "
                    "with it would never learn to stop. Use a model with another template, or prepare the "
                    "data as plain text."
                )
            self._end = self._tokenizer.name(token[0]) or ""
        return self._end

    @property
    def headers(self) -> tuple[str, ...]:
        """The texts that come before an answer, if the template writes them.

        First the text after a user's content ("<|im_end|>\\n<|im_start|>assistant\\n", "[/INST]"), then the generation
        prompt ("<|im_start|>assistant\\n"), then the text between a question and its answer: some prompts begin the
        answer ("<think>").
        """
        if self._headers is None:
            message = [_message("user", "a")]
            text, spans = self._marked(message, add_generation_prompt=True)
            after_user = text[spans[0][-1][1] :] if spans and spans[0] else ""
            bare = self.render(message)
            generation = text[len(bare) :] if text.startswith(bare) else ""
            text, spans = self._marked([*message, _message("assistant", "b")])
            between = text[spans[0][-1][1] : spans[1][0][0]] if spans and all(spans) else ""
            self._headers = tuple(header for header in (after_user, generation, between) if header)
        return self._headers

    def _with_known_roles(self, messages: Messages) -> Messages:
        """Replace roles that the template does not know by their other names."""
        return [{**m, "role": self._synonyms.get(m["role"], m["role"])} for m in messages]

    def _check_whole(
        self, text: str, spans: list[list[Span]] | None, messages: Messages, but: str | None = None
    ) -> None:
        """Raise FeatherbackError if a message is missing from the rendering. Messages of the role `but` are ignored."""
        squeezed = "" if spans is not None else _without_space(text)
        for i, message in enumerate(messages):
            if message["role"] == but or (spans is not None and spans[i]):
                continue
            if _without_space(message["content"]) not in squeezed:
                raise FeatherbackError(
                    f"{self._tokenizer.template_source} drops or changes message {i + 1} (role "
                    f"{message['role']!r}, {message['content'][:40]!r}), so the model would not see it as written. "
                    f"{_REMEDIES.get(message['role'], _ANOTHER_ROLE)}"
                )

    def _check_tools(self, text: str, messages: Messages, tools: Tools | None) -> None:
        """Raise FeatherbackError if a tool is missing from the rendering or contains a control token.

        Occurrences of its name in the messages themselves do not count.
        """
        squeezed = _without_space(text) if tools else ""
        for i, tool in enumerate(tools or (), 1):
            what, name = f"tool {i}", tool["function"]["name"]
            spoken = sum(
                _without_space(said).count(_without_space(name))
                for message in messages
                for said in (message["content"], *_leaves([c["function"] for c in message.get("tool_calls", ())]))
            )
            if max(squeezed.count(_without_space(form)) for form in _spellings(name)) <= spoken:
                raise self._dropped(what, name)
            self._check_spelling(what, tool)

    def _check_calls(self, turn: str, i: int, message: Message) -> None:
        """Raise FeatherbackError if a call or the reasoning of message `i` is missing or contains a control token."""
        said = [(f"a tool call of message {i + 1}", call, call["function"]) for call in message.get("tool_calls", ())]
        if reasoning := message.get("reasoning_content"):
            said.append((f"the reasoning of message {i + 1}", reasoning, reasoning))
        squeezed = _without_space(turn) if said else ""
        for what, whole, pieces in said:
            for piece in _leaves(pieces):
                if not any(_without_space(form) in squeezed for form in _spellings(piece)):
                    raise self._dropped(what, piece)
            self._check_spelling(what, whole)

    def _dropped(self, what: str, piece: str) -> FeatherbackError:
        return FeatherbackError(
            f"{self._tokenizer.template_source} drops or changes {what} ({excerpt(piece)}), so the model "
            "would not see it as written. Use a model whose template supports it, or remove it."
        )

    def _check_spelling(self, what: str, said: Any) -> None:
        spelled = json.dumps(said, ensure_ascii=False)
        if token := next(self._tokenizer.control_tokens(spelled), None):
            raise FeatherbackError(
                f"{what[0].upper()}{what[1:]} contains the control token {self._tokenizer.name(token[0])}; remove it."
            )

    def _marked(
        self,
        messages: Messages,
        add_generation_prompt: bool = False,
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[list[Span]] | None]:
        """Render with marks: the text, and the places of each message's content (none, one or several).

        The places are None if the marks change what the template does.
        """
        rendered = self._render(*_with_marks(messages, add_generation_prompt), tools=tools, variables=variables)
        return _unmarked(rendered, len(messages))

    def _by_marks(
        self, text: str, spans: list[list[Span]], messages: Messages, tools: Tools | None
    ) -> list[Span] | None:
        """Return the supervised spans, from the end of the prompt for an answer to its end-of-turn token.

        None if the marks do not show them.
        """
        places = sorted(place for several in spans for place in several)
        supervised = []
        for i, message in _answers(messages):
            several, calls = spans[i], "tool_calls" in message
            if len(several) != 1 and not (calls and several):
                return None
            start, end = several[0][0], several[-1][1]
            at = bisect_left(places, several[0])
            before = min(places[at - 1][1], start) if at else 0
            found = ((header, text.rfind(header, before, start)) for header in self.headers)
            begin = next((at + len(header) for header, at in found if at >= 0), None)
            if begin is None and i:  # for example after a tool's answer, if the template writes no header
                asked = self.render(messages[:i], add_generation_prompt=True, tools=tools)
                if before <= len(asked) <= start and text.startswith(asked):
                    begin = len(asked)
            if calls:  # the text around a call is supervised, so its start must be known
                at = bisect_left(places, (end + 1, 0))
                behind = places[at][0] if at < len(places) else len(text)
                stop = text.find(self.end_of_turn, end, behind)
                if begin is None or stop < 0:
                    return None
                supervised.append((begin, stop + len(self.end_of_turn)))
            else:
                supervised.append((start if begin is None else begin, self._end_after(text, end, message)))
        return supervised

    def _end_after(self, text: str, at: int, message: Message) -> int:
        """Return the end of the end-of-turn token that follows `at`."""
        while text[at : at + 1].isspace():
            at += 1
        if not text.startswith(self.end_of_turn, at):
            start = message["content"][:40]
            raise FeatherbackError(
                f"The model's chat template writes {text[at : at + 20]!r} instead of {self.end_of_turn} after "
                f"the answer that begins {start!r}, so the model would not learn to end it. Remove the example, or "
                "use a model with another template."
            )
        return at + len(self.end_of_turn)

    def _by_prefixes(self, text: str, messages: Messages, tools: Tools | None) -> list[Span]:
        """Return the supervised spans: for each answer, the text that its turn adds to the rendering before it."""
        supervised = []
        for i, message in _answers(messages):
            before = self.render(messages[:i], add_generation_prompt=True, tools=tools) if i else ""
            after = self.render(messages[: i + 1], tools=tools)
            last = after.rstrip()
            if not (after.startswith(before) and text.startswith(last) and last.endswith(self.end_of_turn)):
                self._check_whole(after, None, messages[: i + 1])
                self._check_calls(after, i, message)
                self._check_tools(after, messages[: i + 1], tools)
                raise FeatherbackError(
                    f"The model's chat template rewrites earlier turns, so the tokens of the answer in message {i + 1} "
                    "cannot be identified. Split the conversation into examples that each end with the answer to train."
                )
            supervised.append((len(before), len(last)))
        return supervised

    def _contents(self, text: str, spans: list[list[Span]] | None, messages: Messages) -> tuple[Span, ...]:
        if spans is not None:
            return tuple(sorted(place for several in spans for place in several))
        for message in messages:  # the places are unknown, so no content may contain a control token
            if token := next(self._tokenizer.control_tokens(message["content"]), None):
                raise FeatherbackError(
                    f"A message contains the control token {self._tokenizer.name(token[0])} as text. The model's chat "
                    "template splits messages, so this text would be read as the token itself. Remove it."
                )
        return ()


def _with_marks(messages: Messages, add_generation_prompt: bool) -> tuple[tuple[Messages, bool], tuple[Messages, bool]]:
    """Return the conversation twice: unchanged, and with marks around each content."""
    marked = []
    for i, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        more: dict[str, Any] = {"tool_calls": [_marked_call(call, i) for call in calls]} if calls else {}
        if message["content"] or not calls:  # templates test whether a call has a content
            more["content"] = _marked_text(message["content"], i)
        marked.append({**message, **more})
    return (messages, add_generation_prompt), (marked, add_generation_prompt)


def _marked_text(text: str, i: int) -> str:
    core = text.strip()  # marks are inside surrounding white space, so that a template may trim it
    at = text.find(core) if core else 0
    before, after = text[:at], text[at + len(core) :]
    return f"{before}{_OPEN}{2 * i}{_CLOSE}{core}{_OPEN}{2 * i + 1}{_CLOSE}{after}"


def _marked_call(call: Mapping[str, Any], i: int) -> Mapping[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "name": _marked_text(function["name"], i)}}


def _leaves(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)


def _spellings(text: str) -> tuple[str, ...]:
    """Return a text unchanged and escaped as in JSON."""
    return text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]


def _unmarked(answers: Answers, count: int) -> tuple[str, list[list[Span]] | None]:
    """Return the rendering and the places of the contents of `count` messages (none, one or several each).

    The places are None if the marks change what the template does.
    """
    plain, rendered = answers
    true = _text(plain)
    if isinstance(rendered, RenderingError):
        return true, None
    spans: list[list[Span]] = [[] for _ in range(count)]
    opened: dict[int, int] = {}
    removed = 0
    for mark in _MARK.finditer(rendered):
        number, place = int(mark[1]), mark.start() - removed
        removed += mark.end() - mark.start()
        if number % 2 == 0:
            opened[number] = place
        elif number - 1 in opened and number < 2 * count:
            spans[number // 2].append((opened.pop(number - 1), place))
        else:
            return true, None
    if opened or _MARK.sub("", rendered) != true:
        return true, None
    return true, spans


def check_messages(messages: Any) -> None:
    """Raise FeatherbackError unless `messages` is a non-empty list of {"role": str, "content": str}.

    Messages may have "tool_calls" in the form of `shapes.tools`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise FeatherbackError('"messages" must be a non-empty list of {"role": ..., "content": ...}.')
    for i, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise FeatherbackError(f'Message {i} must be an object with "role" and "content".')
        for key in ("role", "content"):
            if key not in message:
                raise FeatherbackError(f'Message {i} has no "{key}".')
        for key in ("role", "content", "name", "tool_call_id", "reasoning_content"):
            if key in message and not isinstance(message[key], str):
                raise FeatherbackError(f'"{key}" of message {i} must be a string, not {type(message[key]).__name__}.')
        if not _ROLE.fullmatch(message["role"]):
            raise FeatherbackError(
                f"Message {i} has the role {excerpt(message['role'])}; expected user, assistant or system."
            )
        calls = message.get("tool_calls", ())
        if calls and message["role"] != "assistant":
            raise FeatherbackError(f'Message {i} has "tool_calls"; only the assistant calls tools.')
        if not all(isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) for call in calls):
            raise FeatherbackError(f'"tool_calls" of message {i} must be a list of {{"function": {{...}}}}.')
        if any(_OPEN in text or _CLOSE in text for text in (message["content"], *_leaves(calls))):
            raise FeatherbackError(f"Message {i} contains U+FDD0 or U+FDD1, which are not valid characters.")
        if message.get("weight", 1) not in (0, 1):
            raise FeatherbackError(f'"weight" of message {i} must be 0 (not trained) or 1.')


def _without_space(text: str) -> str:
    """Remove white space, which templates add and trim."""
    return text.translate(_NO_SPACE)


def _answers(messages: Messages) -> list[tuple[int, Message]]:
    """Return the assistant's messages with their indices."""
    return [(i, message) for i, message in enumerate(messages) if message["role"] == "assistant"]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _text(rendered: str | RenderingError) -> str:
    if isinstance(rendered, RenderingError):
        raise rendered
    return rendered
