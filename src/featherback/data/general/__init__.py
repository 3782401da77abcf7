"""A fixed text and fixed instructions, on which forgetting is measured. We wrote both for this purpose (CC0)."""

from pathlib import Path

TEXT = Path(__file__).with_name("text.txt")
INSTRUCTIONS = Path(__file__).with_name("instructions.jsonl")
ANSWER_TOKENS = 32
"""The most tokens of an answer to an instruction."""
