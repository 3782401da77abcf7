"""PEFT directories: the real PEFT reads ours, Featherback reads PEFT's, and errors name every mismatch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from featherback import models
from featherback.errors import FeatherbackError, excerpt
from featherback.exports import formats
from featherback.exports.base_model import base_model_name
from featherback.exports.formats import peft
from featherback.exports.formats.base import describe
from featherback.infer.decoder import Decoder
from featherback.models.adapter import Adapter, LoRA
from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows
from featherback.models.form import Form
from featherback.models.model import Model
from tests.support.oracle import random_adapter, reference_model
from tests.support.tiny_models import TINY_LLAMA, TINY_PHI3, TINY_QWEN2, tiny, write_tiny

TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60]


@pytest.fixture(params=["llama", "qwen2"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf", {"llama": TINY_LLAMA, "qwen2": TINY_QWEN2}[request.param])


@pytest.fixture
def model(path: Path) -> Model:
    return models.load(path)


def _trained(model: Model, theirs: PreTrainedModel, rank: int = 4, targets: tuple[str, ...] | None = None) -> LoRA:
    adapter = LoRA(model, rank=rank, alpha=12, targets=targets or "all")
    adapter.load_state(random_adapter(theirs, rank, adapter.targets, seed=3))
    return adapter


def _their_logits(theirs: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return theirs(input_ids=torch.tensor([TOKENS])).logits[0].numpy()


def _check_that_peft_opens(path: Path, model: Model, targets: tuple[str, ...] | None, saved: Path) -> LoRA:
    """An adapter that PEFT loads from `saved` gives its logits and ours alike."""
    theirs = reference_model(path)
    base = _their_logits(theirs)
    adapter = _trained(model, theirs, targets=targets)
    peft.FORMAT.save(adapter, saved)
    logits = _their_logits(PeftModel.from_pretrained(theirs, str(saved)).eval())
    ours = Decoder(model, adapter, compute="fp32").forward(TOKENS, every=True)
    np.testing.assert_allclose(ours, logits, atol=1e-3)
    assert np.abs(logits - base).max() > 0.1, "the adapter changed nothing"
    return adapter


@pytest.mark.parametrize("targets", [None, ("q_proj", "v_proj")])
def test_peft_opens_what_we_save(path: Path, model: Model, tmp_path: Path, targets: tuple[str, ...] | None) -> None:
    _check_that_peft_opens(path, model, targets, tmp_path / "adapter")


@pytest.mark.parametrize("layers", ["1", "0,2", "last:2"])
def test_layers_to_transform(tmp_path: Path, layers: str) -> None:
    """PEFT reads an adapter of some layers, with the short names of its modules, and we read PEFT's."""
    path = write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3))
    model, theirs = models.load(path), reference_model(path)
    base = _their_logits(theirs)
    adapter = LoRA(model, rank=4, alpha=12, layers=layers)
    random = random_adapter(theirs, 4, adapter.targets, seed=3)
    adapter.load_state({name: random[name] for name in adapter.state()})
    peft.FORMAT.save(adapter, tmp_path / "ours")
    entries = json.loads((tmp_path / "ours" / peft.CONFIG_FILE).read_text())
    assert entries["layers_to_transform"] == list(adapter.layers)
    assert entries["target_modules"][0] == "q_proj"
    opened = PeftModel.from_pretrained(theirs, str(tmp_path / "ours")).eval()
    logits = _their_logits(opened)
    ours = Decoder(model, adapter, compute="fp32").forward(TOKENS, every=True)
    np.testing.assert_allclose(ours, logits, atol=1e-3)
    assert np.abs(logits - base).max() > 0.1
    opened.save_pretrained(str(tmp_path / "theirs"))
    for saved in ("ours", "theirs"):
        again = formats.load(model, tmp_path / saved)
        assert again.form == adapter.form
        assert again.layers == adapter.layers
        assert all(np.array_equal(values, again.state()[name]) for name, values in adapter.state().items())


