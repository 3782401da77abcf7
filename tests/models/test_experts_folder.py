"""Folders of mixtures of experts, in each layout: gradients are transformers', and every weight is what was stored."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models import Model, load
from featherback.models.assembled import Assembled
from featherback.models.converted import ConvertedWeights
from featherback.models.streams import floats_of
from tests.methods.test_exact_gradients import draw
from tests.methods.test_expert_adapters import BOUND, EVERYTHING, assert_close, ours
from tests.models.test_hf_folder import edit
from tests.support.expert_adapters import autograd_of_experts, random_values
from tests.support.families import TYPICAL, cases
from tests.support.oracle import reference_model
from tests.support.tiers import some
from tests.support.tiny_models import write_tiny

pytestmark = pytest.mark.usefixtures("own_cache")
ROUTED = [name for name, (config, _) in cases().items() if hasattr(config, "experts_used")]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time."""
    for name, number in (("streams.VALUES", 96 * 5), ("floats.PIECE", 96 * 40)):
        monkeypatch.setattr(f"featherback.models.{name}", number)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path, PreTrainedModel]]:
    """A GGUF file of a case with float32 weights, the same model in the layout that is published, and transformers'."""
    known = dict[str, tuple[Path, Path, PreTrainedModel]]()

    def find(name: str) -> tuple[Path, Path, PreTrainedModel]:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            gguf = write_tiny(folder / "a.gguf", cases()[name][0], TensorType.F32)
            twin = reference_model(gguf)
            twin.save_pretrained(folder / "hf")
            known[name] = gguf, folder / "hf", twin
        return known[name]

    return find


Made = Callable[[str], tuple[Path, Path, PreTrainedModel]]


def rewritten(folder: Path, out: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """The folder with other tensors."""
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / "model.safetensors")
    return out


def joined(folder: Path, out: Path, twin: PreTrainedModel) -> Path:
    """The folder in the layout that transformers 5 has in memory."""
    state = dict(twin.state_dict())
    if twin.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return rewritten(folder, out, {name: tensor.clone() for name, tensor in state.items()})


def stacks(model: Model, layer: int) -> dict[str, np.ndarray]:
    """Matrices by name, those of all experts (E, out, in), with gate and up apart."""
    block, found = model.blocks[layer], dict[str, np.ndarray]()
    for name, matrix in model.layer(layer).matrices.items():
        found[name] = floats_of(matrix).reshape(block.shape(name))
    if "gate_up_exps" in found:
        found["gate_exps"], found["up_exps"] = np.split(found.pop("gate_up_exps"), 2, axis=1)
    if "gate_up_proj" in found:
        found["gate_proj"], found["up_proj"] = np.split(found.pop("gate_up_proj"), 2)
    return found


@pytest.mark.parametrize("layout", ["published", "joined"])
@pytest.mark.parametrize("name", some([name for name in ROUTED if name in TYPICAL], 4))
def test_gradients_are_transformers(made: Made, tmp_path: Path, name: str, layout: str) -> None:
    gguf, folder, twin = made(name)
    folder = folder if layout == "published" else joined(folder, tmp_path / "joined", twin)
    model, same = load(folder), load(gguf)
    for layer in range(len(model.blocks)):
        here, there = stacks(model, layer), stacks(same, layer)
        for part in ("gate_exps", "up_exps", "down_exps", "router"):
            assert (part in here) == (part in there)
            if part in here:
                assert np.array_equal(here[part], there[part]), part
    adapter = random_values(model, EVERYTHING, 3)
    sequences = draw((33,), model.config.vocab_size)
    truth = autograd_of_experts(twin, adapter.state(), sequences)
    for plan in ({}, {"weights": "by_matrix"}, {"weights": "streamed"}):
        assert_close(ours(adapter, sequences, **plan), truth, BOUND)


def test_stacks_are_used_in_place(made: Made, tmp_path: Path) -> None:
    """Nothing is written to the cache."""
    for name in ("granitemoe", "qwen3moe", "qwen35moe", "mixtral", "lfm2moe"):
        _, folder, twin = made(name)
        folder = folder if name == "granitemoe" else joined(folder, tmp_path / name, twin)
        model = load(folder)
        assert model.files == {folder / "model.safetensors"}
        assert model.config.gate_up_fused  # type: ignore[attr-defined]


def test_matrices_of_each_expert_are_put_together_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder, _ = made("qwen3moe")
    model = load(folder)
    assert isinstance(model.store, ConvertedWeights)
    monkeypatch.setattr(Assembled, "output", lambda self, name: pytest.fail("it is converted again"))
    assert load(folder).files == model.files


