"""POST /v1/responses: the newer form of a chat request, without anything that is kept between requests."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from featherback.errors import excerpt
from featherback.web.openai.chat import conversation
from featherback.web.openai.fields import HARMLESS, Fields
from featherback.web.openai.forms import JSON, Form
from featherback.web.openai.replies import Piece
from featherback.web.openai.service import Service

_SAME = (
    *("model", "user", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "tool_choice", "stop"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "chat_template_kwargs", "parallel_tool_calls"),
)
"""Fields that mean the same in a chat request."""
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "include": ([],),
    "top_logprobs": (0,),
    "stream_options": ({"include_obfuscation": False}, {"include_obfuscation": True}, {}),
}
"""Fields that chat requests do not have, with the values that change nothing."""
_KEPT = ("previous_response_id", "conversation", "prompt")
"""Fields that name something that a server has kept."""


async def responses(service: Service, request: Request) -> Response:
    """Answer a conversation."""
    fields = Fields(_as_chat(await Fields.of(request)))
    return await (await conversation(service, request, fields, _Response)).respond(request)


def _as_chat(fields: Fields) -> JSON:
    """Return the same request in the form of /v1/chat/completions. Raises RefusedError."""
    for name in _KEPT:
        if fields.take(name) is not None:
            fields.refuse(name, "is not supported: this server keeps no answers. Send the whole conversation as input.")
    for name, values in _WITHOUT_EFFECT.items():
        if (value := fields.take(name)) is not None and value not in values:
            fields.refuse(name, "is not supported; remove it.", "unsupported_parameter")
    found = {name: fields.take(name) for name in _SAME}
    found["max_tokens"] = fields.take("max_output_tokens")
    found["stream_options"] = {"include_usage": True} if found["stream"] else None
    text, reasoning = fields.object("text"), fields.object("reasoning")
    form = text.object("format").all  # without the object that it has in a chat request
    found["response_format"] = form
    if form.get("type") == "json_schema":
        described = {name: value for name, value in form.items() if name != "type"}
        found["response_format"] = {"type": "json_schema", "json_schema": described}
    found["reasoning_effort"] = reasoning.take("effort")
    tools = fields.take("tools", [])
    if not isinstance(tools, list):
        fields.refuse("tools", "must be a list.")
    found["tools"] = [_tool(fields, tool) for tool in tools] or None
    said = fields.take("input")
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if not isinstance(items, list):
        fields.refuse("input", "must be a text, or a list of messages.")
    found["messages"] = [message for item in items for message in _messages(fields, item)]
    if instructions := fields.text("instructions"):
        found["messages"].insert(0, {"role": "system", "content": instructions})
    text.end(("verbosity",))
    reasoning.end(("summary", "generate_summary"))
    fields.end(HARMLESS)
    return found


def _tool(fields: Fields, tool: Any) -> JSON:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        fields.refuse("tools", f"has {excerpt(tool)}; only tools of the type function are supported.")
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _messages(fields: Fields, item: Any) -> Sequence[JSON]:
    """Return the messages of an item of the input."""
    if not isinstance(item, dict):
        fields.refuse("input", f"has the item {excerpt(item)}; it must be an object.")
    kind = item.get("type", "message")
    if kind == "message":
        return [{"role": item.get("role"), "content": _content(item.get("content"))}]
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}]
    if kind == "reasoning":  # of an earlier answer, which the model does not read again
        return []
    fields.refuse("input", f"has an item of the type {excerpt(kind)}, which is not supported.")


def _content(content: Any) -> Any:
    """Return a content whose texts have the form of a chat request."""
    if not isinstance(content, list):
        return content
    texts = ("input_text", "output_text")
    return [
        {"type": "text", "text": part.get("text")} if isinstance(part, dict) and part.get("type") in texts else part
        for part in content
    ]


class _Response(Form):
    prefix, kind, part = "resp", "response", ""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._message = f"msg_{secrets.token_hex(12)}"
        self._whole = Piece("")  # what a stream has sent
        self._events = 0

    def choice(self, index: int, whole: Piece) -> JSON:
        self._whole = whole
        return {}

    def change(self, index: int, piece: Piece) -> JSON:
        return {"item_id": self._message, "output_index": 0, "content_index": 0, "logprobs": [], "delta": piece.text}

    def whole(self, choices: Iterator[JSON], usage: JSON) -> JSON:
        _ = [*choices]  # of which `choice` keeps the answer
        cut = self._whole.finish == "length"
        return self._response(
            "incomplete" if cut else "completed",
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            output=self._items(),
            usage={
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        )

    def begins(self, count: int) -> Sequence[JSON]:
        response = self._response("in_progress")
        return [
            self._event("created", response=response),
            self._event("in_progress", response=response),
            self._event("output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._event("content_part.added", **self._place, part=_text("")),
        ]

    def goes_on(self, index: int, piece: Piece) -> Sequence[JSON]:
        self._whole = Piece(self._whole.text + piece.text, finish=piece.finish, calls=piece.calls)
        return [self._event("output_text.delta", **self.change(index, piece))] if piece.text else []

    def ends(self, usage: JSON) -> Sequence[JSON]:
        text, [message, *calls] = self._whole.text, self._items(always=True)
        found = [
            self._event("output_text.done", **self._place, text=text, logprobs=[]),
            self._event("content_part.done", **self._place, part=_text(text)),
            self._event("output_item.done", output_index=0, item=message),
        ]
        for index, call in enumerate(calls, 1):
            place = {"item_id": call["id"], "output_index": index}
            begun = {**call, "arguments": "", "status": "in_progress"}
            found += [
                self._event("output_item.added", output_index=index, item=begun),
                self._event("function_call_arguments.delta", **place, delta=call["arguments"]),
                self._event("function_call_arguments.done", **place, name=call["name"], arguments=call["arguments"]),
                self._event("output_item.done", output_index=index, item=call),
            ]
        response = {**self.whole(iter(()), usage), "output": [message, *calls]}
        return [*found, self._event(response["status"], response=response)]

    @property
    def _place(self) -> JSON:
        return {"item_id": self._message, "output_index": 0, "content_index": 0}

    def _items(self, always: bool = False) -> list[JSON]:
        """Return the message, if it has a text or `always`, and the tool calls."""
        whole = self._whole
        status = "incomplete" if whole.finish == "length" else "completed"
        message = [self._item(status, [_text(whole.text)])] if whole.text or always or not whole.calls else []
        calls = [
            {
                "type": "function_call",
                "id": f"fc_{call['id']}",
                "call_id": call["id"],
                **call["function"],
                "status": status,
            }
            for call in whole.calls
        ]
        return [*message, *calls]

    def _item(self, status: str, content: Sequence[JSON]) -> JSON:
        return {"id": self._message, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str, **more: Any) -> JSON:
        about = {"id": self._about["id"], "object": self.kind, "created_at": self._about["created"]}
        about |= {"model": self._about["model"], "status": status, "error": None, "incomplete_details": None}
        about |= {"output": [], "usage": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True}
        return {**about, "temperature": None, "top_p": None, "tool_choice": "auto", "tools": [], **more}

    def _event(self, kind: str, **more: Any) -> JSON:
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": self._events - 1, **more}


def _text(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
