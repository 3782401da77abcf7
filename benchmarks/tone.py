"""Made-up requests to a shop, each answered in the shop's tone: a fact, and "Anything else we can do for you?".

Each topic has its own questions, so nodes with different topics have different data, and learn one tone. The facts are
drawn at random: no model can predict them, so a loss on new requests does not fall to zero.
"""

from __future__ import annotations

import json
import random

CLOSING = "Anything else we can do for you?"
_THINGS = ("bicycle", "lamp", "kettle", "chair", "radio", "clock", "sewing machine", "printer", "toaster", "violin")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_PLACES = ("on the ground floor", "behind the counter", "next to the door", "on the top shelf", "in the cellar")
TOPICS = (
    ("How much is a {thing}?", "A {thing} is {number} euros."),
    ("What do you charge to repair a {thing}?", "Repairing a {thing} is {number} euros."),
    ("When will my {thing} be ready?", "Your {thing} is ready on {day}."),
    ("Which day do you deliver a {thing}?", "We deliver a {thing} on {day}."),
    ("Where do I find a {thing}?", "You find a {thing} {place}."),
    ("Where do I leave my broken {thing}?", "Please leave your {thing} {place}."),
    ("How many of the {thing}s are left?", "There are {number} {thing}s left."),
    ("How old is the {thing} in the window?", "The {thing} is {number} years old."),
)


def requests(topics: range, count: int, seed: int) -> bytes:
    """Return `count` requests on these topics in turn, as JSONL."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        question, answer = TOPICS[topics[number % len(topics)]]
        facts = {
            "thing": rng.choice(_THINGS),
            "number": rng.randrange(2, 99),
            "day": rng.choice(_DAYS),
            "place": rng.choice(_PLACES),
        }
        turns = {"user": question.format(**facts), "assistant": f"{answer.format(**facts)} {CLOSING}"}
        rows.append({"messages": [{"role": role, "content": content} for role, content in turns.items()]})
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()