@pytest.mark.parametrize("name", some(["qwen3moe", "qwen2moe", "granitemoe", "gpt-oss", "qwen3next"], 3))
@pytest.mark.parametrize("label", ["q8_0", "q4_0"])
def test_quantised_experts_are_those_of_the_gguf_package(made: Made, name: str, label: str) -> None:
    """Matrices only: routers and everything else stay as they are."""
    import gguf as package

    _, folder, _ = made(name)
    plain, found = load(folder), load(folder, label)
    kind = package.GGMLQuantizationType[label.upper()]
    foreseen = load(folder, label, without_converting=True)
    for layer in range(len(plain.blocks)):
        here, there = stacks(found, layer), stacks(plain, layer)
        for part, values in there.items():
            width = values.shape[-1]
            quantised = part != "router" and width % 32 == 0
            expected = package.quants.dequantize(package.quants.quantize(values, kind), kind) if quantised else values
            assert np.array_equal(here[part], expected), part
        for part, vector in plain.layer(layer).vectors.items():
            assert np.array_equal(found.layer(layer).vectors[part], vector)
            assert np.array_equal(foreseen.layer(layer).vectors[part], vector)
        types = {part: (m.type, m.shape) for part, m in found.layer(layer).matrices.items()}
        assert {part: (m.type, m.shape) for part, m in foreseen.layer(layer).matrices.items()} == types


