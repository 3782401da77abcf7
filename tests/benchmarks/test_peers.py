"""The comparison programs themselves, on tiny shapes: that they run, and say so when they cannot."""

from __future__ import annotations

import pytest

from benchmarks import onednn, peers, peft_step
from featherback.errors import FeatherbackError

CONFIG = {
    "architecture": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_peft_trains(dtype: str, checkpointing: bool) -> None:
    request = {"config": CONFIG, "tokens": 16, "rank": 4, "steps": 2, "dtype": dtype}
    found = peft_step.main(request | {"checkpointing": checkpointing, "threads": 1})
    assert len(found["seconds"]) == 2
    assert all(3 < loss < 7 for loss in found["losses"])


def test_products_are_timed_in_turn() -> None:
    request = {"shapes": [(64, 256), (32, 96)], "tokens": 8, "types": ["Q4_0", "Q4_K"], "threads": 1}
    found = onednn.main(request)
    assert [(line["rows"], line["type"]) for line in found] == [(64, "Q4_0"), (64, "Q4_K"), (32, "Q4_0")]
    assert all(line[way]["ratio"] > 0 for line in found for way in ("forward", "backward"))


def test_a_clear_word_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(FeatherbackError, match="needs torch, which Featherback itself does not: pip install"):
        peers.require_torch()
