import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from featherback.engine.formats.safetensors import SafetensorsFile, SafetensorsFolder
from featherback.engine.formats.store import floats
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError


def sample(path: Path) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(7, generator=generator).half(),
        "c": torch.randn(2, 3, generator=generator).bfloat16(),
    }
    save_file(tensors, path, {"format": "pt"})
    return tensors


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = sample(tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.metadata == {"format": "pt"}
    assert {n: i.type for n, i in file.tensors.items()} == {
        "a": TensorType.F32,
        "b": TensorType.F16,
        "c": TensorType.BF16,
    }
    for name, tensor in tensors.items():
        assert file.tensors[name].shape == tuple(tensor.shape)
        assert np.array_equal(floats(file, name), tensor.float().numpy())
    view = file.data("a")
    file.close()
    assert np.array_equal(view.view(np.float32).reshape(3, 5), tensors["a"].numpy())


def made(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BAD = {
    "empty": (b"", "is empty"),
    "short": (b"abc", "header has|truncated"),
    "GGUF": (b"GGUF" + bytes(40), "header has 1179993927 bytes"),
    "huge header": (made({}, length=2**40), "header has 1099511627776 bytes"),
    "cut header": (made({}, length=99), "truncated"),
    "not JSON": (made(b"{'a'}"), "not JSON"),
    "not text": (made(b"\xff\xff"), "not JSON"),
    "deep": (made(b"[" * 100_000), "not JSON"),
    "list": (made([1]), "not a JSON object"),
    "no dtype": (made({"t": {"shape": [1], "data_offsets": [0, 4]}}), "malformed entry of the tensor 't'"),
    "no object": (made({"t": 3}), "malformed"),
    "shape": (made(entry(shape="ab")), "malformed"),
    "negative": (made(entry(shape=[-2])), "malformed"),
    "true": (made(entry(shape=[True])), "malformed"),
    "real": (made(entry(offsets=[0, 8.0])), "malformed"),
    "offsets": (made(entry(offsets=[0, 8, 9])), "malformed"),
    "dtype list": (made(entry(dtype=["F32"])), "malformed"),
    "type": (made(entry(dtype="I32"), bytes(8)), "Tensor 't' .* type 'I32'"),
    "size": (made(entry(offsets=[0, 4]), bytes(8)), "4 bytes, which do not fit its shape"),
    "backwards": (made(entry(offsets=[8, 0]), bytes(8)), "-8 bytes, which do not fit"),
    "cut": (made(entry(), bytes(7)), "truncated: tensor 't' ends"),
    "overlap": (made(entry() | {"u": entry(offsets=[4, 12])["t"]}, bytes(12)), "the tensor 'u' overlaps another"),
    "same": (made(entry() | {"u": entry()["t"]}, bytes(8)), "the tensor 'u' overlaps another"),
    "far": (made(entry(shape=[2**62, 2**62], offsets=[0, 2**126]), bytes(7)), "truncated"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    content, message = BAD[case]
    path = tmp_path / "made.safetensors"
    path.write_bytes(content)
    with pytest.raises(FeatherbackError, match=message) as caught:
        SafetensorsFile(path)
    assert "\n" not in str(caught.value)
    assert "made.safetensors" in str(caught.value)


def test_random_damage(tmp_path: Path) -> None:
    sample(tmp_path / "x.safetensors")
    good, path = (tmp_path / "x.safetensors").read_bytes(), tmp_path / "damaged.safetensors"
    rng, refused = np.random.default_rng(0), 0
    for _ in range(1000):
        data = bytearray(good[: rng.integers(len(good) // 2, len(good) + 1)])
        data[rng.integers(min(len(data), 300))] = rng.integers(256)
        path.write_bytes(data)
        try:
            SafetensorsFile(path).close()
        except FeatherbackError:
            refused += 1
    assert refused > 500


def test_folder_in_parts(tmp_path: Path) -> None:
    sample(tmp_path / "one.safetensors")
    save_file({"d": torch.ones(4)}, tmp_path / "two.safetensors")
    weight_map = dict.fromkeys("abc", "one.safetensors") | {"d": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    folder = SafetensorsFolder(tmp_path)
    assert folder.tensors.keys() == set("abcd")
    assert floats(folder, "d").tolist() == [1, 1, 1, 1]
    folder.close()


def test_a_tensor_that_two_parts_hold(tmp_path: Path) -> None:
    sample(tmp_path / "one.safetensors")
    save_file({"b": torch.ones(7), "d": torch.ones(4)}, tmp_path / "two.safetensors")
    weight_map = dict.fromkeys("abc", "one.safetensors") | {"d": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(FeatherbackError, match=r"one.safetensors and .*two.safetensors both hold the tensor 'b'"):
        SafetensorsFolder(tmp_path)


BAD_INDEX = {
    "none": (None, "neither model.safetensors nor model.safetensors.index.json"),
    "not JSON": ("{", "not valid JSON"),
    "list": ("[]", "has no weight_map"),
    "empty": ('{"weight_map": {}}', "has no weight_map"),
    "elsewhere": ('{"weight_map": {"a": "../secret.safetensors"}}', "not the name of a file in that folder"),
    "number": ('{"weight_map": {"a": 3}}', "lists 3"),
    "lists": ('{"weight_map": {"a": ["x"]}}', "lists"),
    "missing part": ('{"weight_map": {"a": "gone.safetensors"}}', "Cannot read .*gone.safetensors"),
}


@pytest.mark.parametrize("case", BAD_INDEX)
def test_bad_folders(tmp_path: Path, case: str) -> None:
    index, message = BAD_INDEX[case]
    if index is not None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(FeatherbackError, match=message):
        SafetensorsFolder(tmp_path)
