"""Split a chat template into the pieces of text between the messages, by rendering conversations with it.

Ollama's templates use another language than the models' own. But most templates only put the same text before and after
every message of a role. Then the pieces describe the template completely, and can be written in any language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.exports.tool_parts import ToolParts, tool_parts

Messages = Sequence[Mapping[str, str]]

S, A, B, C = "Qxsystem", "Qxfirst", "Qxanswer", "Qxsecond"
"""Contents of messages that do not occur in any template."""


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


SYSTEM, FIRST = _message("system", S), _message("user", A)
ANSWER, SECOND = _message("assistant", B), _message("user", C)


@dataclass(frozen=True)
class ChatParts:
    """The text around messages. `system` None: the template has no place for a system message."""

    start: str  # at the beginning of a conversation without a system message
    user: tuple[str, str]  # before and after a user's message
    assistant: tuple[str, str]  # before and after an answer
    answer: str  # at the end, to ask for an answer
    system: tuple[str, str] | None  # before the system message, and between it and the first user's message
    tools: ToolParts | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All pieces."""
        return (self.start, *self.user, *self.assistant, self.answer, *(self.system or ()))

    def render(self, messages: Messages) -> str:
        """Render a conversation, up to the place of the next answer."""
        text, rest = self.start, messages
        if messages[0]["role"] == "system":
            assert self.system is not None
            first, *rest = messages[1:]
            text = self.system[0] + messages[0]["content"] + self.system[1] + first["content"] + self.user[1]
        for message in rest:
            before, after = self.user if message["role"] == "user" else self.assistant
            text += before + message["content"] + after
        return text + self.answer

    def go_template(self) -> str:
        """Write the pieces as an Ollama template, in Go's template language.

        No action trims white space, because pieces may end in line breaks.
        """
        user = f"{_go(self.user[0])}{{{{ .Content }}}}{_go(self.user[1])}"
        start, tools = _go(self.start), self.tools
        listed = opened = called = results = ""
        if self.system is not None and tools is not None:
            each = "{{ json . }}" if tools.is_whole else "{{ json .Function }}"
            each = f"{{{{ range $j, $_ := $.Tools }}}}{_if('$j', _go(tools.listing[1]))}{each}{{{{ end }}}}"
            listed = _if("$.Tools", f"{_go(tools.listing[0])}{each}{_go(tools.listing[2])}")
            alone = f"{_go(tools.alone)}{each}{_go(tools.listing[2] + self.system[1].removesuffix(self.user[0]))}"
            start = _if(".Tools", alone, start)
            opened, called, results = self._calls(tools)
        if self.system is not None:
            before, glue = map(_go, self.system)
            # The system message is the first of .Messages, so the first user's message is the second.
            with_system = f"{before}{{{{ $.System }}}}{listed}{glue}{{{{ .Content }}}}{_go(self.user[1])}"
            user = f"{{{{ if and $.System (eq $i 1) }}}}{with_system}{{{{ else }}}}{user}{{{{ end }}}}"
            start = f"{{{{ if not .System }}}}{start}{{{{ end }}}}" if start else ""
        before, after = map(_go, self.assistant)
        return (
            f"{start}{opened}{{{{ range $i, $_ := .Messages }}}}"
            "{{ $last := eq (len (slice $.Messages $i)) 1 }}"
            f'{results}{{{{ if eq .Role "user" }}}}{user}'
            f'{{{{ else if eq .Role "assistant" }}}}{before}{{{{ .Content }}}}{called}'
            f"{{{{ if not $last }}}}{after}{{{{ end }}}}{{{{ end }}}}"
            f'{{{{ if and $last (ne .Role "assistant") }}}}{_go(self.answer)}{{{{ end }}}}{{{{ end }}}}'
        )

    @staticmethod
    def _calls(tools: ToolParts) -> tuple[str, str, str]:
        """What stands before the messages, behind the text of an answer, and at the beginning of each message.

        Ollama reads calls by the first text behind `if .ToolCalls`, so the text before calls is decided elsewhere.
        """
        first, mid, between, close = map(_go, tools.call)
        begins, among, ends = map(_go, tools.result)
        calls = f"{_if('eq $j 0', first, between)}{{{{ .Function.Name }}}}{mid}{{{{ json .Function.Arguments }}}}"
        called = f"{{{{ $calls := .ToolCalls }}}}{_if('and .Content $calls', _go(tools.after_text))}" + _if(
            ".ToolCalls", f"{{{{ range $j, $_ := .ToolCalls }}}}{calls}{{{{ end }}}}{close}"
        )
        results = (
            f'{{{{ if eq .Role "tool" }}}}{_if("$results", among, begins)}{{{{ .Content }}}}{{{{ $results = true }}}}'
            f"{_if('$last', ends)}{{{{ else if $results }}}}{ends}{{{{ $results = false }}}}{{{{ end }}}}"
        )
        return "{{ $results := false }}", called, results


