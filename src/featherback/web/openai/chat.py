"""POST /v1/chat/completions"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from featherback.data.templates.chat import NoTemplateError
from featherback.infer.batching import Emitted
from featherback.web.guard import release_body
from featherback.web.openai.asked import MOST_LIKELY, Asked
from featherback.web.openai.calls import OPEN
from featherback.web.openai.fields import Fields
from featherback.web.openai.forms import JSON, Exchange, Form, finite
from featherback.web.openai.messages import continues_of, messages_of, schema_of_call, tools_in, variables_of
from featherback.web.openai.replies import Piece
from featherback.web.openai.service import Service
from featherback.web.refusal import RefusedError

_MOST_CALLS = 128
"""The most tool calls in an answer, as at OpenAI."""


async def chat(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    return await (await conversation(service, request, await Fields.of(request), ChatForm)).respond(request)


async def conversation(service: Service, request: Request, fields: Fields, form: type[Form]) -> Exchange:
    """Read the fields of a chat request, whose answers get the `form`. Raises RefusedError."""
    asked = Asked.of(fields, service.defaults, service.tokenizer.n_vocab)
    messages = await service.work(messages_of, fields, service.batcher.capacity)
    tools, forced = tools_in(fields)
    logprobs = fields.whole("top_logprobs", 0, 0, MOST_LIKELY)
    if not fields.flag("logprobs"):
        if logprobs:
            fields.refuse("top_logprobs", 'needs "logprobs": true.')
        logprobs = None
    older, wanted = (fields.length(name, None) for name in ("max_tokens", "max_completion_tokens"))
    calls = _MOST_CALLS if fields.flag("parallel_tool_calls", True) else 1
    variables, continues = variables_of(fields), continues_of(fields, messages)
    fields.end()
    if service.template is None:
        raise RefusedError(str(NoTemplateError()), code="no_chat_template")
    service.check_length(sum(len(message["content"]) for message in messages), "messages")
    rendering = await service.work(service.template.prompt, messages, tools, variables, continues)
    service.check_length(len(rendering.text), "messages")  # with tool calls, tools and names
    ids, _ = await service.encode(len(rendering.text), service.template.encode, rendering)
    has_calls = bool(tools) and OPEN in (service.tokenizer.chat_template or "")
    if forced:
        if not has_calls or asked.schema is not None or continues:
            why = "a model that writes calls as <tool_call>, and no response_format and no continue_final_message"
            raise RefusedError(f'"tool_choice" needs {why}. Use "auto".', param="tool_choice")
        asked = replace(asked, schema=schema_of_call(forced), schema_field="tools")
        ids = [*ids, *service.tokenizer.encode(f"{OPEN}\n", special=True)]
    prompt = service.prompt(ids, older if wanted is None else wanted, "messages")
    release_body(request.scope)
    answers = form(asked.model or service.shelf.base, service.tokenizer, logprobs)
    return Exchange(service, asked, [prompt], answers, logprobs, calls * has_calls, bool(forced))


class ChatForm(Form):
    """Answers as messages of the assistant."""

    prefix, kind, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, whole: Piece) -> JSON:
        message: JSON = {"role": "assistant", "content": whole.text, "refusal": None}
        if whole.calls:
            message |= {"tool_calls": whole.calls, "content": whole.text or None}
        return self._choice(index, "message", message, whole)

    def change(self, index: int, piece: Piece) -> JSON:
        delta: JSON = {"content": piece.text} if piece.text else {}
        if piece.calls:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(piece.calls)]
        return self._choice(index, "delta", delta, piece)

    def opening(self, count: int) -> Sequence[JSON]:
        start = {"role": "assistant", "content": ""}
        return [{"index": index, "delta": start, "logprobs": None, "finish_reason": None} for index in range(count)]

    def _choice(self, index: int, name: str, content: JSON, piece: Piece) -> JSON:
        return {"index": index, name: content, "logprobs": self._likely(piece.tokens), "finish_reason": piece.finish}

    def _likely(self, tokens: Sequence[Emitted]) -> JSON | None:
        if self._logprobs is None:
            return None
        content = (
            {
                **self._token(each.token, each.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in each.top],
            }
            for each in tokens
        )
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float | None) -> JSON:
        return {"token": self.text_of(token), "logprob": finite(logprob), "bytes": [*self.bytes_of(token)]}
