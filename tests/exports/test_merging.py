"""Merged models: their weights, the rounding, and that nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from peft import PeftModel

from featherback import models
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports.formats import check_out, peft
from featherback.exports.merged_gguf import MergedGGUF
from featherback.exports.merged_hf import MergedHF
from featherback.exports.merging import Merge, stored_type
from featherback.exports.report import merge_notes
from featherback.infer.decoder import Decoder
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from tests.support.oracle import random_adapter, reference_model
from tests.support.tiny_models import TINY_LLAMA, TINY_PHI3, TINY_WIDE, write_tiny

TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60]


def _filled(model: Model, size: float = 0.05, **options: Any) -> LoRA:
    adapter = LoRA(model, **{"rank": 4, "alpha": 12, **options})
    rng = np.random.default_rng(3)
    adapter.load_state(
        {name: rng.normal(0, size, shape).astype(np.float32) for name, shape in adapter.shapes().items()}
    )
    return adapter


def _weights(path: Path) -> dict[str, np.ndarray]:
    """Every tensor as float32, with the `gguf` package."""
    return {
        tensor.name: dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in GGUFReader(path).tensors
    }


def _updates(adapter: LoRA) -> dict[str, np.ndarray]:
    """scale B A of every adapted tensor of a GGUF llama, in the file's order, from the factors themselves."""
    found = {}
    for layer in range(adapter.parameters.layers):
        flat = np.empty(adapter.layer_size, np.float32)
        adapter.parameters.read(layer, flat)
        for target, values in adapter.layout.view(layer, flat).items():
            a, bt = values.values()
            name = adapter.model.family.gguf_names[target].format(layer)
            found[name] = adapter.form.kind.scale * bt.T.astype(np.float64) @ a.astype(np.float64)
    return found


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_merged_then_subtracted_is_the_update_within_the_error_told(tmp_path: Path, kind: str) -> None:
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType[kind])
    adapter = _filled(models.load(path))
    merged = MergedGGUF(adapter, TensorType[kind])
    merged.write(tmp_path / "merged.gguf")
    before, after, updates = _weights(path), _weights(tmp_path / "merged.gguf"), _updates(adapter)
    assert before.keys() == after.keys()
    assert len(updates) == 14
    error = sum(np.square(after[n] - before[n] - d).sum() for n, d in updates.items())
    whole = sum(np.square(before[n] + d).sum() for n, d in updates.items())
    size = sum(np.square(d).sum() for d in updates.values())
    kept = sum(((after[n] - before[n]) * d).sum() for n, d in updates.items())
    cost = merged.merge.cost
    assert cost.relative_error == pytest.approx(np.sqrt(error / whole), rel=1e-3, abs=1e-7)
    assert cost.relative_update == pytest.approx(np.sqrt(size / whole), rel=1e-4)
    assert cost.surviving == pytest.approx(kept / size, rel=1e-3)
    bound = {"F32": 1e-6, "F16": 5e-4, "BF16": 4e-3, "Q8_0": 8e-3, "Q5_0": 0.05, "Q5_1": 0.05}.get(kind, 0.1)
    assert cost.relative_error < bound
    assert 0.8 < cost.surviving < 1.2
    for name, values in before.items():
        if name not in updates:
            assert np.array_equal(values, after[name]), name


def test_the_merged_model_computes_what_model_and_adapter_do(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI3))
    adapter = _filled(model, targets="qkv,down")
    MergedGGUF(adapter, TensorType.F32).write(tmp_path / "merged.gguf")
    merged = models.load(tmp_path / "merged.gguf")
    theirs, ours, base = (
        Decoder(m, a, compute="fp32").forward(TOKENS, every=True)
        for m, a in ((merged, None), (model, adapter), (model, None))
    )
    np.testing.assert_allclose(theirs, ours, atol=2e-5)
    assert np.abs(ours - base).max() > 0.05


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_PHI3], ids=["llama", "phi3"])
def test_a_merged_dora_has_rows_of_its_lengths(tmp_path: Path, config: ModelConfig) -> None:
    path = write_tiny(tmp_path / "m.gguf", config)
    adapter = LoRA(models.load(path), 4, 12, dora=True)
    adapter.load_state(random_adapter(reference_model(path), 4, dora=True))
    merged = MergedGGUF(adapter, TensorType.F32)
    merged.write(tmp_path / "merged.gguf")
    before, after = _weights(path), _weights(tmp_path / "merged.gguf")
    flat = np.empty(adapter.layer_size, np.float32)
    size = whole = 0.0
    for layer in range(2):
        adapter.parameters.read(layer, flat)
        for target, values in adapter.layout.view(layer, flat).items():
            a, bt, m = values.values()
            name = adapter.model.family.gguf_names[target].format(layer)
            wanted = before[name] + 3.0 * bt.T.astype(np.float64) @ a
            wanted *= (m / np.linalg.norm(wanted, axis=1))[:, None]
            np.testing.assert_allclose(after[name], wanted, atol=1e-5)
            size += np.square(wanted - before[name]).sum()
            whole += np.square(wanted).sum()
    assert merged.merge.cost.relative_update == pytest.approx(np.sqrt(size / whole), rel=1e-4)
    theirs, ours = (
        Decoder(model, a, compute="fp32").forward(TOKENS, every=True)
        for model, a in ((models.load(tmp_path / "merged.gguf"), None), (adapter.model, adapter))
    )
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


