"""libfeatherback against Python: gradients, updates and adapters with the same bits (`make test-c`)."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from featherback import methods, optim
from featherback.data.batch import IGNORE, Batch
from featherback.engine import kernels
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.exports.formats.peft import FORMAT as PEFT
from featherback.exports.recording.file import write
from featherback.exports.recording.step import record
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.optim import LayerwiseOptimizer
from featherback.optim.rules.adamw import AdamW
from tests.exports.recording.test_replay import FAMILIES, a_batch, a_model

LIBRARY = Path("build/c/libfeatherback.so")


class Options(ctypes.Structure):
    _fields_ = [
        ("beta1", ctypes.c_float), ("beta2", ctypes.c_float), ("eps", ctypes.c_float),
        ("weight_decay", ctypes.c_float), ("clip_norm", ctypes.c_double),
    ]  # fmt: skip


def library() -> Any:
    found = ctypes.CDLL(str(LIBRARY.resolve()))
    found.fb_open.restype = ctypes.c_void_p
    found.fb_error.restype = ctypes.c_char_p
    found.fb_most_tokens.restype = found.fb_vocabulary.restype = ctypes.c_int64
    found.fb_adamw_defaults.restype = Options
    for name in ("fb_close", "fb_error", "fb_most_tokens", "fb_vocabulary"):
        getattr(found, name).argtypes = [ctypes.c_void_p]
    return found


class Training:
    """A handle of the library."""

    def __init__(self, model: Path, recording: Path, adapter: Path, folder: Path | None = None) -> None:
        self.library = library()
        places = [str(each).encode() for each in (model, recording, adapter)]
        self.handle = ctypes.c_void_p(self.library.fb_open(*places, folder and str(folder).encode(), kernels.threads()))

    @property
    def error(self) -> str:
        return self.library.fb_error(self.handle).decode()

    def gradients(self, batch: Batch, labels: np.ndarray[Any, Any], scale: float) -> tuple[int, float, int]:
        """Return the status, the loss and the number of targets."""
        tokens, boundaries = batch.tokens.astype(np.int32), batch.cu_seqlens.astype(np.int32)
        loss, targets = ctypes.c_double(), ctypes.c_int64()
        status = self.library.fb_gradients(
            self.handle, tokens.ctypes.data_as(ctypes.c_void_p), labels.ctypes.data_as(ctypes.c_void_p),
            boundaries.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(len(boundaries) - 1), ctypes.c_double(scale),
            ctypes.byref(loss), ctypes.byref(targets),
        )  # fmt: skip
        return status, loss.value, targets.value

    def update(self, rate: float) -> tuple[int, float]:
        norm = ctypes.c_double()
        status = self.library.fb_update(self.handle, ctypes.c_float(rate), None, ctypes.byref(norm))
        return status, norm.value

    def save(self, path: Path) -> int:
        return self.library.fb_save(self.handle, str(path).encode())

    def close(self) -> None:
        self.library.fb_close(self.handle)


@contextmanager
def recorded(place: Path, model: Model, adapter: LoRA, tokens: int, compute: str, **options: Any) -> Iterator[Training]:
    """Record a step, save the adapter beside it, and open both in the library."""
    path, start = place / "step.recording", place / "start"
    with path.open("wb") as file:
        write(record(model, adapter, tokens, compute), file)
    PEFT.save(adapter, start)
    training = Training(model.path, path, start / "adapter_model.safetensors", **options)
    assert not training.error
    yield training
    training.close()


def learnt(batch: Batch) -> np.ndarray[Any, Any]:
    """Return which tokens are targets, (T,), uint8: a token is what the one before it must predict."""
    found = np.zeros(batch.n_tokens, np.uint8)
    found[1:] = batch.targets[:-1] != IGNORE
    return found


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("compute", ["fp32", "bf16", "int16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_run_has_the_bits_of_python(family: str, compute: str, in_files: bool, tmp_path: Path) -> None:
    model, adapter = a_model(tmp_path, family)
    longest = min([300, *(rotary.beyond[0] - 8 for rotary in model.rotaries if rotary.beyond)])
    rng = np.random.default_rng(1)
    with recorded(tmp_path, model, adapter, longest, compute, folder=tmp_path if in_files else None) as training:
        plan = record(model, adapter, longest, compute).plan
        method = methods.create("mesp", model, adapter, plan, tmp_path)
        optimizer = LayerwiseOptimizer(AdamW(), adapter.parameters, adapter.layout.slots)
        for step, rate in enumerate((1e-3, 5e-3, 2e-3)):
            gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
            batches = [a_batch(rng, model.config.vocab_size, most) for most in (longest, 24)]
            count = sum(batch.n_targets for batch in batches)
            for batch in batches:
                loss = method.gradients(batch, 1 / count, gradients)
                status, theirs, targets = training.gradients(batch, learnt(batch), 1 / count)
                assert (status, targets) == (0, batch.n_targets), training.error
                assert theirs == pytest.approx(loss, rel=1e-12)
            norm = optim.global_norm(gradients)
            assert training.update(rate) == (0, norm), step
            optimizer.step(gradients, rate, optim.clip_scale(norm, 1.0))
        assert training.save(tmp_path / "theirs.safetensors") == 0, training.error
    PEFT.save(adapter, tmp_path / "ours")
    ours, theirs_ = (load_file(path) for path in (tmp_path / "ours" / "adapter_model.safetensors", tmp_path / "theirs.safetensors"))
    assert ours.keys() == theirs_.keys()
    for name, values in ours.items():
        assert np.array_equal(values, theirs_[name]), name
    method.close()


@pytest.mark.parametrize("kind", [TensorType.Q4_0, TensorType.Q8_0, TensorType.BF16])
def test_quantised_weights(kind: TensorType, tmp_path: Path) -> None:
    model, adapter = a_model(tmp_path, "TINY_LLAMA", kind)
    with recorded(tmp_path, model, adapter, 64, "bf16") as training:
        method = methods.create("mesp", model, adapter, record(model, adapter, 64, "bf16").plan, tmp_path)
        batch = a_batch(np.random.default_rng(3), model.config.vocab_size, 64)
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        method.gradients(batch, 1.0, gradients)
        assert training.gradients(batch, learnt(batch), 1.0)[0] == 0
        assert training.update(0.0) == (0, optim.global_norm(gradients))
        method.close()
