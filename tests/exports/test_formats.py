"""Every format holds the same adapter: values, scales and the order of rows, after any sequence of conversions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file, save_file

from featherback import models
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import tensor_of_array, write_gguf
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.exports.base_model import hub_name
from featherback.exports.formats import gguf, mlx, peft
from featherback.infer.decoder import Decoder
from featherback.models import families
from featherback.models.adapter import LoRA, Pair
from featherback.models.architecture.gguf_metadata import hf_to_gguf_rows
from featherback.models.model import Model
from featherback.nn.adapters.lora import LoRAKind
from tests.support.families import cases
from tests.support.oracle import random_adapter, reference_model
from tests.support.pairs import PAIR_FORMATS
from tests.support.tiny_models import TINY_LLAMA, TINY_PHI3, TINY_QWEN2, write_tiny

TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60]
PATTERN = {(0, "q_proj"): Pair(2, 6.0), (1, "k_proj"): Pair(7, 12.0), (1, "down_proj"): None}


def _filled(model: Model, **options: Any) -> LoRA:
    """An adapter of random values."""
    adapter = LoRA(model, **{"rank": 4, "alpha": 12, **options})
    rng = np.random.default_rng(3)
    adapter.load_state(
        {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in adapter.shapes().items()}
    )
    return adapter


def _save(adapter: LoRA, name: str, folder: Path) -> Path:
    path = folder / (f"{name}.gguf" if name == "gguf" else name)
    FORMATS[name].save(adapter, path)
    return path


def _same(found: LoRA, expected: LoRA) -> None:
    assert found.form == expected.form
    state = found.state()
    assert state.keys() == expected.shapes().keys()
    for key, values in expected.state().items():
        assert np.array_equal(state[key].view(np.uint32), values.view(np.uint32)), key


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN2, TINY_PHI3])
@pytest.mark.parametrize("targets", ["all", "o,down"])
def test_there_and_back_through_all_formats(tmp_path: Path, config: Any, targets: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    adapter = first = _filled(model, targets=targets)
    for number, name in enumerate(("peft", "gguf", "peft", "mlx", "gguf", "mlx", "peft")):
        (tmp_path / str(number)).mkdir()
        place = _save(adapter, name, tmp_path / str(number))
        adapter = formats.load(model, place)
        _same(adapter, first)
    again, start = (tmp_path / number / "peft" / peft.WEIGHTS_FILE for number in ("6", "0"))
    assert again.read_bytes() == start.read_bytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_peft_stored_comes_back_in_its_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    """PEFT -> ours -> GGUF -> ours -> PEFT; the values are again those that the dtype holds."""
    path = write_tiny(tmp_path / "m.gguf")
    model, kind = models.load(path), {torch.bfloat16: TensorType.BF16, torch.float16: TensorType.F16}[dtype]
    config = LoraConfig(r=5, lora_alpha=7, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(reference_model(path), config).to(dtype).save_pretrained(str(tmp_path / "theirs"))
    gguf.FORMAT.save(formats.load(model, tmp_path / "theirs"), tmp_path / "a.gguf", kind=kind)
    peft.FORMAT.save(formats.load(model, tmp_path / "a.gguf"), tmp_path / "ours")
    from safetensors.torch import load_file as load_torch

    theirs, ours = (load_torch(tmp_path / name / peft.WEIGHTS_FILE) for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    for name, values in theirs.items():
        assert torch.equal(values.float(), ours[name]), name


@pytest.mark.parametrize("name", PAIR_FORMATS)
@pytest.mark.parametrize("rslora", [False, True])
def test_patterns_and_rank_stabilised_scales_mean_the_same_everywhere(tmp_path: Path, name: str, rslora: bool) -> None:
    """Ranks and scales that differ, a projection without factors: the logits are those of the adapter itself."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapter = _filled(model, rslora=rslora, exceptions=PATTERN)
    logits, base = (Decoder(model, a, compute="fp32").forward(TOKENS, every=True) for a in (adapter, None))
    read = formats.load(model, _save(adapter, name, tmp_path))
    found = Decoder(model, read, compute="fp32").forward(TOKENS, every=True)
    np.testing.assert_allclose(found, logits, atol=2e-5)
    assert np.abs(logits - base).max() > 0.05
    if name == "peft":
        _same(read, adapter)


