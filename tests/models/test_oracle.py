"""The oracle is compared with transformers' own GGUF loader and with Hugging Face's own loss."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from featherback.engine.formats.types import TensorType
from tests.support.families import of_peer
from tests.support.oracle import random_adapter, reference, reference_model
from tests.support.tiny_models import LLAMA3_ROPE, TINY_LLAMA, TINY_QWEN2, llama3, tiny, write_tiny

TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 35, 89, 79]]


def logits(model: PreTrainedModel, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def as_transformers_loads_it(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


AS_READ = of_peer(lambda family: family.transformers) | {"llama untied": tiny(tie_word_embeddings=False)}


@pytest.mark.parametrize("config", AS_READ.values(), ids=AS_READ)
def test_same_model_as_transformers_loads(tmp_path: Path, config: object) -> None:
    path = write_tiny(tmp_path / "a.gguf", config, TensorType.Q8_0)  # type: ignore[arg-type]
    ours, theirs = (logits(load(path), TOKENS[0]) for load in (reference_model, as_transformers_loads_it))
    assert np.abs(theirs).max() > 1
    assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_real_model_speaks(smollm2_reference: PreTrainedModel) -> None:
    """Rows in a wrong order would give another text."""
    next_token = logits(smollm2_reference, [504, 3575, 282, 4649, 314]).argmax(axis=-1)
    assert next_token[1:].tolist() == [282, 260, 314, 7042]  # "The capital" of the is Paris


def test_llama3_factors_give_the_frequencies_of_transformers(tmp_path: Path) -> None:
    config = tiny(rope_scaling=llama3(TINY_LLAMA))
    model = reference_model(write_tiny(tmp_path / "a.gguf", config))
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(head_dim=config.head_dim, rope_parameters={**LLAMA3_ROPE, "rope_theta": config.rope_theta})
    )
    assert torch.allclose(model.model.rotary_emb.inv_freq, theirs.inv_freq, rtol=1e-6)


def test_loss_is_the_mean_over_all_supervised_tokens(tmp_path: Path) -> None:
    model = reference_model(write_tiny(tmp_path / "a.gguf"))
    state = random_adapter(model, rank=3)
    before = logits(model, TOKENS[0])
    labels = [[-100] * 5 + TOKENS[0][5:], TOKENS[1]]
    both = reference(model, state, TOKENS, labels)
    parts = [reference(model, state, [t], [lab]) for t, lab in zip(TOKENS, labels, strict=True)]
    assert both.loss == pytest.approx((3 * parts[0].loss + 3 * parts[1].loss) / 6)
    for name, grad in both.grads.items():
        assert grad.shape == state[name].shape
        assert np.linalg.norm(grad) > 0, name
        assert np.allclose(grad, (parts[0].grads[name] + parts[1].grads[name]) / 2, atol=1e-6)
    assert not np.allclose(both.logits[0], before)  # the adapter acts
    assert np.array_equal(logits(model, TOKENS[0]), before)  # and is gone afterwards


def test_gradients_agree_with_finite_differences(tmp_path: Path) -> None:
    model = reference_model(write_tiny(tmp_path / "a.gguf", TINY_QWEN2))
    state = random_adapter(model, rank=2, targets=["q_proj", "down_proj"])
    grads = reference(model, state, TOKENS, alpha=4).grads
    rng = np.random.default_rng(0)
    direction = {name: rng.standard_normal(a.shape).astype(np.float32) for name, a in state.items()}
    step = 2e-3
    ends = [
        reference(model, {n: a + sign * step * direction[n] for n, a in state.items()}, TOKENS, alpha=4).loss
        for sign in (1, -1)
    ]
    slope = sum(float((grads[n] * d).sum()) for n, d in direction.items())
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-2)


def test_names_and_targets(tmp_path: Path) -> None:
    model = reference_model(write_tiny(tmp_path / "a.gguf"))
    state = random_adapter(model, rank=2, targets=["k_proj", "up_proj"])
    assert {name: a.shape for name, a in state.items() if ".1." in name} == {
        "model.layers.1.self_attn.k_proj.lora_A.weight": (2, 96),
        "model.layers.1.self_attn.k_proj.lora_B.weight": (48, 2),
        "model.layers.1.mlp.up_proj.lora_A.weight": (2, 96),
        "model.layers.1.mlp.up_proj.lora_B.weight": (160, 2),
    }
    assert reference(model, state, TOKENS).grads.keys() == state.keys()
