import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.engine.formats.test_writer import METADATA, sample
from tests.support.systems import NO_FILE

from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.store import floats, matrix
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import OutTensor, tensor_of_array, write_gguf
from featherback.errors import FeatherbackError


def header(version: int = 3, tensors: int = 0, pairs: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, offset)


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "made.gguf"
    path.write_bytes(content)
    return GGUFFile(path)


def test_metadata_and_arrays(tmp_path: Path) -> None:
    file = GGUFFile(sample(tmp_path / "a.gguf"))
    for key, value in METADATA.items():
        if isinstance(value, (list, np.ndarray)):
            assert key not in file.metadata
            assert file.arrays[key].count == len(value)
            assert np.array_equal(file.array(key), value)
        else:
            assert file.metadata[key] == value
    assert isinstance(file.array("words"), list)
    assert file.array("numbers").dtype == np.int32  # type: ignore[union-attr]
    with pytest.raises(KeyError):
        file.array("small")


def test_data_is_a_read_only_view_that_survives_close(tmp_path: Path) -> None:
    file = GGUFFile(sample(tmp_path / "a.gguf"))
    data = file.data("norm")
    assert data.dtype == np.uint8
    assert data.base is not None
    assert not data.flags.writeable
    file.close()
    assert np.array_equal(data.view(np.float32), np.arange(5))


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.BF16])
def test_floats_is_float32_whatever_is_stored(tmp_path: Path, kind: TensorType) -> None:
    values = np.array([0.5, -1.25, 3.0, 0.0], np.float32)  # exact in every format
    write_gguf(tmp_path / "a.gguf", {}, [tensor_of_array("v", values, kind)])
    read = floats(GGUFFile(tmp_path / "a.gguf"), "v")
    assert read.dtype == np.float32
    assert np.array_equal(read, values)