@pytest.mark.filterwarnings("ignore:.*use_rslora")
@pytest.mark.parametrize("rslora", [False, True])
def test_peft_reads_our_patterns_and_we_read_its(tmp_path: Path, rslora: bool) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    model = models.load(path)
    ours = _filled(model, rslora=rslora, exceptions=PATTERN)
    peft.FORMAT.save(ours, tmp_path / "ours")
    opened = PeftModel.from_pretrained(reference_model(path), str(tmp_path / "ours")).eval()
    with torch.no_grad():
        logits = opened(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    mine = Decoder(model, ours, compute="fp32").forward(TOKENS, every=True)
    np.testing.assert_allclose(mine, logits, atol=1e-3)
    opened.save_pretrained(str(tmp_path / "theirs"))
    _same(formats.load(model, tmp_path / "theirs"), ours)


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN2, TINY_PHI3], ids=["llama", "qwen2", "phi3"])
def test_peft_opens_our_dora_and_we_open_its(tmp_path: Path, config: Any) -> None:
    """Logits of PEFT, of ours, and of what PEFT wrote again; then to the bit what we had."""
    path = write_tiny(tmp_path / "m.gguf", config)
    model, theirs = models.load(path), reference_model(path)
    ours = LoRA(model, 4, 12, dora=True)
    ours.load_state(random_adapter(theirs, 4, dora=True))
    _save(ours, "peft", tmp_path)
    opened = PeftModel.from_pretrained(theirs, str(tmp_path / "peft")).eval()
    with torch.no_grad():
        logits = opened(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    mine, plain = (Decoder(model, a, compute="fp32").forward(TOKENS, every=True) for a in (ours, None))
    np.testing.assert_allclose(mine, logits, atol=1e-3)
    assert np.abs(plain - logits).max() > 0.05
    opened.save_pretrained(str(tmp_path / "theirs"))
    _same(formats.load(model, tmp_path / "theirs"), ours)


@pytest.mark.filterwarnings("ignore:.*use_rslora")
def test_a_dora_with_patterns_goes_to_peft_and_back(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapter = _filled(model, rslora=True, exceptions=PATTERN, dora=True)
    _same(formats.load(model, _save(adapter, "peft", tmp_path)), adapter)


@pytest.mark.parametrize("name", ["gguf", "mlx"])
def test_formats_that_know_no_dora_refuse_it(tmp_path: Path, name: str) -> None:
    adapter = LoRA(models.load(write_tiny(tmp_path / "m.gguf")), 2, dora=True)
    with pytest.raises(FeatherbackError, match=r"cannot hold DoRA; export the adapter with (--to merged|to=.merged.)"):
        _save(adapter, name, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


def test_magnitudes_and_their_entry_belong_together(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    _save(_filled(model, dora=True), "peft", tmp_path)
    config, weights = (tmp_path / "peft" / name for name in (peft.CONFIG_FILE, peft.WEIGHTS_FILE))
    entries, tensors = json.loads(config.read_text()), load_file(weights)
    config.write_text(json.dumps(entries | {"use_dora": False}))
    with pytest.raises(FeatherbackError, match=r"q_proj\.lora_magnitude_vector is not a LoRA tensor"):
        formats.load(model, tmp_path / "peft")
    config.write_text(json.dumps(entries))
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_magnitude_vector"
    save_file({key: value for key, value in tensors.items() if key != name}, weights)
    with pytest.raises(FeatherbackError, match=f"{name} is missing"):
        formats.load(model, tmp_path / "peft")
    save_file(tensors | {name: tensors[name][1:]}, weights)
    with pytest.raises(FeatherbackError, match=rf"{name} has shape \(159,\), not \(160,\)"):
        formats.load(model, tmp_path / "peft")


def test_patterns_are_matched_as_peft_does(tmp_path: Path) -> None:
    """By a name's end, by the whole name, anchored, escaped; the first that matches counts."""
    path = write_tiny(tmp_path / "m.gguf")
    ranks = {"layers.0.self_attn.q_proj": 3, "q_proj": 5, r"^model\.layers\.1\.mlp\.up_proj": 2, "roj": 9}
    alphas = {"up_proj": 30, "model.layers.0.self_attn.k_proj": 2}
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "k_proj", "up_proj"],
        layers_to_transform=[0, 1],
        rank_pattern=ranks,
        alpha_pattern=alphas,
        init_lora_weights=False,
    )
    theirs = get_peft_model(reference_model(path), config).eval()
    theirs.save_pretrained(str(tmp_path / "theirs"))
    model = models.load(path)
    read = formats.load(model, tmp_path / "theirs")
    assert read.form.exceptions == {
        (0, "q_proj"): LoRAKind(rank=3, alpha=8.0),
        (1, "q_proj"): LoRAKind(rank=5, alpha=8.0),
        (0, "k_proj"): LoRAKind(rank=4, alpha=2.0),
        (0, "up_proj"): LoRAKind(rank=4, alpha=30.0),
        (1, "up_proj"): LoRAKind(rank=2, alpha=30.0),
    }
    with torch.no_grad():
        logits = theirs(input_ids=torch.tensor([TOKENS])).logits[0].numpy()
    ours = Decoder(model, read, compute="fp32").forward(TOKENS, every=True)
    np.testing.assert_allclose(ours, logits, atol=1e-3)


@pytest.mark.parametrize("source", ["gguf", "hf"])
def test_the_gguf_file_is_llama_cpps(tmp_path: Path, source: str) -> None:
    """Read with the `gguf` package: names, metadata, and B's rows in the order of a llama GGUF, also if our base is
    a Hugging Face folder."""
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA)
    if source == "hf":
        reference_model(path).save_pretrained(str(tmp_path / "folder"))
        path = tmp_path / "folder"
    adapter = _filled(models.load(path))
    state = adapter.state()
    gguf.FORMAT.save(adapter, tmp_path / "a.gguf", "someone/tiny")
    reader = GGUFReader(tmp_path / "a.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert fields == {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 12.0,
        "general.base_model.count": 1,
        "general.base_model.0.name": "tiny",
        "general.base_model.0.repo_url": "https://huggingface.co/someone/tiny",
    }
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    assert len(tensors) == 2 * 7 * 2
    q = "model.layers.1.self_attn.q_proj.lora"
    assert np.array_equal(tensors["blk.1.attn_q.weight.lora_a"], state[f"{q}_A.weight"])
    assert np.array_equal(tensors["blk.1.attn_q.weight.lora_b"], state[f"{q}_B.weight"][hf_to_gguf_rows(4, 96)])
    v = "model.layers.0.self_attn.v_proj.lora_B.weight"
    assert np.array_equal(tensors["blk.0.attn_v.weight.lora_b"], state[v])
    _same(formats.load(adapter.model, tmp_path / "a.gguf"), adapter)


def test_a_planted_permutation_fault_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that no round trip can find: rows are not reordered in either direction."""
    monkeypatch.setattr(gguf, "hf_to_gguf_rows", lambda heads, rows: np.arange(rows))
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA))
    adapter = _filled(model)
    gguf.FORMAT.save(adapter, tmp_path / "a.gguf")
    _same(formats.load(model, tmp_path / "a.gguf"), adapter)
    stored = {t.name: t.data for t in GGUFReader(tmp_path / "a.gguf").tensors}["blk.1.attn_q.weight.lora_b"]
    order = hf_to_gguf_rows(4, 96)
    assert not np.array_equal(stored, adapter.state()["model.layers.1.self_attn.q_proj.lora_B.weight"][order])


@pytest.mark.parametrize("name", cases())
def test_families_say_how_their_gguf_files_lie(tmp_path: Path, name: str) -> None:
    config = models.load(write_tiny(tmp_path / "m.gguf", *cases()[name])).config
    assert config.rope_interleaved == families.family_of(config).gguf_interleaved


def test_a_layer_of_smaller_ranks_holds_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of its flat vector is summed up with it, to see whether all is finite."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    full = partial(np.full, fill_value=np.nan)
    poisoned = SimpleNamespace(**{**vars(np), "empty": lambda shape, dtype: full(shape, dtype=dtype)})
    monkeypatch.setattr("featherback.models.adapter.np", poisoned)
    adapter = _filled(model, targets="q", exceptions={(1, "q_proj"): None})
    row = np.ones(adapter.layer_size, np.float32)
    adapter.parameters.read(1, row)
    assert not row.any()


def test_the_mlx_directory_is_mlx_lms(tmp_path: Path) -> None:
    """Names, layouts and configuration as mlx_lm.tuner.utils.load_adapters takes them."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapter = _filled(model, targets="q,down", exceptions={(0, "q_proj"): None, (0, "down_proj"): None})
    mlx.FORMAT.save(adapter, tmp_path / "mlx", "someone/tiny")
    config = json.loads((tmp_path / "mlx" / mlx.CONFIG_FILE).read_text())
    assert config == {
        "fine_tune_type": "lora",
        "model": "someone/tiny",
        "num_layers": 1,  # counted from the last
        "lora_parameters": {"rank": 4, "scale": 3.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "mlp.down_proj"]},
    }
    state, tensors = adapter.state(), load_file(tmp_path / "mlx" / mlx.WEIGHTS_FILE)
    assert len(tensors) == 4
    for module in ("model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        for part in "AB":
            values = tensors[f"{module}.lora_{part.lower()}"]
            assert np.array_equal(values, state[f"{module}.lora_{part}.weight"].T)


def test_an_adapter_of_the_last_layers_is_read(tmp_path: Path) -> None:
    """mlx-lm trains the last 16 layers by default."""
    model = models.load(write_tiny(tmp_path / "m.gguf", replace(TINY_LLAMA, num_hidden_layers=4)))
    adapter = _filled(model, exceptions={(n, t): None for n in (0, 1) for t in model.blocks[0].projections})
    read = formats.load(model, _save(adapter, "mlx", tmp_path))
    _same(read, adapter)
    assert read.layout.kinds(0) == {}
    assert read.layer_state(1) == {}


def test_the_hub_name_of_the_base(tmp_path: Path) -> None:
    def named(**metadata: str) -> str | None:
        entries = {f"general.{key.replace('__', '.')}": value for key, value in metadata.items()}
        return hub_name(models.load(write_tiny(tmp_path / "m.gguf", metadata=entries)))

    parent = {"base_model__0__repo_url": "https://huggingface.co/someone/Tiny-1.5-Instruct"}
    assert named() is None
    assert named(source__repo_url="https://huggingface.co/a/b") == "a/b"
    assert named(repo_url="https://huggingface.co/a/b/") == "a/b"
    assert named(repo_url="https://example.org/a/b") is None
    assert named(**parent) is None
    assert named(**parent, name="Tiny 1.5 Instruct") == "someone/Tiny-1.5-Instruct"
    assert named(**parent, name="Tiny 1.5 Instruct Poet") is None, "tuned from it: another model"


def _gguf(path: Path, tensors: dict[str, tuple[int, ...]], **metadata: Any) -> Path:
    about = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.architecture": "llama",
        "adapter.lora.alpha": 8.0,
    }
    about |= {key.replace("__", "."): value for key, value in metadata.items()}
    write_gguf(path, about, [tensor_of_array(n, np.ones(s, np.float32)) for n, s in tensors.items()])
    return path


