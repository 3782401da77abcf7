"""--proximal keeps a run near the adapter that it starts from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.runs.conftest import Start


def test_a_strong_pull_keeps_a_run_near_its_start(start: Start) -> None:
    far = {}
    for mu in (0.0, 1.0, 100.0):
        run = start(f"mu-{mu:g}", proximal=mu, steps=10, optimizer="sgd", learning_rate=5e-3, keep="last")
        state = _state(run.path)
        far[mu] = float(np.sqrt(sum((values**2).sum() for name, values in state.items() if "lora_B" in name)))  # from 0
    assert 0 < far[100.0] < 0.9 * far[1.0] < 0.95 * far[0.0]


def _state(run: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(run / "adapter_model.safetensors")
