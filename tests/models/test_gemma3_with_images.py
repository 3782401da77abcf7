"""Folders of Gemma 3 with a vision model: their text model is compared with transformers' model of text and images."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.numpy import load_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, PreTrainedModel, SiglipVisionConfig

from featherback import models
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.exports.formats import peft
from featherback.infer.decoder import Decoder
from featherback.infer.generate import generate_tokens
from featherback.infer.sampler import Sampler
from featherback.models.adapter import LoRA
from tests.methods.support import Result, assert_close, ours
from tests.support.oracle import reference_model
from tests.support.tiny_models import TINY_GEMMA3, tiny, write_tiny

# transformers caps neither scores nor logits where there are images.
TEXT = tiny(TINY_GEMMA3, attention_softcap=0.0, final_softcap=0.0)
VISION = SiglipVisionConfig(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
)


@dataclass(frozen=True)
class Folders:
    """One text model, with images beside it and alone."""

    both: Path
    text: Path
    theirs: PreTrainedModel


def with_images(text: PreTrainedModel, tied: bool) -> PreTrainedModel:
    config = Gemma3Config(
        text_config=text.config,
        vision_config=VISION,
        mm_tokens_per_image=1,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    both = Gemma3ForConditionalGeneration(config).float().eval()
    both.model.language_model.load_state_dict(text.model.state_dict())
    both.lm_head.load_state_dict(text.lm_head.state_dict())
    return both


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    place, config = tmp_path_factory.mktemp("gemma3"), tiny(TEXT, tie_word_embeddings=request.param)
    text = reference_model(write_tiny(place / "a.gguf", config))
    text.save_pretrained(place / "text")
    both = with_images(text, request.param)
    both.save_pretrained(place / "both")
    return Folders(place / "both", place / "text", both)


def tokens(count: int) -> list[int]:
    return np.random.default_rng(1).integers(0, TEXT.vocab_size, count).tolist()


def adapter_in(folders: Folders, place: Path) -> LoRA:
    """A random adapter of the text model, saved for PEFT."""
    model = models.load(folders.both)
    adapter = LoRA(model, rank=4, alpha=16)
    rng = np.random.default_rng(2)
    adapter.load_state(
        {name: (0.2 * rng.standard_normal(shape)).astype(np.float32) for name, shape in adapter.shapes().items()}
    )
    peft.FORMAT.save(adapter, place)
    return adapter


@pytest.fixture(scope="module")
def adapted(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoRA, torch.nn.Module]:
    """Our adapter, and the model of both as PEFT opens it by the adapter's directory alone."""
    place = tmp_path_factory.mktemp("adapter") / "saved"
    adapter = adapter_in(folders, place)
    theirs = AutoPeftModelForCausalLM.from_pretrained(place, is_trainable=True, attn_implementation="eager")
    return adapter, theirs.eval()


def test_the_text_model_is_that_of_the_text_folder(folders: Folders) -> None:
    both, text = models.load(folders.both), models.load(folders.text)
    assert both.config.architecture == text.config.architecture == "gemma3"
    for name, value in vars(text.config).items():
        assert getattr(both.config, name) == value, name
    assert both.embed_tokens.data.tobytes() == text.embed_tokens.data.tobytes()
    assert both.head.weight.data.tobytes() == text.head.weight.data.tobytes()
    for index in range(TEXT.num_hidden_layers):
        ours, theirs = both.layer(index), text.layer(index)
        assert ours.matrices.keys() == theirs.matrices.keys()
        for name, matrix in ours.matrices.items():
            assert np.array_equal(matrix.data, theirs.matrices[name].data), name
        for name, vector in ours.vectors.items():
            assert np.array_equal(vector, theirs.vectors[name]), name


def test_peft_opens_the_adapter_by_itself(adapted: tuple[LoRA, torch.nn.Module], folders: Folders) -> None:
    adapter, theirs = adapted
    trained = [name for name, parameter in theirs.named_parameters() if parameter.requires_grad]
    assert len(trained) == len(adapter.shapes())
    assert all(".language_model.layers." in name for name in trained)
    text = tokens(33)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([text])).logits[0].numpy()
        base = folders.theirs(input_ids=torch.tensor([text])).logits[0].numpy()
    found = Decoder(adapter.model, adapter, compute="fp32").forward(text, every=True)
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
    assert np.abs(expected - base).max() > 0.05 * np.abs(base).max(), "the adapter changed nothing"


@pytest.mark.parametrize("chunk", [None, 5])
def test_gradients_are_those_of_autograd(adapted: tuple[LoRA, torch.nn.Module], chunk: int | None) -> None:
    adapter, theirs = adapted
    text = tokens(33)
    logits = theirs(input_ids=torch.tensor([text])).logits[0, :-1]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:]))
    theirs.zero_grad()
    loss.backward()
    truth = {
        name.removeprefix(peft.PREFIX).replace(".default.", "."): parameter.grad.numpy().copy()
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    found = ours(adapter.model, adapter.state(), [text], mlp_tile=256, vocab_tile=48, chunk=chunk)
    assert_close(found, Result(loss.item(), truth), 1e-4)


def test_greedy_tokens_are_those_of_transformers(folders: Folders) -> None:
    prompt = tokens(5)
    found = list(generate_tokens(Decoder(models.load(folders.both), compute="fp32"), prompt, Sampler(), 30))
    with torch.no_grad():
        logits = folders.theirs(input_ids=torch.tensor([prompt + found])).logits[0, len(prompt) - 1 : -1]
    assert found == logits.argmax(-1).tolist()


def test_the_adapter_is_read_back(folders: Folders, tmp_path: Path) -> None:
    adapter = adapter_in(folders, tmp_path)
    assert json.loads((tmp_path / peft.CONFIG_FILE).read_text())["target_modules"] == list(adapter.targets)
    assert all(
        name.startswith("base_model.model.model.language_model.layers.")
        for name in load_file(tmp_path / peft.WEIGHTS_FILE)
    )
    again = formats.load(models.load(folders.both), tmp_path)
    for name, values in adapter.state().items():
        assert np.array_equal(again.state()[name], values), name
    with pytest.raises(FeatherbackError, match="does not fit"):
        formats.load(models.load(folders.text), tmp_path)


def edited(folder: Path, place: Path, **changes: object) -> Path:
    place.mkdir()
    (place / "model.safetensors").symlink_to(folder / "model.safetensors")
    entries = json.loads((folder / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(entries | changes))
    return place


def test_what_is_said_of_the_whole_holds_for_the_text(folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match="quantization_config"):
        models.load(edited(folders.both, tmp_path / "quantised", quantization_config={"bits": 4}))
    with pytest.raises(FeatherbackError, match=r"text_config .* is 'gemma3_text'"):
        models.load(edited(folders.both, tmp_path / "text", text_config="gemma3_text"))
