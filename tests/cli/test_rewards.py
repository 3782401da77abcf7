"""`featherback train` and `evaluate` with answers that the model writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_chat import write_tiny_chat

ROWS = [{"prompt": f"{i}?", "answer": str(i % 7)} for i in range(60)]


def test_rewards_are_measured(command: Any, tmp_path: Path) -> None:
    model = write_tiny_chat(tmp_path / "chat.gguf")
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    found = command("evaluate", model, "--data", data, "--reward", "regex:Y", "--answer-tokens", 5, "--threads", 1)
    assert "over 60 prompts" in found.out
    assert "reward 0." in found.out
    refused = command("evaluate", model, "--data", data, "--objective", "grpo")
    assert "add --reward numeric" in refused.err
