"""--quantize: the matrices equal those of the `gguf` package and are converted once; all other tensors stay."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import featherback as fb
from featherback.core import files
from featherback.engine.formats import fingerprint
from featherback.engine.formats.safetensors import SafetensorsFolder
from featherback.engine.formats.store import matrix as stored_matrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.models import Model, ModelConfig, converted, load
from featherback.models.streams import copied, floats_of, quantized
from tests.models.test_hf_folder import folder_and_gguf
from tests.support.tiny_models import TINY_GEMMA2, TINY_LLAMA, TINY_PHI3, TINY_QWEN2, tiny

TOKENS = [1, 5, 9, 2, 77, 31, 8, 100, 4, 4, 60]
CASES = {
    "llama": (TINY_LLAMA, "F32"),
    "qwen2, bf16": (TINY_QWEN2, "BF16"),
    "phi3, f16": (TINY_PHI3, "F16"),
    "gemma2, bf16": (TINY_GEMMA2, "BF16"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEATHERBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("featherback.models.streams.VALUES", 96 * 5)  # a few rows at a time
    return tmp_path / "cache" / "weights"


def made_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.gguf"))


@pytest.mark.parametrize("label", converted.QUANTIZE)
@pytest.mark.parametrize(("config", "dtype"), CASES.values(), ids=CASES)
def test_matrices_are_those_of_the_gguf_package(tmp_path: Path, config: ModelConfig, dtype: str, label: str) -> None:
    folder, _ = folder_and_gguf(tmp_path, config, dtype, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    kind = gguf.GGMLQuantizationType[label.upper()]
    plain, ours = load(folder), load(folder, label)
    tensors = {}
    for part in folder.glob("*.safetensors"):
        tensors |= load_file(part)

    def same(model: Model, name: str, matrix: object) -> None:
        values = tensors[name].float().numpy()
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert np.array_equal(floats_of(matrix), expected), name  # type: ignore[arg-type]

    for layer in range(config.num_hidden_layers):
        for part, matrix in ours.layer(layer).matrices.items():
            assert matrix.type.name == label.upper()
            same(ours, ours.naming.tensors[part].format(layer), matrix)
        for part, vector in plain.layer(layer).vectors.items():
            assert np.array_equal(ours.layer(layer).vectors[part], vector), part
    same(ours, ours.naming.tensors["embed_tokens"], ours.embed_tokens)
    if not config.tie_word_embeddings:
        same(ours, ours.naming.tensors["lm_head"], ours.head.weight)
    assert np.array_equal(ours.head.norm, plain.head.norm)
    assert (ours.path, ours.source, ours.quantize) == (folder, "hf", label)
    assert not ours.config.rope_interleaved


def test_rows_that_fill_no_blocks_stay_as_they_are(tmp_path: Path) -> None:
    folder, _ = folder_and_gguf(tmp_path, tiny(intermediate_size=72), "BF16")
    types = {part: matrix.type.name for part, matrix in load(folder, "q4_0").layer(0).matrices.items()}
    assert types.pop("down_proj") == "BF16"
    assert set(types.values()) == {"Q4_0"}


def test_it_is_made_once_and_known_by_its_contents(tmp_path: Path, cache: Path) -> None:
    folder, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    load(folder, "q4_0").close()
    (file,) = made_files(cache)
    inode = file.stat().st_ino
    (tmp_path / "elsewhere").mkdir()
    again = Path(shutil.copytree(folder, tmp_path / "elsewhere" / folder.name))
    for same in (folder, again):
        load(same, "q4_0").close()
        assert [path.stat().st_ino for path in made_files(cache)] == [inode]
    load(folder, "q8_0").close()
    assert len(made_files(cache)) == 2
    tensors = load_file(again / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"][0, 0] += 1
    save_file(tensors, again / "model.safetensors", {"format": "pt"})
    load(again, "q4_0").close()
    assert len(made_files(cache)) == 3


def test_a_damaged_file_is_made_anew(tmp_path: Path, cache: Path) -> None:
    folder, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    before = fingerprint.of_store(load(folder, "q4_0").store)
    (file,) = made_files(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1000])
    (cache / f".{file.name}.1-0123456789abcdef.tmp").write_bytes(b"left by a killed process")
    assert fingerprint.of_store(load(folder, "q4_0").store) == before
    assert file.read_bytes() == whole
    assert not list(cache.glob("*.tmp"))


def test_what_does_not_work_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    with monkeypatch.context() as context:
        context.setattr(files.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 10**4))  # type: ignore[attr-defined]
        with pytest.raises(FeatherbackError, match=r"The disk of .*weights has 0.0 MB free, but .*-q4_0\.gguf needs"):
            load(folder, "q4_0")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        FeatherbackError, match=r"Tensor model\.layers\.1\.mlp\.up_proj\.weight of .* holds a value that Q4_0 cannot"
    ):
        load(folder, "q4_0")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 1e9
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(FeatherbackError, match="holds a value that Q8_0 cannot represent; remove --quantize"):
        load(folder, "q8_0")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(FeatherbackError, match=r"up_proj.weight .* is missing"):
        load(folder, "q8_0")
    assert not [path for path in cache.iterdir() if path.name != ".lock"]


def test_what_cannot_be_quantised(tmp_path: Path) -> None:
    folder, file = folder_and_gguf(tmp_path, TINY_LLAMA)
    with pytest.raises(FeatherbackError, match="is a GGUF file, whose weights are used as they are; remove --quantize"):
        load(file, "q4_0")
    with pytest.raises(FeatherbackError, match="--quantize is 'q5_k'; expected one of: none, q4_0, q8_0"):
        load(folder, "q5_k")


def test_a_run_names_the_folder_and_is_resumed_as_it_was(tmp_path: Path, cache: Path) -> None:
    """The adapter's base is the folder. Resuming takes the same weights, and needs them no longer in the cache."""
    folder, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    sizes = {"seq_len": 16, "rank": 2, "progress": False, "schedule": "constant", "warmup": 0}
    half = fb.train(folder, [TOKENS] * 4, tmp_path / "half", steps=2, quantize="q4_0", keep_checkpoints=True, **sizes)  # type: ignore[arg-type]
    configuration = json.loads((half.path / "adapter_config.json").read_text())
    assert configuration["base_model_name_or_path"] == str(folder)
    plain = fb.train(folder, [TOKENS] * 4, tmp_path / "plain", steps=2, **sizes)  # type: ignore[arg-type]
    assert weights(plain.path) != weights(half.path)
    shutil.copytree(half.path, tmp_path / "twin")  # of the same plan, whatever the machine's memory is by then
    twin = fb.train(folder, [TOKENS] * 4, tmp_path / "twin", steps=4, resume=True, progress=False)
    for file in made_files(cache):
        file.unlink()
    half = fb.train(folder, [TOKENS] * 4, tmp_path / "half", steps=4, resume=True, progress=False)
    assert weights(half.path) == weights(twin.path) != weights(plain.path)
    with pytest.raises(FeatherbackError, match=r"--quantize was q4_0, not none|was started with another model"):
        fb.train(folder, [TOKENS] * 4, tmp_path / "half", steps=6, resume=True, quantize="none", progress=False)