def test_ia3_of_some_layers_names_its_modules(tmp_path: Path) -> None:
    """PEFT's IA3 has no layers_to_transform."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapter = Adapter(model, Form.of(adapter="ia3", layers=("1",)))
    peft.FORMAT.save(adapter, tmp_path / "ours")
    entries = json.loads((tmp_path / "ours" / peft.CONFIG_FILE).read_text())
    assert "layers_to_transform" not in entries
    assert all(name.startswith("model.layers.1.") for name in entries["target_modules"])
    assert formats.load(model, tmp_path / "ours").layers == (1,)


@pytest.mark.parametrize("targets", [None, ("qkv_proj",), ("gate_up_proj",)])
def test_peft_opens_fused_projections(tmp_path: Path, targets: tuple[str, ...] | None) -> None:
    path = write_tiny(tmp_path / "m.gguf", TINY_PHI3)
    model = models.load(path)
    adapter = _check_that_peft_opens(path, model, targets, tmp_path / "adapter")
    modules = targets or ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    assert json.loads((tmp_path / "adapter" / peft.CONFIG_FILE).read_text())["target_modules"] == list(modules)
    stored = {
        name.split(".lora_")[0].split("layers.1.")[-1] for name in load_file(tmp_path / "adapter" / peft.WEIGHTS_FILE)
    }
    for module in modules:
        assert {f"self_attn.{module}", f"mlp.{module}"} & stored
    again = formats.load(model, tmp_path / "adapter")
    assert again.targets == modules
    for name, values in adapter.state().items():
        assert np.array_equal(again.state()[name], values), name


def test_rows_of_one_part_of_a_fused_projection_are_reordered(tmp_path: Path) -> None:
    """Only those of q and k, each by its own heads, where a file holds rotated neighbours."""
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI3))
    adapter = LoRA(model, rank=2, targets="qkv")
    model.blocks[0].branches[0].interleaved_heads = {"q": 4, "k": 2}
    name = "model.layers.0.self_attn.qkv_proj.lora_B.weight"
    state = {
        key: np.arange(value.size, dtype=np.float32).reshape(value.shape) for key, value in adapter.state().items()
    }
    adapter.load_state(state)
    assert np.array_equal(adapter.state()[name], state[name])
    flat = np.empty(adapter.layer_size, np.float32)
    adapter.parameters.read(0, flat)
    inside = adapter.layout.view(0, flat)["qkv_proj"]["B^T"].T
    for first, last, heads in ((0, 128, 4), (128, 192, 2)):
        assert np.array_equal(inside[first:last], state[name][first:last][hf_to_gguf_rows(heads, last - first)])
    assert np.array_equal(inside[192:], state[name][192:])


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_we_open_what_peft_saves(path: Path, model: Model, tmp_path: Path, rslora: bool, dtype: torch.dtype) -> None:
    config = LoraConfig(
        r=5, lora_alpha=7, target_modules=["k_proj", "o_proj", "up_proj"], use_rslora=rslora, task_type="CAUSAL_LM"
    )
    theirs = get_peft_model(reference_model(path), config).eval()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in theirs.named_parameters():
        if "lora_" in name:
            values = 0.1 * torch.randn(parameter.shape, generator=generator)
            parameter.data = values.to(dtype).float()  # representable, so that both compute with the same
    logits = _their_logits(theirs)
    theirs.to(dtype).save_pretrained(str(tmp_path / "theirs"))
    adapter = formats.load(model, tmp_path / "theirs")
    assert adapter.targets == ("k_proj", "o_proj", "up_proj")
    ours = Decoder(model, adapter, compute="fp32").forward(TOKENS, every=True)
    np.testing.assert_allclose(ours, logits, atol=1e-3)


def test_save_load_save_is_byte_identical(path: Path, model: Model, tmp_path: Path) -> None:
    peft.FORMAT.save(_trained(model, reference_model(path)), tmp_path / "first")
    peft.FORMAT.save(formats.load(model, tmp_path / "first", file=tmp_path / "parameters.f32"), tmp_path / "second")
    for name in (peft.CONFIG_FILE, peft.WEIGHTS_FILE):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_the_base_model_is_named(tmp_path: Path) -> None:
    plain = models.load(write_tiny(tmp_path / "plain.gguf"))
    assert base_model_name(plain) == str((tmp_path / "plain.gguf").absolute())
    source = {"general.source.huggingface.repository": "someone/tiny"}
    assert base_model_name(models.load(write_tiny(tmp_path / "named.gguf", metadata=source))) == "someone/tiny"
    url = {"general.source.repo_url": "https://huggingface.co/someone/tiny"}
    assert base_model_name(models.load(write_tiny(tmp_path / "url.gguf", metadata=url))) == "someone/tiny"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"use_dora": True}, "q_proj.lora_magnitude_vector is missing"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save = ['lm_head']"),
        ({"rank_pattern": {"(q|k)_proj": 4}}, "holds the regular expression '(q|k)_proj'; only names of modules"),
        ({"rank_pattern": {"q_proj": 3}}, "q_proj.lora_A.weight has shape (4, 96), not (3, 96)"),
        ({"peft_type": "VERA"}, "peft_type = 'VERA'"),
        ({"layers_pattern": "h"}, "layers_pattern = 'h'"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora"),
        ({"use_unheard_of": True}, "use_unheard_of = True"),
        ({"exclude_modules": ["q_proj"]}, "q_proj.lora_A.weight belongs to a module that the configuration leaves out"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"lora_bias": True}, "lora_bias = True"),
        ({"peft_type": "LOHA"}, "peft_type = 'LOHA'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"r": 0}, "rank 0"),
        ({"r": None}, "rank None"),
        ({"lora_alpha": -2}, "alpha -2"),
        ({"r": 3}, "lora_A.weight has shape (4, 96), not (3, 96)"),
    ],
)
def test_what_we_cannot_represent_is_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    peft.FORMAT.save(LoRA(model, rank=4), tmp_path / "a")
    file = tmp_path / "a" / peft.CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(FeatherbackError) as raised:
        formats.load(model, tmp_path / "a")
    assert complaint in str(raised.value)


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.base_layer.weight", "model.norm.weight"])
def test_whole_weights_beside_an_adapter_are_refused(tmp_path: Path, name: str) -> None:
    """PEFT stores them if the vocabulary was changed, or if the head is adapted."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    peft.FORMAT.save(LoRA(model, rank=4), tmp_path / "a")
    file = tmp_path / "a" / peft.WEIGHTS_FILE
    save_file({**load_file(file), f"base_model.model.{name}": np.zeros((132, 96), np.float32)}, file)
    with pytest.raises(FeatherbackError, match=r"holds whole weights .*merge_and_unload") as raised:
        formats.load(model, tmp_path / "a")
    assert name in str(raised.value)


