"""Fixed texts and instructions, on which forgetting is measured or reduced. We wrote them for this purpose (CC0)."""

from pathlib import Path

TEXT = Path(__file__).with_name("text.txt")
INSTRUCTIONS = Path(__file__).with_name("instructions.jsonl")
PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""What a model answers to make general examples of its own. None of it is among the instructions."""
ANSWER_TOKENS = 32
"""The most tokens of an answer to an instruction."""
