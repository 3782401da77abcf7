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
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.data.report import Synonym
from featherback.data.templates.adapting import REASONING, Adaptation
from featherback.data.templates.marks import (
    CLOSE,
    OPEN,
    Message,
    Messages,
    leaves,
    spellings,
    text_of,
    unmarked,
    with_marks,
)
from featherback.data.templates.reasoning import end_of_opened, lead, leaves_no_place, taken_apart
from featherback.data.templates.renderer import Answers, Begins, Renderer, RenderingError, Tools
from featherback.data.tokenizers.tokenizer import Ids, Span, Tokenizer
from featherback.errors import FeatherbackError, excerpt

_ROLE = re.compile(r"[\w-]+")
_MOST_REMEMBERED = 1000  # combinations of tools and roles
_SHOWN = 20  # characters of a rendering in an error
_LONGEST_END = 200  # characters of an end-of-turn token, at most
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
    """Spans of the trained answers, each with its end-of-turn token. Sorted and disjoint."""
    begins: tuple[int, ...] = ()
    """Where answers begin, in order. No token crosses these places: in generation, the prompt is encoded first."""


@dataclass(frozen=True)
class Pending:
    """A conversation that is being rendered, without and with marks."""

    given: Messages
    """As in the data."""
    messages: Messages
    """As the template reads them."""
    tools: Tools | None
    renamed: Counter[Synonym]
    number: int


TRAINING_MOMENT = datetime(2024, 7, 26)
"""The date and time that templates write in training, so that the same data give the same tokens on every day."""


class NoTemplateError(FeatherbackError):
    """A chat model is needed, but the model has no chat template."""

    def __init__(self) -> None:
        super().__init__(
            "The model has no chat template, so it cannot be used with conversations. Use an instruct model, or train "
            "on plain text."
        )


