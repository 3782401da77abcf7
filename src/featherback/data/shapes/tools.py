"""Convert tools and tool calls to the form for chat templates: arguments are an object, not a string of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from featherback.data.shapes.base import Row, structure
from featherback.errors import FeatherbackError


def tools_of(row: Row) -> list[dict[str, Any]] | None:
    """Return the "tools" of a row, or its "functions", the older name at OpenAI."""
    tools = structure(row, "tools") or structure(row, "functions")
    if not tools:
        return None
    if not isinstance(tools, list):
        raise FeatherbackError('"tools" must be a list of objects.')
    return [_tool(tool, number) for number, tool in enumerate(tools, 1)]


def calls_of(calls: Any, of: str) -> list[dict[str, Any]]:
    """Convert the tool calls of a message to {"type": "function", "function": {"name": str, "arguments": object}}."""
    if not isinstance(calls, list):
        raise FeatherbackError(f'"tool_calls" of {of} must be a list.')
    return [_call(call, of) for call in calls]


def _tool(tool: Any, number: int) -> dict[str, Any]:
    tool = _without_nulls(tool)
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FeatherbackError(f'Tool {number} must be an object with the "name" of a function.')
    return tool if "function" in tool else {"type": "function", "function": tool}


def _call(call: Any, of: str) -> dict[str, Any]:
    call = _without_nulls(call)
    function = _without_nulls(call.get("function", call)) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FeatherbackError(f'A tool call of {of} has no function "name".')
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise FeatherbackError(f"The arguments of a tool call of {of} are not valid JSON: {error}.") from None
    if not isinstance(arguments, dict):
        raise FeatherbackError(f"The arguments of a tool call of {of} must be an object.")
    known = {"name": function["name"], "arguments": arguments}
    number = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return {**number, "type": "function", "function": known}


def _without_nulls(value: Any) -> Any:
    return {key: each for key, each in value.items() if each is not None} if isinstance(value, Mapping) else value
