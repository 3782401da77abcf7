"""Split GGUF files: all parts together are the original model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.formats import fingerprint
from featherback.engine.formats.types import TensorType
from featherback.engine.formats.writer import Value, tensor_of_array, write_gguf
from featherback.errors import FeatherbackError
from featherback.models import load
from featherback.runs.trainer import train_run
from tests.methods.support import ours
from tests.methods.test_plans import random_state
from tests.runs.conftest import sequences
from tests.runs.runs import prepared
from tests.support.tiny_models import TINY_LLAMA, write_tiny, write_tiny_parts

CUTS = {"even": [7, 7], "in a layer": [1, 9], "no tensor in the first": [0, 8]}
PLANS: dict[str, dict[str, Any]] = {
    "in memory": {},
    "streamed": {"weights": "streamed"},
    "paged": {"weights": "paged"},
    "by matrix, in files": {"weights": "by_matrix", "checkpoints": "file", "states": "file", "chunk": 5},
}
TEXT: dict[str, Value] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*map(chr, range(33, 127)), "\u0120", "ab", *(f"<{i}>" for i in range(5))],
    "tokenizer.ggml.merges": ["a b"],
}


@pytest.mark.parametrize("cut", CUTS)
def test_any_part_stands_for_the_model(tmp_path: Path, cut: str) -> None:
    whole = load(write_tiny(tmp_path / "whole.gguf"))
    parts = write_tiny_parts(tmp_path, CUTS[cut])
    for path in parts:
        model = load(path)
        assert model.path == parts[0]
        assert model.files == set(parts[1:] if cut.startswith("no") else parts)
        assert {name: model.store.data(name).tobytes() for name in model.store.tensors} == {
            name: whole.store.data(name).tobytes() for name in whole.store.tensors
        }
        model.close()


@pytest.mark.parametrize("plan", PLANS)
def test_identical_gradients(tmp_path: Path, plan: str) -> None:
    whole = load(write_tiny(tmp_path / "whole.gguf", types=TensorType.Q4_0))
    split = load(write_tiny_parts(tmp_path, [4, 5, 3], types=TensorType.Q4_0)[2])
    tokens = [list(row) for row, _ in sequences(2)]
    found = []
    for model, folder in ((whole, tmp_path / "a"), (split, tmp_path / "b")):
        folder.mkdir()
        found.append(ours(model, random_state(model), tokens, folder=folder, **PLANS[plan]))
    assert found[0].loss == found[1].loss
    assert any(grad.any() for grad in found[0].grads.values())
    for name, grad in found[0].grads.items():
        assert np.array_equal(grad, found[1].grads[name]), name


def test_a_planned_run(tmp_path: Path) -> None:
    """The planner, the run's record of the model, and the training itself."""
    adapters = []
    for name, model in (("whole", write_tiny(tmp_path / "a.gguf")), ("split", write_tiny_parts(tmp_path, [4, 9])[1])):
        run = prepared(model, tmp_path / name, steps=2, rank=4, memory=None)
        train_run(run)
        adapters.append((run.path / "adapter_model.safetensors").read_bytes())
    assert adapters[0] == adapters[1]


def test_the_tokenizer_is_the_first_parts(tmp_path: Path) -> None:
    parts = write_tiny_parts(tmp_path, [4], metadata=TEXT)
    texts = [load_tokenizer(path).encode("ab a") for path in parts]
    assert texts[0] == texts[1] != []


def test_the_fingerprint_knows_a_first_part_without_tensors(tmp_path: Path) -> None:
    prints = []
    for theta in (10_000.0, 20_000.0):
        parts = write_tiny_parts(tmp_path, [0], metadata={"llama.rope.freq_base": theta})
        prints.append(fingerprint.of_store(load(parts[0]).store))
    assert prints[0] != prints[1]


def _gone(parts: list[Path]) -> None:
    parts[1].unlink()


def _swapped(parts: list[Path]) -> None:
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(second)


def _of_another(parts: list[Path]) -> None:
    parts[1].write_bytes(write_tiny_parts(parts[0].parent, [3])[1].read_bytes())


def _unmarked(parts: list[Path]) -> None:
    write_gguf(parts[0], {"general.architecture": "llama"}, [])


def _twice(parts: list[Path]) -> None:
    marks: dict[str, Value] = {"split.no": np.uint16(1), "split.count": np.uint16(3)}
    name = next(iter(load(parts[0]).store.tensors))
    write_gguf(parts[1], marks, [tensor_of_array(name, np.ones(32))])


def _short(parts: list[Path]) -> None:
    write_gguf(parts[2], {"split.no": np.uint16(2), "split.count": np.uint16(3)}, [])


def _odd_number(parts: list[Path]) -> None:
    write_gguf(parts[1], {"split.no": "one", "split.count": np.uint16(3)}, [])


BROKEN = {
    "missing": (_gone, r"tiny-00002-of-00003\.gguf is missing: the 3 parts of a split model"),
    "swapped": (_swapped, r"00002-of-00003\.gguf says part 2 of 3, but its content says part 3\. Give the parts"),
    "another split": (_of_another, r"says that there are 3 parts, but its key split\.count is 2"),
    "no marks": (_unmarked, r"says that there are 3 parts, but its key split\.count is None"),
    "a tensor twice": (_twice, r"00002-of-00003\.gguf is corrupt .* the tensor '.*' is also in another part"),
    "tensors missing": (_short, r"The 3 parts of .* hold 9 tensors, but the first part says \d+\. Download"),
    "no number": (_odd_number, r"part 2 of 3, but its content says split\.no 'one'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_fit_together(tmp_path: Path, case: str) -> None:
    damage, message = BROKEN[case]
    parts = write_tiny_parts(tmp_path, [4, 5])
    damage(parts)
    for path in [part for part in parts if part.exists()]:
        with pytest.raises(FeatherbackError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value)


def test_a_part_under_another_name(tmp_path: Path) -> None:
    parts = write_tiny_parts(tmp_path, [4])
    for name in ("other.gguf", "tiny-00003-of-00002.gguf"):
        path = parts[0].rename(tmp_path / name)
        with pytest.raises(FeatherbackError, match=r"one of 2 parts of a split model. Rename it"):
            load(path)
        path.rename(parts[0])


def test_one_part_is_no_split_model(tmp_path: Path) -> None:
    path = tmp_path / "a-00001-of-00001.gguf"
    write_tiny(path, TINY_LLAMA, metadata={"split.count": np.uint16(1), "split.no": np.uint16(0)})
    assert load(path).path == path