GOOD = {"blk.0.attn_q.weight.lora_a": (4, 96), "blk.0.attn_q.weight.lora_b": (96, 4)}


@pytest.mark.parametrize(
    ("tensors", "metadata", "complaint"),
    [
        (GOOD, {"general__type": "model"}, "is a GGUF of type 'model', not an adapter"),
        (GOOD, {"adapter__type": "control"}, "is an adapter of type 'control', not a LoRA"),
        (GOOD, {"general__architecture": "qwen2"}, "its architecture is 'qwen2', but the model's is 'llama'"),
        (GOOD, {"adapter__lora__alpha": float("nan")}, "adapter.lora.alpha nan"),
        (GOOD, {"adapter__lora__alpha": -1.0}, "adapter.lora.alpha -1.0"),
        (GOOD, {"adapter__lora__alpha": np.array([8.0], np.float32)}, "adapter.lora.alpha 'of many values'"),
        (GOOD, {"adapter__alora__invocation_tokens": np.array([1], np.uint32)}, "is an activated LoRA"),
        (GOOD | {"token_embd.weight.lora_a": (4, 96)}, {}, "token_embd.weight.lora_a is not a LoRA tensor"),
        ({"blk.0.attn_q.weight.lora_a": (4, 96)}, {}, "blk.0.attn_q.weight.lora_b is missing"),
        (GOOD | {"blk.0.attn_q.weight.lora_b": (96, 3)}, {}, "lora_b has shape (96, 3), not (96, 4)"),
        (
            GOOD | {"blk.0.attn_q.weight.lora_a": (4, 64)},
            {},
            "lora_a has shape (4, 64); the shape for rank 1 is (1, 96)",
        ),
        (GOOD | {"blk.0.attn_norm.weight": (96,)}, {}, "blk.0.attn_norm.weight is not a LoRA tensor"),
    ],
)
def test_gguf_files_that_do_not_fit(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], metadata: dict[str, Any], complaint: str
) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    with pytest.raises(FeatherbackError, match=re.escape(complaint)):
        formats.load(model, _gguf(tmp_path / "a.gguf", tensors, **metadata))


