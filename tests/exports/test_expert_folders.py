"""Adapters of folders with experts: PEFT opens them on transformers' model, and merged folders give their logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import peft
from featherback.exports.formats.peft import _opens_folder
from featherback.exports.merged_hf import MergedHF
from tests.exports.test_expert_adapters import ours, theirs_of
from tests.models.test_experts_folder import as_published, joined
from tests.models.test_hf_folder import folder_and_gguf
from tests.support.expert_adapters import random_values
from tests.support.families import cases
from tests.support.oracle import reference_model
from tests.support.tiers import some

pytestmark = pytest.mark.usefixtures("own_cache")
NAMES = ("granitemoe", "lfm2moe", "mixtral", "olmoe", "qwen2moe", "qwen3moe", "qwen35moe", "qwen3next")
EVERYTHING = "all,experts,router"


def theirs(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def layouts(tmp_path: Path, name: str) -> dict[str, Path]:
    folder, gguf = folder_and_gguf(tmp_path, cases()[name][0])
    return {"published": folder, "joined": joined(folder, tmp_path / "joined", reference_model(gguf))}


@pytest.mark.parametrize("name", some([*NAMES, "gpt-oss"], 4))
def test_peft_opens_the_adapter_on_the_folder(tmp_path: Path, name: str) -> None:
    folder, _ = folder_and_gguf(tmp_path, cases()[name][0])
    model = models.load(folder)
    adapter = random_values(model, EVERYTHING, 3)
    peft.FORMAT.save(adapter, tmp_path / "adapter")
    assert _opens_folder(model)
    both = PeftModel.from_pretrained(theirs(folder), str(tmp_path / "adapter")).eval()
    found = ours(model, adapter)
    np.testing.assert_allclose(found, theirs_of(both), atol=1e-3)
    assert np.abs(found - ours(model, None)).max() > 0.1
    again = formats.load(model, tmp_path / "adapter")
    assert all(np.array_equal(values, again.state()[each]) for each, values in adapter.state().items())


@pytest.mark.parametrize("layout", ["published", "joined"])
@pytest.mark.parametrize("name", some(NAMES, 4))
def test_merged_folders_have_the_same_layout(tmp_path: Path, name: str, layout: str) -> None:
    """Attention, experts and router, or attention alone."""
    folder = layouts(tmp_path, name)[layout]
    model = models.load(folder)
    for targets in (EVERYTHING, "all"):
        adapter = random_values(model, targets, 3)
        MergedHF(adapter).write(tmp_path / targets)
        before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / targets))
        assert {each: array.shape for each, array in before.items()} == {each: a.shape for each, a in after.items()}
        wanted = ours(model, adapter)
        np.testing.assert_allclose(ours(models.load(tmp_path / targets), None), wanted, atol=2e-3)
        np.testing.assert_allclose(theirs_of(theirs(tmp_path / targets)), wanted, atol=2e-3)
        changed = {each for each, array in before.items() if not np.array_equal(array, after[each])}
        assert any("experts" in each or "_linear" in each for each in changed) == (targets == EVERYTHING)


def test_gpt_oss_is_merged_where_it_can_be(tmp_path: Path) -> None:
    folder, _ = folder_and_gguf(tmp_path, cases()["gpt-oss"][0])
    model = models.load(folder)
    adapter = random_values(model, "all,router", 3)
    MergedHF(adapter).write(tmp_path / "merged")
    np.testing.assert_allclose(theirs_of(theirs(tmp_path / "merged")), ours(model, adapter), atol=2e-3)
    for targets in ("down_exps", "gate_exps", "experts"):
        with pytest.raises(
            FeatherbackError, match=r"another order\. Export the adapter with --to peft; PEFT merges it"
        ):
            MergedHF(random_values(model, targets, 3))
    published, _ = as_published(folder, tmp_path / "published")
    with pytest.raises(FeatherbackError, match=r"experts are in MXFP4\. Export the adapter with --to peft"):
        MergedHF(random_values(models.load(published), "q", 3))