def test_small_updates_do_not_survive_coarse_types(tmp_path: Path) -> None:
    """An update far below half a step of 4 bits is almost lost, and the figures show it; 32 bits keep all of it."""
    exact = models.load(write_tiny(tmp_path / "f32.gguf"))
    MergedGGUF(LoRA(exact), TensorType.Q4_0).write(tmp_path / "m.gguf")
    model = models.load(tmp_path / "m.gguf")
    surviving = {}
    for kind in (TensorType.Q4_0, TensorType.F32):
        merged = MergedGGUF(_filled(model, 2e-3), kind)
        merged.write(tmp_path / "merged.gguf")
        surviving[kind] = merged.merge.cost.surviving
    assert 0 <= surviving[TensorType.Q4_0] < 0.2
    assert surviving[TensorType.F32] == pytest.approx(1, abs=1e-3)


def test_metadata_and_what_is_not_adapted_are_copied_byte_for_byte(tmp_path: Path) -> None:
    words = ["a", "b" * 300, "\u00e9"]
    metadata: Mapping[str, Any] = {
        "general.alignment": np.uint32(64),
        "general.file_type": np.uint32(15),
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": np.array([1.5, 2.5], np.float32),
        "split.count": np.uint16(1),
    }
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.Q4_0, metadata=metadata, alignment=64)
    adapter = _filled(models.load(path), targets="v")
    MergedGGUF(adapter).write(tmp_path / "merged.gguf")
    base, merged = GGUFFile(path), GGUFFile(tmp_path / "merged.gguf")
    assert list(merged.keys) == [key for key in base.keys if key != "split.count"]
    for key in merged.keys:
        assert bytes(merged.value(key)) == bytes(base.value(key)), key
    assert merged.array("tokenizer.ggml.tokens") == words
    assert all(info.offset % 64 == 0 for info in merged.tensors.values())
    changed = set()
    for name, info in base.tensors.items():
        assert merged.tensors[name].type == info.type
        if not np.array_equal(base.data(name), merged.data(name)):
            changed.add(name)
    assert changed == {"blk.0.attn_v.weight", "blk.1.attn_v.weight"}
    names = [tensor.name for tensor in GGUFReader(tmp_path / "merged.gguf").tensors]
    assert names == list(base.tensors)


def test_the_file_type_is_that_of_most_weights(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.Q4_0, metadata={"general.file_type": np.uint32(2)})
    MergedGGUF(_filled(models.load(path)), TensorType.F16).write(tmp_path / "merged.gguf")
    assert GGUFFile(tmp_path / "merged.gguf").metadata["general.file_type"] == 1


def test_types_that_cannot_be_written_become_finer_ones(tmp_path: Path) -> None:
    types = {"": TensorType.Q4_K, "down_proj": TensorType.Q6_K, "v_proj": TensorType.Q8_0}
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_WIDE, types))
    merged = MergedGGUF(_filled(model))
    merged.write(tmp_path / "merged.gguf")
    assert merged.merge.unwritable == {TensorType.Q4_K: TensorType.Q8_0, TensorType.Q6_K: TensorType.Q8_0}
    assert merged.types == {TensorType.Q8_0: 14}
    narrow = replace(TINY_LLAMA, intermediate_size=168)  # no row of 168 fills blocks of 32
    matrix = models.load(write_tiny(tmp_path / "n.gguf", narrow, TensorType.F16)).layer(0).matrices["down_proj"]
    assert stored_type(matrix, TensorType.Q8_0) is TensorType.F16


def test_values_that_a_type_cannot_hold(tmp_path: Path) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.F32))
    with pytest.raises(FeatherbackError, match="layer 0 has a value that F16 cannot hold; choose --type bf16"):
        MergedGGUF(_filled(model, 300.0), TensorType.F16).write(tmp_path / "merged.gguf")
    assert not [entry for entry in tmp_path.iterdir() if "merged" in entry.name]


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.filterwarnings("error")
def test_an_update_that_is_not_finite_is_refused_without_a_warning(tmp_path: Path, dora: bool) -> None:
    adapter = _filled(models.load(write_tiny(tmp_path / "m.gguf")), 1e25, dora=dora)
    with pytest.raises(FeatherbackError, match="has a value that F32 cannot hold"):
        MergedGGUF(adapter, TensorType.F32).write(tmp_path / "merged.gguf")