def test_floats_must_not_be_quantised(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", {}, [tensor_of_array("v", np.zeros(32), TensorType.Q8_0)])
    with pytest.raises(FeatherbackError, match=r"Tensor v .* stored as Q8_0"):
        floats(GGUFFile(tmp_path / "a.gguf"), "v")


def test_matrix(tmp_path: Path) -> None:
    file = GGUFFile(sample(tmp_path / "a.gguf"))
    taken = matrix(file, "a.weight")
    assert (taken.shape, taken.type, taken.row_bytes, taken.nbytes) == ((3, 64), TensorType.Q4_0, 36, 108)
    assert np.shares_memory(taken.data, file.data("a.weight"))


BAD = {
    "not a GGUF": (b"GGML" + bytes(40), "is not a GGUF file"),
    "a pointer of Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
    "a web page": (b"\n<!DOCTYPE html><html>", "is a web page, not the file itself"),
    "empty": (b"", "is empty"),
    "only the magic": (b"GGUF", "truncated"),
    "version 1": (header(1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "missing metadata": (header(pairs=1), "truncated"),
    "endless count": (header(pairs=2**63), "9223372036854775808 keys"),
    "endless tensors": (header(tensors=2**63), "9223372036854775808 tensors"),
    "long name": (header(pairs=1) + struct.pack("<Q", 2**62), "truncated"),
    "value type": (header(pairs=1) + text("k") + struct.pack("<I", 13), "value type 13"),
    "nested array": (header(pairs=1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "array of value type 9"),
    "endless array": (header(pairs=1) + text("k") + struct.pack("<IIQ", 9, 5, 2**62), "truncated"),
    "endless words": (header(pairs=1) + text("k") + struct.pack("<IIQ", 9, 8, 2**62), "truncated"),
    "long word": (header(pairs=1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 2**63), "truncated"),
    "twice a key": (header(pairs=2) + (text("k") + struct.pack("<II", 4, 1)) * 2, "'k' occurs twice"),
    "bad name": (header(pairs=1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(12), "not UTF-8"),
    "alignment": (header(pairs=1) + text("general.alignment") + struct.pack("<II", 4, 48), "alignment is 48"),
    "dimensions": (header(tensors=1) + entry("t", (1,) * 5, 0, 0) + bytes(64), "5 dimensions"),
    "no dimension": (header(tensors=1) + entry("t", (), 0, 0) + bytes(64), "0 dimensions"),
    "empty tensor": (header(tensors=1) + entry("t", (0, 4), 0, 0) + bytes(64), "tensor 't' is empty"),
    "type": (header(tensors=1) + entry("t", (256,), 29, 0) + bytes(999), r"Tensor 't' .* type IQ1_M"),
    "new type": (header(tensors=1) + entry("t", (256,), 99, 0) + bytes(999), "Tensor 't' .* ggml id 99"),
    "half a block": (header(tensors=1) + entry("t", (3, 48), 2, 0) + bytes(999), "rows of 48"),
    "unaligned": (header(tensors=1) + entry("t", (4,), 0, 8) + bytes(99), "'t' starts at an unaligned"),
    "past the end": (header(tensors=1) + entry("t", (99,), 0, 0) + bytes(99), "truncated: tensor 't' ends"),
    "far past the end": (header(tensors=1) + entry("t", (2**63, 2**63), 0, 0) + bytes(99), "truncated"),
    "twice a tensor": (
        header(tensors=2) + entry("t", (1,), 0, 0) + entry("t", (1,), 0, 32) + bytes(99),
        "'t' occurs twice",
    ),
    "overlap": (header(tensors=2) + entry("t", (9,), 0, 0) + entry("u", (1,), 0, 32) + bytes(99), "'u' overlaps"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(FeatherbackError, match=message) as caught:
        opened(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert "made.gguf" in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FeatherbackError, match=NO_FILE):
        GGUFFile(tmp_path / "none.gguf")
    with pytest.raises(FeatherbackError, match="Is a directory"):
        GGUFFile(tmp_path)


def test_version_2_and_another_alignment(tmp_path: Path) -> None:
    body = text("general.alignment") + struct.pack("<II", 4, 64) + entry("t", (2,), 0, 64)
    content = header(2, tensors=1, pairs=1) + body
    content += bytes(-len(content) % 64) + bytes(64) + np.array([1, 2], "<f4").tobytes()
    assert floats(opened(tmp_path, content), "t").tolist() == [1, 2]


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a header like Qwen's: 150,000 tokens and as many merges."""
    path = tmp_path_factory.mktemp("gguf") / "vocabulary.gguf"
    words = [f"Ġtoken{i:06d}" for i in range(150_000)]
    write_gguf(path, {"tokens": words, "merges": [f"{w[:5]} {w[5:]}" for w in words], "last": 1}, [])
    return path


def test_a_large_vocabulary_makes_no_objects(large_vocabulary: Path) -> None:
    tracemalloc.start()
    file = GGUFFile(large_vocabulary)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
    assert file.metadata == {"last": 1}
    assert file.array("tokens")[149_999] == "Ġtoken149999"


@pytest.mark.memory_figures
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_vocabulary_stays_out_of_memory(large_vocabulary: Path) -> None:
    program = f"""
from featherback.engine.formats.gguf import GGUFFile
from tests.support.systems import NO_FILE
def read(key): return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith(key))
before = [read(key) for key in ("VmHWM:", "VmRSS:", "RssAnon:")]
file = GGUFFile({str(large_vocabulary)!r})
print(*(read(key) - b for key, b in zip(("VmHWM:", "VmRSS:", "RssAnon:"), before)))
"""
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    peak, after, anonymous = map(int, out.stdout.split())  # KiB more than before opening
    assert peak < 10_000  # the header's own pages, 7 MB
    assert after < 1_000  # and they are freed again
    assert anonymous < 1_000


@pytest.mark.full("the real model; tiny files and the package's types stand for it")
def test_real_model_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    reader, file = gguf.GGUFReader(smollm2_path), GGUFFile(smollm2_path)
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert (info.offset, info.nbytes, info.type.name) == (
            tensor.data_offset,
            tensor.n_bytes,
            tensor.tensor_type.name,
        )
    tokens = file.array("tokenizer.ggml.tokens")
    assert list(tokens) == reader.get_field("tokenizer.ggml.tokens").contents()
    assert file.metadata["tokenizer.chat_template"] == reader.get_field("tokenizer.chat_template").contents()


def test_tensors_may_stream_from_a_generator(tmp_path: Path) -> None:
    def rows() -> "object":
        return (np.full(4, i, np.float32) for i in range(3))

    write_gguf(tmp_path / "a.gguf", {}, [OutTensor("t", TensorType.F32, (3, 4), rows)])  # type: ignore[arg-type]
    assert GGUFFile(tmp_path / "a.gguf").data("t").view(np.float32).tolist() == [0] * 4 + [1] * 4 + [2] * 4
