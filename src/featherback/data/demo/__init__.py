"""The demo's data: plain-English requests, each answered by one exact shell command.

Thirty kinds of command, eight requests for each, in the words a person would use. One or two of every kind
are held out: no held-out request or answer appears in the training data. The tests run every command and
check that it does what is asked (GNU/Linux).
"""

from __future__ import annotations

import json
from pathlib import Path

ABOUT = (
    "A small chat model learns to be a shell helper: asked for something in plain English, it answers with "
    "the one command that does it, and nothing else. It learns from 200 examples and is tested on 40 that it "
    "has not seen."
)
TRAIN = Path(__file__).with_name("train.jsonl")
HELD_OUT = Path(__file__).with_name("held_out.jsonl")
PROMPTS = (
    "Show the last 30 lines of mail.log",
    "How many words does thesis.md have?",
    'Change every "tea" to "coffee" in menu.txt',
    "Find the files in logs larger than 50 MB",
)
"""Held-out requests to answer before and after training."""


def pairs(path: Path) -> list[tuple[str, str]]:
    """Return the (request, command) pairs of TRAIN or HELD_OUT."""
    rows = [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
    return [(user["content"], assistant["content"]) for user, assistant in rows]