class RewrittenError(FeatherbackError):
    """The template rewrites earlier turns, so that only the last answer of a conversation can be trained."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"The model's chat template rewrites earlier turns, so the tokens of the answer in message {number} cannot "
            "be identified. Split the conversation into examples that each end with the answer to train."
        )


class ChatTemplate:
    """The chat template of a tokenizer. Several templates may share the process of one `renderer`.

    `moment`: the date and time that templates write; None for the time of each rendering.
    """

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer | None = None, moment: datetime | None = None) -> None:
        if tokenizer.chat_template is None:
            raise NoTemplateError
        self._tokenizer = tokenizer
        self._template = tokenizer.chat_template
        self._renderer = renderer or Renderer()
        self._end: str | None = None
        self._ending = ""  # the text from an answer to the end of its end-of-turn token
        self._headers: tuple[str, ...] | None = None
        self.renamed: Counter[Synonym] = Counter()
        """The number of messages so far, by role, whose role was replaced because the template does not know it."""
        self._adaptation = Adaptation(self._template)
        self._moment = moment
        self._with_tools = set[int]()  # hashes of tools that were found in renderings; their texts may be long

    def start(self) -> None:
        """Start the process that renders."""
        self._renderer.start()

    def render(self, messages: Messages, add_generation_prompt: bool = False, tools: Tools | None = None) -> str:
        """Render a conversation as text. Raises FeatherbackError if the template rejects it."""
        (text,), _ = self._render((self._adaptation.messages(messages), add_generation_prompt), tools=tools)
        return text_of(text)

    def _render(
        self,
        *conversations: tuple[Messages, bool],
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
        begins: Sequence[int] = (),
    ) -> tuple[Answers, Begins]:
        return self._receive(self._request(*conversations, tools=tools, variables=variables, begins=begins))

    def _request(
        self,
        *conversations: tuple[Messages, bool],
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
        begins: Sequence[int] = (),
    ) -> int:
        tokenizer = self._tokenizer
        names, source = tokenizer.special_names, tokenizer.template_source
        return self._renderer.ask(self._template, names, source, conversations, tools, variables, begins, self._moment)

    def _receive(self, number: int) -> tuple[Answers, Begins]:
        return self._renderer.take_with_begins(number, self._tokenizer.template_source)

    def training(self, messages: Messages, tools: Tools | None = None) -> Rendering:
        """Render a conversation for training, with its supervised spans (none if there is no assistant message).

        Before each trained answer stands the text of the prompt with which the model would be asked for it. Raises
        RewrittenError if this is possible only for the last answer.
        """
        return self.finish(self.begin(messages, tools))

    def begin(self, messages: Messages, tools: Tools | None = None) -> Pending:
        """Start the first half of `training`: the process renders the conversation."""
        check_messages(messages)
        renamed = Counter(message["role"] for message in messages if message["role"] in self._adaptation.synonyms)
        adapted = self._adaptation.messages(messages)
        number = self._request(*with_marks(adapted, False), tools=tools, begins=_prompted(adapted))
        return Pending(messages, adapted, tools, renamed, number)

    def finish(self, pending: Pending) -> Rendering:
        """Do the second half of `training`: wait for the rendering and find the supervised spans."""
        given, messages, tools = pending.given, pending.messages, pending.tools
        self.renamed.update(pending.renamed)
        rendered, begins = self._receive(pending.number)
        text, spans = unmarked(rendered, len(messages))
        found = dict(zip(_prompted(messages), begins, strict=True))
        trained = [i for i, message in _answers(given) if message.get("weight", 1)]
        if any(found.get(i, 0) is None for i in trained):
            return self._behind_prompt(pending, trained)
        supervised = None if spans is None else self._by_marks(text, spans, messages, trained, found)
        self._check_whole(text, spans, messages, but="assistant")
        if supervised is None:
            supervised = self._by_prefixes(text, messages, tools, trained, found)
        for i, (start, end) in zip(trained, supervised, strict=True):
            self._check_whole(text[:end], spans, given, of=i)
            self._check_calls(text[start:end], i, given[i])
        self._check_tools(messages, tools)
        places = sorted({*(at for at in begins if at is not None), *(start for start, _ in supervised)})
        return Rendering(text, self._contents(text, spans, messages), tuple(supervised), tuple(places))

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
            at, whole = len(begun.text), begun.text + messages[-1]["content"]
            return Rendering(whole, (*begun.contents, (at, len(whole))), (), (*begun.begins, at))
        check_messages(messages)
        self._check_spelling("the variables of the chat template", variables or {})
        return self._prompt(self._adaptation.messages(messages), tools, variables)[0]

    def _prompt(
        self, messages: Messages, tools: Tools | None, variables: Mapping[str, Any] | None = None
    ) -> tuple[Rendering, list[list[Span]] | None]:
        """Return the prompt of messages in the template's form, and the places of each content as `_marked` does."""
        rendered, begins = self._render(
            *with_marks(messages, True), tools=tools, variables=variables, begins=_prompted(messages)
        )
        text, spans = unmarked(rendered, len(messages))
        # Earlier answers may be shortened, because some templates drop their reasoning.
        self._check_whole(text, spans, messages, but="assistant")
        self._check_tools(messages, tools, variables)
        for i, message in _answers(messages):
            self._check_spelling(f"a tool call of message {i + 1}", message.get("tool_calls", ()))
        places = tuple(sorted({at for at in begins if at is not None}))
        return Rendering(text, self._contents(text, spans, messages), (), places), spans

    def _behind_prompt(self, pending: Pending, trained: Sequence[int]) -> Rendering:
        """Put the last answer of a conversation behind its prompt, which the conversation does not begin with."""
        given, messages, tools = pending.given, pending.messages, pending.tools
        last = len(messages) - 1
        if list(trained) != [last]:
            raise RewrittenError(trained[0] + 1)
        prompt, asked = self._prompt(messages[:-1], tools)
        answer = given[-1]
        taken, content = taken_apart(answer["content"])
        reasoning = answer.get(REASONING) or taken
        ending = prompt.text[asked[-1][-1][1] if asked and asked[-1] else 0 :]
        if reasoning and leaves_no_place(ending):
            raise FeatherbackError(
                f"The prompt that the model's chat template writes before message {last + 1} leaves no place for its "
                "reasoning. Remove the reasoning, or use a model whose template asks for it."
            )
        reasoning = reasoning if end_of_opened(ending) else ""  # otherwise the template writes it itself
        bare = {key: value for key, value in answer.items() if key != REASONING} | {"content": content}
        whole = [*messages[:-1], *self._adaptation.messages([bare])] if reasoning else messages
        text, spans = self._marked(whole, tools=tools)
        if spans is None or not spans[-1] or (len(spans[-1]) > 1 and "tool_calls" not in answer):
            self._check_whole(text, None, whole)
            self._check_calls(text, last, bare)
            raise self._lost(last, answer) if not answer["content"] else RewrittenError(last + 1)
        start, end = spans[-1][0][0], spans[-1][-1][1]
        said = whole[-1]["content"]
        space = said[: len(said) - len(said.lstrip())]
        if space and self.render([*whole[:-1], {**whole[-1], "content": said.lstrip()}], tools=tools) != text:
            start -= len(space)  # the template does not trim it
        before = (asked[-1][-1][1], spans[-2][-1][1]) if asked and asked[-1] and spans[-2] else (0, 0)
        begun = lead(prompt.text[before[0] :], text[before[1] : start], reasoning)
        at, stop = len(prompt.text), self._end_after(text, end, answer, "tool_calls" in answer)
        moved = at + len(begun) - start
        contents = [(one + moved, other + moved) for one, other in spans[-1]]
        said = prompt.text + begun + text[start:stop]
        self._check_calls(said[at:], last, answer)
        if reasoning:
            contents.insert(0, (at, at + len(reasoning)))
        return Rendering(said, (*prompt.contents, *contents), ((at, len(said)),), (*prompt.begins, at))

    def encode(self, rendering: Rendering) -> tuple[list[int], list[bool]]:
        """Encode a rendering: token ids, and whether each token contains a character of a supervised span."""
        ids, mask = self.encode_arrays(rendering)
        return ids.tolist(), mask.tolist()

    def encode_arrays(self, rendering: Rendering) -> tuple[Ids, NDArray[np.bool_]]:
        """Encode a rendering as arrays, without a Python object per token."""
        tokenizer = self._tokenizer
        ids, offsets = tokenizer.encode_with_offsets(
            rendering.text, special=True, protected=rendering.contents, cuts=rendering.begins
        )
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
            run, at = [], 0  # control tokens that follow the answer without other text between them
            for token, start, stop in self._tokenizer.control_tokens(end):
                if end[at:start].strip():
                    break
                run.append((token, start, stop))
                at = stop
            if not run:
                raise FeatherbackError(
                    "The model's chat template writes no end-of-turn token after an answer; a model tuned "
                    "with it would never learn to stop. Use a model with another template, or prepare the "
                    "data as plain text."
                )
            known = (each for each in run if each[0] in self._tokenizer.end_ids)
            token, start, stop = next(known, run[0])
            self._end, self._ending = end[start:stop], end[:stop]
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

    def _check_whole(
        self,
        text: str,
        spans: list[list[Span]] | None,
        messages: Messages,
        but: str | None = None,
        of: int | None = None,
    ) -> None:
        """Raise FeatherbackError if a message is missing from the rendering.

        Messages of the role `but` are ignored, and all others than number `of`.
        """
        squeezed = "" if spans is not None else _without_space(text)
        for i, message in enumerate(messages):
            if message["role"] == but or (spans is not None and spans[i]) or (of is not None and i != of):
                continue
            if _without_space(message["content"]) not in squeezed:
                raise self._lost(i, message)

    def _lost(self, i: int, message: Message) -> FeatherbackError:
        return FeatherbackError(
            f"{self._tokenizer.template_source} drops or changes message {i + 1} (role {message['role']!r}, "
            f"{message['content'][:40]!r}), so the model would not see it as written. "
            f"{_REMEDIES.get(message['role'], _ANOTHER_ROLE)}"
        )

    def _check_tools(self, messages: Messages, tools: Tools | None, variables: Mapping[str, Any] | None = None) -> None:
        """Raise FeatherbackError if a tool is missing from the rendering or contains a control token.

        A tool is there if its name occurs more often than in the rendering without it. That depends on the roles of the
        messages, but not on their words.
        """
        if not tools:
            return
        roles = [(message["role"], bool(message.get("tool_calls"))) for message in messages]
        key = hash(json.dumps([roles, tools]))
        if key in self._with_tools:
            return
        asked = (messages, True)
        text = _without_space(text_of(self._render(asked, tools=tools, variables=variables)[0][0]))
        for i, tool in enumerate(tools):  # one after the other, because each rendering takes memory for all other tools
            others = [*tools[:i], *tools[i + 1 :]] or None
            ((other,), _) = self._render(asked, tools=others, variables=variables)
            what, name = f"tool {i + 1}", tool["function"]["name"]
            forms = set(map(_without_space, spellings(name)))
            bare = "" if isinstance(other, RenderingError) else _without_space(other)
            if not any(text.count(form) > bare.count(form) for form in forms):
                raise self._dropped(what, name)
            self._check_spelling(what, tool)
        if len(self._with_tools) >= _MOST_REMEMBERED:
            self._with_tools.clear()
        self._with_tools.add(key)

    def _check_calls(self, turn: str, i: int, message: Message) -> None:
        """Raise FeatherbackError if a call or the reasoning of message `i` is missing or contains a control token."""
        said = [(f"a tool call of message {i + 1}", call, call["function"]) for call in message.get("tool_calls", ())]
        if reasoning := message.get(REASONING):
            said.append((f"the reasoning of message {i + 1}", reasoning, reasoning))
        squeezed = _without_space(turn) if said else ""
        for what, whole, pieces in said:
            for piece in leaves(pieces):
                if not any(_without_space(form) in squeezed for form in spellings(piece)):
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
        rendered, _ = self._render(*with_marks(messages, add_generation_prompt), tools=tools, variables=variables)
        return unmarked(rendered, len(messages))

    def _by_marks(
        self,
        text: str,
        spans: list[list[Span]],
        messages: Messages,
        trained: Sequence[int],
        begins: Mapping[int, int | None],
    ) -> list[Span] | None:
        """Return the supervised spans, from the end of the prompt for an answer to its end-of-turn token.

        `trained`: the answers. `begins`: the lengths of their prompts. None if the marks do not show them.
        """
        places = sorted(place for several in spans for place in several)
        supervised = []
        for i in trained:
            message, several, calls = messages[i], spans[i], "tool_calls" in messages[i]
            if len(several) != 1 and not (calls and several):
                return None
            start, end = several[0][0], several[-1][1]
            at = bisect_left(places, several[0])
            before = min(places[at - 1][1], start) if at else 0
            begin = begins.get(i)
            if begin is None:  # the conversation begins with it, so nothing asks for it
                found = ((header, text.rfind(header, before, start)) for header in self.headers)
                begin = next((at + len(header) for header, at in found if at >= 0), None if calls else start)
            elif not before <= begin <= start:
                return None
            if calls:  # the text around a call is supervised, so its start must be known
                at = bisect_left(places, (end + 1, 0))
                behind = places[at][0] if at < len(places) else len(text)
                stop = text.find(self.end_of_turn, end, behind)
                if begin is None or stop < 0:
                    return None
                supervised.append((begin, stop + len(self.end_of_turn)))
            else:
                assert begin is not None
                if i + 1 < len(messages) and not self._is_ended(text[end:].lstrip(), 0):
                    raise RewrittenError(i + 1)  # perhaps another token ends answers that are not the last
                supervised.append((begin, self._end_after(text, end, message)))
        return supervised

    def _end_after(self, text: str, at: int, message: Message, calls: bool = False) -> int:
        """Return the end of the end-of-turn token that follows `at`. `calls`: other text may stand before it."""
        if calls:
            found = (end for token, _, end in self._tokenizer.control_tokens(text[at:]) if self._is_end(token))
            if (end := next(found, None)) is not None:
                return at + end
        while text[at : at + 1].isspace():
            at += 1
        if not self._is_ended(text, at):
            raise self._unended(text[at : at + _SHOWN], message)
        return at + len(self._ending)

    def _is_ended(self, text: str, at: int) -> bool:
        """Whether a place is followed by the text that ends an answer, up to its end-of-turn token."""
        return bool(self.end_of_turn) and text.startswith(self._ending, at)

    def _unended(self, found: str, message: Message) -> FeatherbackError:
        return FeatherbackError(
            f"The model's chat template writes {found!r} instead of {self.end_of_turn} after the answer that begins "
            f"{message['content'][:40]!r}, so the model would not learn to end it. Remove the example, or use a model "
            "with another template."
        )

    def _is_end(self, token: int) -> bool:
        """Whether generation stops at a token, as some do only after a tool call."""
        return token in self._tokenizer.end_ids or self._tokenizer.name(token) == self.end_of_turn

    def _ends(self, text: str) -> bool:
        """Whether a text ends with a token at which generation stops."""
        tokens = [*self._tokenizer.control_tokens(text[-_LONGEST_END:])]
        return bool(tokens) and tokens[-1][2] == min(len(text), _LONGEST_END) and self._is_end(tokens[-1][0])

    def _by_prefixes(
        self,
        text: str,
        messages: Messages,
        tools: Tools | None,
        trained: Sequence[int],
        begins: Mapping[int, int | None],
    ) -> list[Span]:
        """Return the supervised spans: for each answer, the text that its turn adds to the prompt before it."""
        supervised = []
        for i in trained:
            after = self.render(messages[: i + 1], tools=tools)
            last = after.rstrip()
            begin = begins.get(i) or 0
            if not (begin <= len(last) and text.startswith(last) and self._ends(last)):
                self._check_whole(after, None, messages[: i + 1])
                self._check_calls(after, i, messages[i])
                if i + 1 == len(messages) and not self._ends(last):
                    raise self._unended(last[-_SHOWN:], messages[i])
                is_last_and_empty = i + 1 == len(messages) and not messages[i]["content"]
                raise self._lost(i, messages[i]) if is_last_and_empty else RewrittenError(i + 1)
            supervised.append((begin, len(last)))
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
        if any(OPEN in text or CLOSE in text for text in (message["content"], *leaves(calls))):
            raise FeatherbackError(f"Message {i} contains U+FDD0 or U+FDD1, which are not valid characters.")
        if message.get("weight", 1) not in (0, 1):
            raise FeatherbackError(f'"weight" of message {i} must be 0 (not trained) or 1.')


def _without_space(text: str) -> str:
    """Remove white space, which templates add and trim."""
    return text.translate(_NO_SPACE)


def _answers(messages: Messages) -> list[tuple[int, Message]]:
    """Return the assistant's messages with their indices."""
    return [(i, message) for i, message in enumerate(messages) if message["role"] == "assistant"]


def _prompted(messages: Messages) -> list[int]:
    """Return the indices of the answers that something comes before."""
    return [i for i, _ in _answers(messages) if i]


def one_answer_each(messages: Messages) -> Iterator[list[dict[str, Any]]]:
    """Yield, for each trained answer of a conversation, the conversation up to it, in which only it is trained."""
    for i, message in _answers(messages):
        if message.get("weight", 1):
            before = ({**m, "weight": 0} if m["role"] == "assistant" else dict(m) for m in messages[:i])
            yield [*before, dict(message)]


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