def test_rows_are_merged_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few: the same bytes, each row once."""
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.Q4_0))
    adapter = _filled(model)
    whole = b"".join(Merge(adapter).chunks((1, "q_proj"), TensorType.Q4_0))
    monkeypatch.setattr("featherback.models.streams.VALUES", 96 * 5)
    parts = list(Merge(adapter).chunks((1, "q_proj"), TensorType.Q4_0))
    assert len(parts) == 20
    assert b"".join(parts) == whole


def test_files_of_any_length_beside_the_weights_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference_model(write_tiny(tmp_path / "m.gguf")).save_pretrained(str(tmp_path / "base"))
    with (tmp_path / "base" / "tokenizer.json").open("wb") as file:
        file.truncate(300 << 20)
    taken = []
    monkeypatch.setattr(
        shutil, "copyfileobj", lambda source, _, piece: taken.append((os.fstat(source.fileno()).st_size, piece))
    )
    MergedHF(_filled(models.load(tmp_path / "base"))).write(tmp_path / "merged")
    assert (300 << 20, 1 << 20) in taken


def test_only_the_files_of_a_model_are_copied_and_through_no_link_out_of_its_folder(tmp_path: Path) -> None:
    """Except in Hugging Face's cache, whose links lead to the repository's folder of files."""
    base, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    reference_model(write_tiny(tmp_path / "m.gguf")).save_pretrained(str(base))
    blobs.mkdir()
    (blobs / "1").write_text("words")
    (tmp_path / "secret").write_text("secret")
    (base / "tokenizer.json").symlink_to("../../blobs/1")
    (base / "LICENSE").symlink_to("../../blobs/1")
    (base / "notes.txt").symlink_to(tmp_path / "secret")
    (base / ".env").write_text("secret")
    adapter = _filled(models.load(base))
    MergedHF(adapter).write(tmp_path / "merged")
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert {"config.json", "tokenizer.json", "LICENSE", "model.safetensors"} <= names
    assert not names & {"notes.txt", ".env"}
    (base / "NOTICE").symlink_to("../../secret")
    with pytest.raises(FeatherbackError, match=r"NOTICE is a link to .*secret, outside its folder"):
        MergedHF(adapter).write(tmp_path / "other")
    assert not (tmp_path / "other" / "NOTICE").exists()


def test_the_base_is_not_written_over(tmp_path: Path) -> None:
    """The base model is never replaced: neither the folder nor a file in it, not even with --force."""
    reference_model(write_tiny(tmp_path / "m.gguf")).save_pretrained(str(tmp_path / "base"))
    model = models.load(tmp_path / "base")
    for out in (tmp_path / "base", tmp_path / "base" / "model.safetensors"):
        with pytest.raises(FeatherbackError, match="is the base model itself; choose another --out"):
            check_out(peft.FORMAT, out, tmp_path / "adapter", model, force=True)


def test_a_hugging_face_folder_stays_one(tmp_path: Path) -> None:
    """Shards, other files and types stay; transformers computes the same as PEFT with base model and adapter."""
    reference = reference_model(write_tiny(tmp_path / "m.gguf", TINY_LLAMA))
    reference.to(torch.bfloat16).save_pretrained(str(tmp_path / "base"), max_shard_size="150KB")
    (tmp_path / "base" / "LICENSE.txt").write_text("kept")
    model = models.load(tmp_path / "base")
    shards = sorted(path.name for path in (tmp_path / "base").glob("*.safetensors"))
    assert len(shards) > 1
    adapter = _filled(model)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").touch()
    with pytest.raises(FeatherbackError, match=r"holds other weights \(model.safetensors\)"):
        MergedHF(adapter).write(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["model.safetensors"]
    merged = MergedHF(adapter)
    merged.write(tmp_path / "merged")
    assert sorted(path.name for path in (tmp_path / "merged").glob("*.safetensors")) == shards
    assert (tmp_path / "merged" / "LICENSE.txt").read_text() == "kept"
    assert merged.types == {TensorType.BF16: 14}
    assert merged.merge.cost.relative_error < 4e-3
    peft.FORMAT.save(adapter, tmp_path / "adapter")
    with torch.no_grad():
        ids = torch.tensor([TOKENS])
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(str(tmp_path / "base"), dtype=torch.float32)
        alone = base(input_ids=ids).logits
        wanted = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))(input_ids=ids).logits
        found = AutoModelForCausalLM.from_pretrained(str(tmp_path / "merged"), dtype=torch.float32)(
            input_ids=ids
        ).logits
    assert (wanted - alone).abs().max() > 0.1
    assert (found - wanted).norm() < 0.02 * (wanted - alone).norm() + 0.01 * wanted.norm()
    with pytest.raises(FeatherbackError, match="--type is q8_0; a Hugging Face folder can hold one of: f32, f16, bf16"):
        MergedHF(adapter, TensorType.Q8_0)


@pytest.mark.parametrize(("kind", "named"), [(None, "bfloat16"), (TensorType.F32, "float32")])
def test_the_configuration_names_a_type_that_holds_the_weights(
    tmp_path: Path, kind: TensorType | None, named: str
) -> None:
    """transformers would round the weights to the type in config.json."""
    reference = reference_model(write_tiny(tmp_path / "m.gguf", TINY_LLAMA))
    reference.to(torch.bfloat16).save_pretrained(str(tmp_path / "base"))
    MergedHF(_filled(models.load(tmp_path / "base")), kind).write(tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "config.json").read_bytes())
    assert {config[key] for key in ("dtype", "torch_dtype") if key in config} == {named}
    assert config.keys() == json.loads((tmp_path / "base" / "config.json").read_bytes()).keys()


def _coarse(path: Path, kind: TensorType) -> Model:
    """A tiny model whose weights are exactly on the grid of `kind`."""
    write_tiny(path.with_name("f32.gguf"), TINY_LLAMA, TensorType.F32)
    MergedGGUF(LoRA(models.load(path.with_name("f32.gguf"))), kind).write(path)
    return models.load(path)


@pytest.mark.parametrize(
    ("base", "size", "chosen"),
    [
        (TensorType.Q4_0, 0.005, {TensorType.Q8_0, TensorType.F16}),  # a small part of a step of 4 bits
        (TensorType.Q8_0, 0.006, {TensorType.F16}),
        (TensorType.BF16, 0.0005, {TensorType.F16, TensorType.F32}),
        (TensorType.F32, 0.005, {TensorType.F32}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_merge_keeps_the_update_unless_a_type_is_named(
    tmp_path: Path, base: TensorType, size: float, chosen: set[TensorType]
) -> None:
    adapter = _filled(_coarse(tmp_path / "m.gguf", base), size)
    merged = MergedGGUF(adapter)
    merged.write(tmp_path / "merged.gguf")
    assert set(merged.types) <= chosen
    assert 0.99 <= merged.merge.cost.surviving <= 1.01
    before, after, updates = (_weights(tmp_path / "m.gguf"), _weights(tmp_path / "merged.gguf"), _updates(adapter))
    kept = sum(((after[n] - before[n]) * d).sum() for n, d in updates.items())
    assert 0.99 <= kept / sum(np.square(d).sum() for d in updates.values()) <= 1.01
    named = MergedGGUF(adapter, base)
    named.write(tmp_path / "named.gguf")
    assert set(named.types) == {base}
    if base is not TensorType.F32:
        assert named.merge.cost.surviving < 0.99
        assert abs(merged.merge.own_cost.surviving - named.merge.cost.surviving) < 0.1
        notes = merge_notes(merged)
        assert any(f" instead of {base.name} in " in note and "The merged weights take " in note for note in notes)
        assert any("to keep 99% of it, remove --type" in note for note in merge_notes(named))


def test_each_matrix_has_the_coarsest_type_that_will_do(tmp_path: Path) -> None:
    """If the update is large, the base model's own type is kept."""
    model = _coarse(tmp_path / "m.gguf", TensorType.Q8_0)
    adapter = _filled(model, 0.003, targets="q,v")
    state = adapter.state()
    adapter.load_state({n: v * (300 if ".layers.0.self_attn.v" in n else 1) for n, v in state.items()})
    merged = MergedGGUF(adapter)
    merged.write(tmp_path / "merged.gguf")
    assert merged.types == {TensorType.F16: 3, TensorType.Q8_0: 1}
    assert 0.99 <= merged.merge.cost.surviving <= 1.01


def test_a_folder_keeps_the_update_too(tmp_path: Path) -> None:
    """config.json then names the finer type."""
    reference_model(write_tiny(tmp_path / "m.gguf")).to(torch.bfloat16).save_pretrained(str(tmp_path / "base"))
    merged = MergedHF(_filled(models.load(tmp_path / "base"), 0.0005))
    merged.write(tmp_path / "merged")
    assert TensorType.BF16 not in merged.types
    assert 0.99 <= merged.merge.cost.surviving <= 1.01
    config = json.loads((tmp_path / "merged" / "config.json").read_bytes())
    assert {config[key] for key in ("dtype", "torch_dtype") if key in config} == {"float32"}