def test_every_misfit_is_named(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    peft.FORMAT.save(LoRA(model, rank=4, targets="q,v"), tmp_path / "a")
    file = tmp_path / "a" / peft.WEIGHTS_FILE
    tensors = load_file(file)
    first, second, *_ = tensors
    tensors["base_model.model.lm_head.lora_A.weight"] = tensors.pop(first)
    tensors[second] = np.zeros((7, 4), np.float32)
    save_file(tensors, file)
    with pytest.raises(FeatherbackError) as raised:
        formats.load(model, tmp_path / "a")
    for part in (
        f"{first} is missing",
        f"{second} has shape (7, 4), not (96, 4)",
        "lm_head.lora_A.weight is not a LoRA",
    ):
        assert part in str(raised.value)


def test_an_adapter_of_another_family_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Some of its projections are known, o and down; the others are named, not their tensors."""
    fused = models.load(write_tiny(tmp_path / "fused.gguf", TINY_PHI3))
    apart = models.load(write_tiny(tmp_path / "apart.gguf", TINY_QWEN2))
    names = {
        "fused": "qkv_proj, o_proj, gate_up_proj, down_proj",
        "apart": "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    }
    for mine, theirs in ((fused, apart), (apart, fused)):
        folder = tmp_path / theirs.path.stem
        peft.FORMAT.save(LoRA(theirs, rank=4), folder)
        with pytest.raises(FeatherbackError) as raised:
            formats.load(mine, folder)
        assert str(raised.value) == (
            f"The adapter in {folder} was trained on {excerpt(str(theirs.path))} and does not fit {mine.path} "
            f"({describe(mine)}): it adapts {names[theirs.path.stem]}, but the model has {names[mine.path.stem]}. Name "
            f"the model that it was trained on."
        )
    peft.FORMAT.save(LoRA(apart, rank=4, targets="q,v"), tmp_path / "few")
    with pytest.raises(FeatherbackError, match="it adapts q_proj, v_proj, but the model has qkv_proj, o_proj, "):
        formats.load(fused, tmp_path / "few")


def test_modules_that_are_unknown_are_not_all_listed(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    peft.FORMAT.save(LoRA(model), tmp_path / "adapter")
    names = [f"base_model.model.model.layers.0.m{number}.lora_A.weight" for number in range(100)]
    save_file(dict.fromkeys(names, np.zeros((1, 1), np.float32)), tmp_path / "adapter" / peft.WEIGHTS_FILE)
    with pytest.raises(FeatherbackError, match=r"it adapts m0, .*, and 92 more, but the model has q_proj") as caught:
        formats.load(model, tmp_path / "adapter")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapter = LoRA(model, rank=4, targets="q,v")
    peft.FORMAT.save(adapter, tmp_path / "a")
    file = tmp_path / "a" / peft.WEIGHTS_FILE
    tensors = load_file(file)
    name = "model.layers.1.self_attn.v_proj.lora_B.weight"
    tensors[peft.PREFIX + name][3, 2] = value
    save_file(tensors, file)
    with pytest.raises(FeatherbackError, match=rf"adapter in .*a is broken: {name} holds NaN or infinity"):
        formats.load(model, tmp_path / "a")
    state = adapter.state()
    state[name][3, 2] = value
    with pytest.raises(FeatherbackError, match=rf"{name} holds NaN or infinity"):
        adapter.load_state(state)


def test_a_configuration_that_is_no_object(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    peft.FORMAT.save(LoRA(model), tmp_path)
    (tmp_path / peft.CONFIG_FILE).write_text("[]")
    with pytest.raises(FeatherbackError, match="not a JSON object"):
        formats.load(model, tmp_path)


def test_no_adapter_there(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    with pytest.raises(FeatherbackError, match="is not an adapter; expected one of: a GGUF LoRA file, "):
        formats.load(model, tmp_path)
    with pytest.raises(FeatherbackError, match=r"There is no adapter .*none; expected one of: a GGUF LoRA file, "):
        formats.load(model, tmp_path / "none")
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80")
    (tmp_path / peft.CONFIG_FILE).write_text("{}")
    with pytest.raises(FeatherbackError, match=r"adapter_model.bin is a pickle, which Featherback never loads"):
        formats.load(model, tmp_path)
    with pytest.raises(FeatherbackError, match=r"Cannot write to .*m.gguf"):
        peft.FORMAT.save(LoRA(model), tmp_path / "m.gguf")


def test_an_adapter_of_no_known_module_is_refused(tmp_path: Path) -> None:
    """It would change nothing, and the model would seem untrained."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    peft.FORMAT.save(LoRA(model, rank=4), tmp_path / "a")
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "a" / peft.WEIGHTS_FILE)
    with pytest.raises(FeatherbackError, match="adapts none of the model's modules"):
        formats.load(model, tmp_path / "a")