def weights(run: Path) -> bytes:
    return (run / "adapter_model.safetensors").read_bytes()


def test_a_model_given_open_says_what_it_is(tmp_path: Path) -> None:
    folder, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    model = load(folder, "q8_0")
    run = fb.train(model, [TOKENS] * 4, tmp_path / "run", steps=1, seq_len=16, rank=2, progress=False)
    assert json.loads((run.path / "run.json").read_text())["configuration"]["quantize"] == "q8_0"
    with pytest.raises(FeatherbackError, match="was loaded with quantize='q8_0', not 'q4_0'"):
        fb.plan(model, quantize="q4_0")


def test_matrices_lie_in_the_order_in_which_they_are_used(tmp_path: Path) -> None:
    """So that a layer is read in one piece."""
    folder, _ = folder_and_gguf(tmp_path, TINY_QWEN2)
    model = load(folder, "q4_0")
    offsets = [matrix.offset for layer in range(2) for matrix in model.layer(layer).matrices.values()]
    assert len(offsets) == 14
    first, second = offsets[:7], offsets[7:]
    assert max(first) < min(second)
    assert model.layer(0).matrices["q_proj"].type is TensorType.Q4_0


def test_a_large_matrix_is_given_back_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages of the file are unmapped, because touching the next rows may map two megabytes around them."""
    monkeypatch.setattr("featherback.models.streams.PIECE", 8192)
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.randn(50, 96), "last": torch.randn(3)}, path)
    store = SafetensorsFolder(tmp_path)
    dropped: list[int] = []
    monkeypatch.setattr("featherback.engine.kernels.drop_pages", lambda view: dropped.append(view.nbytes))
    blocks = len(list(quantized(stored_matrix(store, "w"), TensorType.Q4_0, "w")))
    pieces = len(list(copied(store.data("w"))))
    assert (blocks, pieces) == (10, 3)
    assert dropped == [path.stat().st_size] * (blocks + pieces)


def test_converted_weights_are_their_owners_alone(tmp_path: Path, cache: Path) -> None:
    """The cache's folder becomes private, because the model may have been trained on private text."""
    folder = cache
    folder.mkdir(parents=True, mode=0o755)
    hf, _ = folder_and_gguf(tmp_path, TINY_LLAMA)
    load(hf, "q8_0").close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
