from pathlib import Path

import gguf
import numpy as np
import pytest

from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor, Value, tensor_of_array, tensor_of_bytes, write_gguf

METADATA: dict[str, Value] = {
    "general.architecture": "llama",
    "text": "żółw 🐢",
    "empty": "",
    "yes": True,
    "small": 7,
    "large": 1 << 40,
    "negative": -3,
    "real": 0.5,
    "wide": np.float64(0.1),
    "byte": np.uint8(200),
    "words": ["a", "", "Ġthe", "日本"],
    "numbers": np.array([3, -1, 2], np.int32),
    "reals": np.array([0.5, 2], np.float32),
}


def sample(path: Path) -> Path:
    rng = np.random.default_rng(0)
    tensors = [
        tensor_of_array("a.weight", rng.standard_normal((3, 64)), TensorType.Q4_0),
        tensor_of_array("norm", np.arange(5.0)),  # 20 bytes: the next tensor needs padding
        tensor_of_bytes("b.weight", TensorType.Q6_K, (2, 256), rng.bytes(420)),
    ]
    write_gguf(path, METADATA, tensors)
    return path


def test_the_gguf_package_reads_what_was_written(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    reader = gguf.GGUFReader(path)
    read = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert read.keys() == METADATA.keys()
    for key, value in METADATA.items():
        assert read[key] == (value.tolist() if isinstance(value, np.ndarray) else value), key
    ours = GGUFFile(path)
    for tensor in reader.tensors:
        info = ours.tensors[tensor.name]
        assert (info.shape, info.type.name) == (tuple(map(int, tensor.shape[::-1])), tensor.tensor_type.name)
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert ours.data(tensor.name).tobytes() == tensor.data.tobytes()


def test_streams_are_written_in_order(tmp_path: Path) -> None:
    pieces = [b"ab" * 8, b"", bytearray(b"cd" * 8), memoryview(bytes(8))]
    write_gguf(tmp_path / "a.gguf", {}, [OutTensor("t", TensorType.F32, (2, 5), lambda: pieces)])
    assert GGUFFile(tmp_path / "a.gguf").data("t").tobytes() == b"ab" * 8 + b"cd" * 8 + bytes(8)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = sample(tmp_path / "a.gguf")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="tensor t needs 40 bytes, not 4"):
        write_gguf(path, {}, [OutTensor("t", TensorType.F32, (2, 5), lambda: [b"abcd"])])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