def chat_parts(tokenizer: Tokenizer) -> ChatParts | None:
    """Split a tokenizer's chat template into pieces, and check them against the template.

    Returns None if there is no template, or if it does more than put pieces together. A beginning-of-text token is
    removed if the tokenizer adds one itself.
    """
    if tokenizer.chat_template is None:
        return None
    template = ChatTemplate(tokenizer)
    try:
        parts = _split(template)
    except (FeatherbackError, ValueError):
        return None
    for messages in (
        [FIRST],
        [FIRST, ANSWER, SECOND],
        *([[SYSTEM, FIRST], [SYSTEM, FIRST, ANSWER, SECOND]] if parts.system else []),
    ):
        if parts.render(messages) != template.render(messages, add_generation_prompt=True):
            return None
    bos = tokenizer.special_names.get("bos_token", "") if tokenizer.add_bos else ""
    system = None if parts.system is None else (parts.system[0].removeprefix(bos), parts.system[1])
    tools = None
    if parts.system is not None and parts.system[1].endswith(parts.user[0]):
        tools = tool_parts(template, parts.system, parts.user, parts.assistant, parts.answer)
    if tools is not None:
        tools = replace(tools, alone=tools.alone.removeprefix(bos))
    parts = replace(parts, start=parts.start.removeprefix(bos), system=system, tools=tools)
    # If every turn begins with the token, the tokenizer would add a second one before the first turn.
    return None if bos and any(bos in text for text in parts.texts) else parts


def writes_tools(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer's chat template writes the tools that an assistant may call."""
    name = "Qxtool"
    tool = {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
    try:
        return name in ChatTemplate(tokenizer).render([FIRST], tools=[tool])
    except FeatherbackError:
        return False


def _split(template: ChatTemplate) -> ChatParts:
    """Find the pieces. Raises ValueError or FeatherbackError if the template cannot be split."""
    head, after_user = template.render([FIRST]).split(A)
    _, asked = template.render([FIRST], add_generation_prompt=True).split(A)
    _, after_answer = template.render([FIRST, ANSWER]).split(B)
    # The text before an answer that is not the last: Qwen 3 writes more before the last one.
    _, rest = template.render([FIRST, ANSWER, SECOND]).split(A)
    turn, rest = rest.split(B)
    between, _ = rest.split(C)
    if not (asked.startswith(after_user) and turn.startswith(after_user) and between.startswith(after_answer)):
        raise ValueError("a message changes the text around another one")
    before_user = between[len(after_answer) :]
    if not head.endswith(before_user):
        raise ValueError("the first message begins with other text")
    return ChatParts(
        head.removesuffix(before_user),
        (before_user, after_user),
        (turn[len(after_user) :], after_answer),
        asked[len(after_user) :],
        _system(template),
    )


def _system(template: ChatTemplate) -> tuple[str, str] | None:
    try:
        before, rest = template.render([SYSTEM, FIRST]).split(S)
        glue, _ = rest.split(A)
    except (FeatherbackError, ValueError):
        return None
    return before, glue


def _if(condition: str, then: str, otherwise: str = "") -> str:
    """Write a choice in Go's template language."""
    return f"{{{{ if {condition} }}}}{then}{f'{{{{ else }}}}{otherwise}' if otherwise else ''}{{{{ end }}}}"


_SPECIAL = re.compile(r"\{(?=\{|$)|[^ !#-z|}~\n\t]")
"""Characters that must be escaped: a brace that could begin an action, a quote (three of them would end the text in
the Modelfile), and invisible characters, which Ollama drops."""


def _go(text: str) -> str:
    """Escape text for a Go template in a Modelfile."""
    return _SPECIAL.sub(lambda found: _constant(found[0]), text)


def _constant(char: str) -> str:
    if char == "{":
        return '{{ "{" }}'
    if char.isprintable() and char != '"':
        return char
    return f'{{{{ "\\U{ord(char):08x}" }}}}'
