"""Which pages of the file are resident while a layer is in use, after it, and after a look-up of rows."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.systems import counts_memory
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

from benchmarks.synthetic import write_synthetic
from featherback import models
from featherback.engine import backend
from featherback.engine.formats.mapping import FOLIO, most_mapped
from featherback.engine.formats.matrix import Matrix
from featherback.engine.formats.types import TensorType
from featherback.engine.host.pager import WeightPager, mapped
from featherback.engine.host.stream import WeightStream
from featherback.methods.memory.resources import WeightSource
from featherback.models.model import Model

CODE = 256 << 10  # bytes that the process itself may load meanwhile
_CHILD = """
import json, sys
import numpy as np
from featherback.engine import backend, kernels
from featherback import models
from featherback.engine.host.pager import WeightPager
model = models.load(sys.argv[1])
pager = WeightPager(model, backend.of("fp32"), sys.argv[2])
out = np.zeros((64, model.config.hidden_size), np.float32)
ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 64).astype(np.int32)
def filed():
    footprint, rss = kernels.memory_now()
    return rss - footprint
pager.gather(model.embed_tokens, ids, out)  # brings in the code it runs
start, inside, after = filed(), [], []
for i in range(model.config.num_hidden_layers):
    with pager.layer(i, i + 1) as layer:
        for matrix in layer.matrices.values():
            matrix.data[::4096].sum()
        inside.append(filed() - start)
    after.append(filed() - start)
pager.gather(model.embed_tokens, ids, out)
print(json.dumps({"inside": inside, "after": after, "gathered": filed() - start}))
"""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pager") / "m.gguf"
    return write_synthetic(path, "qwen2.5-0.5b", num_hidden_layers=6, vocab_size=60_000)


def run(path: Path, policy: str) -> dict:  # type: ignore[type-arg]
    done = subprocess.run([sys.executable, "-c", _CHILD, str(path), policy], capture_output=True, text=True, check=True)
    found: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return found


@counts_memory
def test_dropping_keeps_one_layer(model_path: Path) -> None:
    model = models.load(model_path)
    layers = [list(model.layer(i).matrices.values()) for i in range(6)]
    found = run(model_path, "paged")
    for inside, matrices in zip(found["inside"], layers, strict=True):
        assert 0.9 * sum(m.nbytes for m in matrices) <= inside <= mapped(matrices) + CODE
    assert max(found["after"]) <= FOLIO
    assert found["gathered"] <= FOLIO


@pytest.mark.parametrize(
    ("spans", "pieces"),
    [
        ([(0, FOLIO)], 1),
        ([(0, FOLIO + 4)], 2),
        ([(FOLIO - 4, FOLIO + 4)], 2),
        ([(FOLIO - 4, 2 * FOLIO + 4)], 3),
        ([(0, 12), (20, 32)], 1),
        ([(0, 12), (5 * FOLIO, 5 * FOLIO + 12)], 2),  # the bytes between are not accessed
    ],
)
def test_every_piece_that_is_touched_counts(tmp_path: Path, spans: list[tuple[int, int]], pieces: int) -> None:
    file = np.zeros(6 * FOLIO, np.uint8)
    matrices = [Matrix(file[begin:end], TensorType.F32, 1, (end - begin) // 4, tmp_path, begin) for begin, end in spans]
    assert mapped(matrices) == pieces * FOLIO
    for begin, end in spans:
        assert most_mapped(end - begin) >= FOLIO * (1 + (end - 1) // FOLIO - begin // FOLIO)


def test_without_dropping_all_stay(model_path: Path) -> None:
    layer = sum(m.nbytes for m in models.load(model_path).layer(0).matrices.values())
    found = run(model_path, "resident")
    assert found["after"][-1] >= 6 * layer * 0.95
    assert found["gathered"] >= found["after"][-1]


def paged(model: Model) -> WeightSource:
    return WeightPager(model, backend.of("fp32"), "paged")


def streamed(model: Model) -> WeightSource:
    return WeightStream(model, backend.of("fp32"), rows=32)


@pytest.mark.parametrize("source_record", [paged, streamed])
@pytest.mark.parametrize("kind", [TensorType.Q4_0, TensorType.F32])
def test_what_is_read_does_not_depend_on_the_way(
    tmp_path: Path, source_record: Callable[[Model], WeightSource], kind: TensorType
) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3), kind))
    plain, source = WeightPager(model, backend.of("fp32"), "resident"), source_record(model)
    for index, then in ((0, 1), (1, 2), (2, 0), (1, 0), (0, None), (2, 1), (0, 5)):
        with source.layer(index, then) as weights:
            expected = model.layer(index)
            for name, matrix in weights.matrices.items():
                assert np.array_equal(matrix.data, expected.matrices[name].data)
            assert np.array_equal(weights.vectors["input_layernorm"], expected.vectors["input_layernorm"])
    head = model.head.weight
    for first in range(0, head.rows, 32):
        last = min(head.rows, first + 32)
        with source.rows(head, first, last) as rows:
            assert rows.shape == (last - first, head.cols)
            assert np.array_equal(rows.data, head.data[first * head.row_bytes : last * head.row_bytes])
    ids = np.resize(np.array([100, 0, 5, 5, 99, 7, 8, 9, 10], np.int32), 600)
    out, wanted = np.empty((600, 96), np.float32), np.empty((600, 96), np.float32)
    source.gather(model.embed_tokens, ids, out)
    plain.gather(model.embed_tokens, ids, wanted)
    assert np.array_equal(out, wanted)
    source.gather(model.embed_tokens, ids[:0], out[:0])
    source.close()
