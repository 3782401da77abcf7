"""Which pages of the file are resident while a layer is at work, after it, and after rows were looked up."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from featherback import models
from featherback.bench.synthetic import write_synthetic
from featherback.memory.pager import FOLIO, WeightPager
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

_CHILD = """
import json, sys
import numpy as np
from featherback import kernels, models
from featherback.memory.pager import WeightPager
model = models.load(sys.argv[1])
pager = WeightPager(model, drop=sys.argv[2] == "drop", read_ahead=False)
out = np.zeros((64, model.config.hidden_size), np.float32)
ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 64).astype(np.int32)
def filed():
    footprint, rss = kernels.memory_now()
    return rss - footprint
start, inside, after = filed(), [], []
for i in range(model.config.num_hidden_layers):
    with pager.layer(i, i + 1) as layer:
        for matrix in layer.matrices().values():
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
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), policy], capture_output=True, text=True, check=True
    )
    found: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return found


def test_dropping_keeps_one_layer(model_path: Path) -> None:
    layer = sum(m.nbytes for m in models.load(model_path).layer(0).matrices().values())
    found = run(model_path, "drop")
    assert all(layer * 0.9 <= inside <= layer + FOLIO for inside in found["inside"])
    assert max(found["after"]) <= FOLIO
    assert found["gathered"] <= FOLIO


def test_without_dropping_all_stay(model_path: Path) -> None:
    layer = sum(m.nbytes for m in models.load(model_path).layer(0).matrices().values())
    found = run(model_path, "keep")
    assert found["after"][-1] >= 6 * layer * 0.95
    assert found["gathered"] >= found["after"][-1]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("read_ahead", [False, True])
def test_policy_does_not_change_what_is_read(tmp_path: Path, drop: bool, read_ahead: bool) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, num_hidden_layers=3)))
    plain, pager = WeightPager(model, False, False), WeightPager(model, drop, read_ahead)
    for index in (0, 1, 2, 1, 0):
        with pager.layer(index, index + 1) as weights, plain.layer(index) as expected:
            for name, matrix in weights.matrices().items():
                assert np.array_equal(matrix.data, expected.matrices()[name].data)
    ids = np.array([100, 0, 5, 5, 99, 7, 8, 9, 10], np.int32)
    out, wanted = np.empty((9, 96), np.float32), np.empty((9, 96), np.float32)
    pager.gather(model.embed_tokens, ids, out)
    plain.gather(model.embed_tokens, ids, wanted)
    assert np.array_equal(out, wanted)
    pager.expect(model.lm_head)
    pager.drop_rows(model.lm_head, 3, 40)
    pager.gather(model.embed_tokens, ids[:0], out[:0])
