"""Tool calls in an answer, in the form that Hermes, Qwen and others write: <tool_call>{"name": ...}</tool_call>.

Models that write calls in another form get tools into their prompts as well, but their calls stay text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from featherback.web.openai.replies import Piece, overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)


class CallCollector:
    """Takes the pieces of one answer, and holds back what follows the start of a call until the answer has ended."""

    def __init__(self, most: int, is_call: bool = False) -> None:
        """`most`: further calls are left out. `is_call`: the answer is the inside of a call."""
        self._held, self._most, self._is_call = OPEN if is_call else "", most, is_call

    def push(self, piece: Piece) -> Piece:
        """Return the piece without tool calls. The last piece has the calls, or the text if it has other forms."""
        text = self._held + piece.text
        at = text.find(OPEN)
        if piece.finish is None:
            kept = len(text) - overlap(text, OPEN) if at < 0 else at
            self._held = text[kept:]
            return replace(piece, text=text[:kept])
        if self._is_call and piece.finish == "stop":
            text += CLOSE
        written = _CALL.findall(text)
        calls = [call for each in written if (call := _call(each)) is not None]
        rest = _CALL.sub("", text)
        if not calls or len(calls) < len(written) or OPEN in rest:
            return replace(piece, text=text)
        return replace(piece, text=rest.rstrip(), calls=calls[: self._most], finish="tool_calls")


def _call(text: str) -> Mapping[str, Any] | None:
    """Return a tool call in the form of the API; None if it is not one."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": call["name"], "arguments": written}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