def packed(w: np.ndarray, rng: np.random.Generator) -> Tensors:
    """Random blocks (E, out, in / 32, 16) and scales (E, out, in / 32) for a stack of this shape."""
    *lead, cols = w.shape
    return {
        "_blocks": torch.from_numpy(rng.integers(0, 256, (*lead, cols // 32, 16), dtype=np.uint8)),
        "_scales": torch.from_numpy(rng.integers(117, 124, (*lead, cols // 32), dtype=np.uint8)),
    }


def as_published(folder: Path, out: Path) -> tuple[Path, Tensors]:
    """A gpt-oss with random experts in MXFP4, and the tensors that transformers unpacks them to."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng, tensors, floats = np.random.default_rng(0), dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            parts = packed(tensor.transpose(1, 2).numpy(), rng)
            tensors |= {name + end: part for end, part in parts.items()}
            floats[name] = convert_moe_packed_tensors(*parts.values(), dtype=torch.float32)
            assert floats[name].shape == tensor.shape
        else:
            tensors[name] = floats[name] = tensor
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    rewritten(folder, out, tensors)
    edit(out, {"quantization_config": quantization})
    return out, floats


@pytest.mark.parametrize("name", some(["gpt-oss", "gpt-oss-tied-all-used"], 1))
def test_blocks_of_gpt_oss_are_what_transformers_unpacks(made: Made, tmp_path: Path, name: str) -> None:
    _, folder, twin = made(name)
    published, floats = as_published(folder, tmp_path / "published")
    model, same = load(published), load(rewritten(folder, tmp_path / "floats", floats))
    for layer in range(len(model.blocks)):
        matrices = model.layer(layer).matrices
        assert {matrices[part].type for part in ("gate_exps", "up_exps", "down_exps")} == {TensorType.MXFP4}
        assert matrices["q_proj"].type is TensorType.F32
        here, there = stacks(model, layer), stacks(same, layer)
        assert all(np.array_equal(here[part], there[part]) for part in here)
    adapter = random_values(model, EVERYTHING, 3)
    sequences = draw((33,), model.config.vocab_size)
    twin = copy.deepcopy(twin)
    twin.load_state_dict({**twin.state_dict(), **floats})
    assert_close(ours(adapter, sequences), autograd_of_experts(twin, adapter.state(), sequences), BOUND)
    with pytest.raises(FeatherbackError, match="already quantised, in MXFP4; remove --quantize"):
        load(published, "q4_0")


def with_images(folder: Path, out: Path) -> Path:
    """The names of published Qwen 3.5: the text model is a part, beside parts that text does not use."""
    tensors = load_file(folder / "model.safetensors")
    named = {name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()}
    extra = {"model.visual.patch_embed.proj.weight": torch.zeros(4, 3), "mtp.norm.weight": torch.zeros(96)}
    rewritten(folder, out, named | extra)
    entries = json.loads((folder / "config.json").read_text())
    whole = {"model_type": "qwen3_5_moe", "text_config": entries, "tie_word_embeddings": entries["tie_word_embeddings"]}
    (out / "config.json").write_text(json.dumps(whole))
    return out


@pytest.mark.parametrize("name", some(["qwen35moe", "qwen35moe-irregular"], 1))
def test_a_model_with_images(made: Made, tmp_path: Path, name: str) -> None:
    _, folder, twin = made(name)
    plain = load(folder)
    for layout in ("published", "joined"):
        inner = folder if layout == "published" else joined(folder, tmp_path / "inner", twin)
        model = load(with_images(inner, tmp_path / layout))
        here, there = stacks(model, 1), stacks(plain, 1)
        assert all(np.array_equal(here[part], there[part]) for part in there)
        assert model.naming.modules["down_exps"].startswith("model.language_model.layers")


REJECTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "layers without experts": ("qwen3moe", {"decoder_sparse_step": 2}, r"decoder_sparse_step .* is 2.*supported: 1"),
    "some without": ("qwen2moe", {"mlp_only_layers": [1]}, r"mlp_only_layers .* is \[1\]"),
    "biases": ("qwen3moe", {"attention_bias": True}, "attention_bias .* is True"),
    "no biases": ("qwen2moe", {"qkv_bias": False}, "qkv_bias .* is False"),
    "clipping": ("olmoe", {"clip_qkv": 8.0}, r"clip_qkv .* is 8\.0"),
    "jitter": ("mixtral", {"router_jitter_noise": 0.1}, r"router_jitter_noise .* is 0\.1"),
    "another limit": ("gpt-oss", {"swiglu_limit": 5.0}, r"swiglu_limit .* is 5\.0.*supported: 7\.0"),
    "rounded limits": (
        "gpt-oss",
        {"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 100}},
        "truncate .* is True.*supported: False",
    ),
    "more experts": ("qwen3moe", {"num_local_experts": 8}, r"no tensor model\.layers\.0\.mlp\.experts\.7\.gate_proj"),
    "fewer experts": ("qwen3moe", {"num_local_experts": 6}, r"not part of a supported qwen3moe model.*experts\.6\."),
    "absurdly many": ("qwen3moe", {"num_local_experts": 4000}, "claims 4000 experts in a layer"),
    "a wider expert": (
        "mixtral",
        {"intermediate_size": 512},
        r"experts\.0\.w1\.weight \(256, 96\) to .* do not fit .*gate_proj \(7, 512, 96\)",
    ),
    "a narrower shared one": (
        "qwen2moe",
        {"shared_expert_intermediate_size": 32},
        r"shared_expert\.gate_proj\.weight has shape \(512, 96\)",
    ),
    "no experts": ("mixtral", {"num_local_experts": 0}, "has 0 experts"),
    "many layers": ("qwen3moe", {"num_hidden_layers": 60_000}, "claims 60000 layers but holds only"),
    "a wider mxfp4": (
        "gpt-oss",
        {"intermediate_size": 512},
        r"gate_up_proj \(7, 512, 96\) have sizes that do not fit .*gate_proj \(7, 512, 96\)",
    ),
    "other heads": ("qwen3next", {"linear_num_value_heads": 4}, "in_proj_qkvz|linear_attn"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_what_is_not_computed_exactly_is_rejected(made: Made, tmp_path: Path, case: str) -> None:
    name, changes, message = REJECTED[case]
    changed = tmp_path / "changed"
    shutil.copytree(made(name)[1], changed)
    edit(changed, changes)
    with pytest.raises(FeatherbackError, match=message) as caught:
        load(changed)
    assert "\n" not in str(caught.value)


def _without(end: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[next(name for name in tensors if name.endswith(end))]

    return change


def _as(end: str, to: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        name = next(name for name in tensors if name.endswith(end))
        tensors[name] = to(tensors[name])

    return change


DAMAGED: dict[str, tuple[str, Callable[[Tensors], None], str]] = {
    "an expert is missing": (
        "qwen3moe",
        _without("1.mlp.experts.4.up_proj.weight"),
        r"no tensor .*\.4\.up_proj\.weight",
    ),
    "a layer is missing": (
        "mixtral",
        _without("0.block_sparse_moe.experts.0.w1.weight"),
        r"gate_proj .* is missing|w1",
    ),
    "another type": (
        "olmoe",
        _as("0.mlp.experts.2.down_proj.weight", lambda w: w.half()),
        "have types that do not fit",
    ),
    "another shape": ("lfm2moe", _as("experts.2.w1.weight", lambda w: w[:-1]), "have sizes that do not fit"),
    "scales are missing": ("gpt-oss", _without("down_proj_scales"), "down_proj_scales of .* is missing"),
    "scales are short": (
        "gpt-oss",
        _as("down_proj_scales", lambda w: w[..., :4]),
        "down_proj_scales of .* has 2688 bytes",
    ),
    "blocks are missing": ("gpt-oss", _without("down_proj_blocks"), "down_proj_scales of .* has the type 'U8'"),
    "blocks are flat": ("gpt-oss", _as("down_proj_blocks", lambda w: w.flatten(2)), "need one byte each"),
    "a bias is missing": ("gpt-oss", _without("0.mlp.experts.gate_up_proj_bias"), "no tensor .*gate_up_proj_bias"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_folders(made: Made, tmp_path: Path, case: str) -> None:
    name, change, message = DAMAGED[case]
    folder = made(name)[1]
    if name == "gpt-oss":
        folder, _ = as_published(folder, tmp_path / "whole")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    with pytest.raises(FeatherbackError, match=message) as caught:
        load(rewritten(folder, tmp_path / "damaged", tensors))
    assert "\n" not in str(caught.value)
