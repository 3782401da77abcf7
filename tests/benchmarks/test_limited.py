"""`python -m benchmarks speed --isa`: both sides use the same instruction set; an unknown one is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import limited, peers, synthetic
from benchmarks.steps import run_step
from featherback.engine import kernels
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from tests.support.tiny_models import TINY_LLAMA, write_tiny


@pytest.mark.skipif("avx2" not in kernels.available(), reason="this CPU has no AVX2")
def test_both_sides_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def peft(name: str, dtype: str, checkpointing: bool, **options: Any) -> dict[str, Any]:
        asked.append(options["environment"])
        return {"seconds": [9.0, 4.0, 5.0] if checkpointing else [2.0]}

    def ours(*arguments: Any, **options: Any) -> dict[str, Any]:
        asked.append(options["environment"])
        return run_step(*arguments, **options)

    monkeypatch.setattr(limited, "require_torch", lambda: None)
    monkeypatch.setattr(limited, "peft_step", peft)
    monkeypatch.setattr(limited, "run_step", ours)
    monkeypatch.setattr(synthetic, "write_synthetic", lambda path, _: write_tiny(path, TINY_LLAMA))
    before = kernels.current()
    found = limited.run(["qwen2.5-0.5b"], "avx2", tmp_path, 2, True, False, lambda _: None)
    assert kernels.current() == before
    assert not list(tmp_path.iterdir())
    assert asked == [limited.ISAS["avx2"]] * 7
    ((row,),) = found["rounds"].values()
    assert list(row)[:3] == ["ours, fp32", "ours, int16", "ours, bf16"]
    assert (row["PEFT, fp32, checkpointing"], row["PEFT, bf16"]) == (4.0, 2.0)
    assert "| ours, fp32 | " in found["markdown"]


def test_the_limit_reaches_our_process(tmp_path: Path) -> None:
    """A name that no machine knows ends it."""
    path = write_tiny(tmp_path / "tiny.gguf", TINY_LLAMA)
    plan = Plan(tokens=16)
    with pytest.raises(FeatherbackError, match="FEATHERBACK_KERNELS is 'nonsense'"):
        run_step(path, plan, tmp_path, tokens=16, steps=1, environment={"FEATHERBACK_KERNELS": "nonsense"})


@pytest.mark.parametrize("isa", ["sse", "neon"])
def test_an_instruction_set_that_cannot_be_compared(isa: str, tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=f"--isa is {isa!r}; this machine compares on "):
        limited.run(["qwen2.5-0.5b"], isa, tmp_path, 2, True, False, lambda _: None)


def test_the_limit_reaches_pefts_process() -> None:
    """A word that Python does not know ends it."""
    with pytest.raises(FeatherbackError, match="measured process failed"):
        peers.peft_step("qwen2.5-0.5b", "fp32", True, environment={"PYTHONIOENCODING": "nonsense"})
