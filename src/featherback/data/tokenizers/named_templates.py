"""Models with several chat templates: the default, and one for conversations with tools."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT, TOOL_USE = "default", "tool_use"


def joined(templates: Mapping[str, object]) -> str | None:
    """Return one template that does what the templates by these names do; None if there is no default.

    As in transformers, the one for tools is used if tools are given.
    """
    default, tool_use = templates.get(DEFAULT), templates.get(TOOL_USE)
    if not isinstance(default, str) or not isinstance(tool_use, str):
        return default if isinstance(default, str) else None
    one, other = (text.removesuffix("\n") for text in (tool_use, default))  # Jinja removes it at the end of a template
    # Jinja removes the line break after a tag, so that each template begins a line. "+" keeps the space before a tag.
    return f"{{% if tools is not none %}}\n{one}{{%+ else %}}\n{other}{{%+ endif %}}"
