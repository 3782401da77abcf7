"""{"conversations": [{"from": "human", "value": ...}, ...]}, as in ShareGPT. `turns` translates the roles."""

from __future__ import annotations

from featherback.data.shapes.messages import Messages


class ShareGPT(Messages):
    precedence = 20
    keys = frozenset({"conversations", "system", "tools", "functions", "label"})
    expects = '"conversations"'
    _key = "conversations"


SHAPE = ShareGPT()