def test_an_alpha_of_zero_is_a_scale_of_one(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    read = formats.load(model, _gguf(tmp_path / "a.gguf", GOOD, adapter__lora__alpha=0.0))
    assert read.layout.kinds(0) == {"q_proj": LoRAKind(rank=4, alpha=4.0)}


def _changed(saved: Path, **entries: Any) -> Path:
    """A saved PEFT directory, with other entries in its configuration."""
    file = saved / peft.CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    return saved


def test_a_rank_that_no_projection_has_takes_no_memory(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapter = _filled(model, targets="q,v")
    saved = _changed(_save(adapter, "peft", tmp_path), r=10**9, rank_pattern={"q_proj": 4, "v_proj": 4})
    read = formats.load(model, saved)
    assert read.layout.most_rank == 4
    _same(formats.load(model, _save(read, "mlx", tmp_path)), adapter)


@pytest.mark.parametrize("alpha", [1e-50, 1e-31, 1e31])
def test_alphas_that_float32_may_not_hold(tmp_path: Path, alpha: float) -> None:
    """A GGUF LoRA would say 0, which means a scale of 1."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    saved = _changed(_save(_filled(model), "peft", tmp_path), lora_alpha=alpha)
    with pytest.raises(
        FeatherbackError, match=re.escape(f"has alpha {alpha}; it must be a number from 1e-30 to 1e+30")
    ):
        formats.load(model, saved)


@pytest.mark.parametrize("name", ["gguf", "mlx"])
@pytest.mark.filterwarnings("error")
def test_scales_too_far_apart_to_be_written_as_one(tmp_path: Path, name: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    saved = _changed(_save(_filled(model), "peft", tmp_path), lora_alpha=1e-30, alpha_pattern={"k_proj": 1e30})
    read = formats.load(model, saved)
    with pytest.raises(
        FeatherbackError, match="too much for a format with a single scale: k_proj of layer 0 overflows"
    ):
        _save(read, name, tmp_path)


@pytest.mark.parametrize("entry", ["target_modules", "rank_pattern"])
def test_names_are_not_compared_with_every_module(tmp_path: Path, entry: str) -> None:
    """A configuration of many names costs the same for a model of many modules."""
    names = [f"name{number}" for number in range(20_000)]
    listed = ["q_proj", *names] if entry == "target_modules" else dict.fromkeys(names, 4)
    calls = []
    for layers in (2, 8):
        folder = tmp_path / str(layers)
        folder.mkdir()
        model = models.load(write_tiny(folder / "m.gguf", replace(TINY_LLAMA, num_hidden_layers=layers)))
        saved = _changed(_save(_filled(model, targets="q"), "peft", folder), **{entry: listed})
        counted = 0

        def count(*_: Any) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            formats.form(model, saved)
        finally:
            sys.setprofile(None)
        calls.append(counted)
    assert calls[1] - calls[0] < len(names)


def test_ranks_that_would_take_memory_out_of_proportion(tmp_path: Path) -> None:
    """A hundred layers of the rank of one."""
    config = replace(TINY_LLAMA, num_hidden_layers=100)
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    tensors = {}
    for layer in range(100):
        rank = 3000 if layer == 7 else 1
        name = f"blk.{layer}.attn_q.weight"
        tensors |= {f"{name}.lora_a": (rank, 96), f"{name}.lora_b": (96, rank)}
    with pytest.raises(FeatherbackError, match="ranks that differ too much between layers"):
        formats.load(model, _gguf(tmp_path / "a.gguf", tensors))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c.update(fine_tune_type="dora"), "fine_tune_type is 'dora'"),
        (lambda c: c.update(fine_tune_type="full"), "fine_tune_type is 'full'"),
        (lambda c: c["lora_parameters"].update(scale=None), "has scale None; it must be a number from 1e-30"),
        (lambda c: c.pop("lora_parameters"), "it has no lora_parameters"),
    ],
)
def test_mlx_directories_that_are_no_lora(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    mlx.FORMAT.save(_filled(model), tmp_path / "mlx")
    file = tmp_path / "mlx" / mlx.CONFIG_FILE
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))
    with pytest.raises(FeatherbackError, match=re.escape(complaint)):
        formats.load(model, tmp_path / "mlx")


def test_mlx_tensors_that_do_not_fit(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    mlx.FORMAT.save(_filled(model), tmp_path / "mlx")
    file = tmp_path / "mlx" / mlx.WEIGHTS_FILE
    tensors = load_file(file)
    name = "model.layers.0.self_attn.q_proj.lora_a"
    save_file({n: np.ascontiguousarray(v.T) if n == name else v for n, v in tensors.items()}, file)
    with pytest.raises(FeatherbackError, match=re.escape(f"{name} has shape (4, 96); the shape for rank 1 is (96, 1)")):
        formats.load(model, tmp_path / "mlx")


def test_a_directory_of_two_adapters(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    for each in (peft.FORMAT, mlx.FORMAT):
        each.save(_filled(model), tmp_path / "both")
    with pytest.raises(FeatherbackError, match="holds adapters in several formats: an MLX directory"):
        formats.load(model, tmp_path / "both")


def test_the_oracle_adapter_goes_through_gguf(tmp_path: Path) -> None:
    """Random values of transformers' own names, for a model whose q and k rows are permuted in the file."""
    path = write_tiny(tmp_path / "m.gguf")
    model = models.load(path)
    state = random_adapter(reference_model(path), 4, model.family.projections, seed=3)
    adapter = LoRA(model, 4)
    adapter.load_state(state)
    read = formats.load(model, _save(adapter, "gguf", tmp_path)).state()
    for name, values in state.items():
        assert np.array_equal(read[name], values), name
