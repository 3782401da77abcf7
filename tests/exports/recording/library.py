"""libfeatherback against Python: gradients, updates and adapters with the same bits (`make test-c`)."""

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from featherback import methods, models, optim
from featherback.cli.app import run
from featherback.data.batch import IGNORE, Batch
from featherback.engine import kernels
from featherback.engine.formats.types import TensorType
from featherback.engine.host.paged import PagedArray
from featherback.exports import formats
from featherback.exports.formats.peft import FORMAT as PEFT
from featherback.exports.recording.file import write
from featherback.exports.recording.step import record
from featherback.models.adapter import LoRA
from featherback.models.model import Model
from featherback.optim import LayerwiseOptimizer
from featherback.optim.rules.adamw import AdamW
from tests.exports.recording.test_replay import FAMILIES, a_batch, a_model
from tests.support import tiny_models
from tests.support.tiny_models import write_tiny

LIBRARY = Path(os.environ.get("FEATHERBACK_LIBRARY", "build/c")).resolve() / "libfeatherback.so"


class Options(ctypes.Structure):
    _fields_ = [
        ("beta1", ctypes.c_float), ("beta2", ctypes.c_float), ("eps", ctypes.c_float),
        ("weight_decay", ctypes.c_float), ("clip_norm", ctypes.c_double),
    ]  # fmt: skip


def library() -> Any:
    found = ctypes.CDLL(str(LIBRARY))
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
    ours, theirs_ = (
        load_file(path) for path in (tmp_path / "ours" / "adapter_model.safetensors", tmp_path / "theirs.safetensors")
    )
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


def test_what_a_caller_does_wrong_is_said(tmp_path: Path) -> None:
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    nothing = Training(tmp_path / "no.gguf", tmp_path / "no.recording", tmp_path / "no.safetensors")
    assert nothing.error == f"cannot open {tmp_path}/no.gguf: No such file or directory"
    nothing.close()
    (tmp_path / "other").mkdir()
    other, _ = a_model(tmp_path / "other", "TINY_QWEN2")
    with recorded(tmp_path, model, adapter, 24, "fp32") as training:
        recording, start = tmp_path / "step.recording", tmp_path / "start" / "adapter_model.safetensors"
        wrong = Training(other.path, recording, start)
        assert wrong.error == f"{recording} was recorded for another model than {other.path}"
        wrong.close()
        short = start.read_bytes()
        start.write_bytes(short[:-4])
        cut = Training(model.path, recording, start)
        assert cut.error.endswith("has a different shape from the recording's")
        cut.close()
        for tokens, says in (
            ([1, 500], "token 500 is outside the vocabulary"),
            ([1] * 40, "boundaries must rise, up to"),
        ):
            batch = Batch.from_sequences([np.array(tokens, np.int32)])
            assert training.gradients(batch, learnt(batch), 1.0)[0] == -1
            assert says in training.error
        batch = Batch.from_sequences([np.array([1, 2, 3], np.int32)])
        assert training.gradients(batch, np.zeros(3, np.uint8), 1.0) == (0, 0.0, 0)
        assert training.save(tmp_path / "no folder" / "adapter.safetensors") == -1
        assert "cannot write" in training.error


def test_another_model_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    """The recording holds what was computed from the final norm, so that norm must be the recorded one."""
    shape = tiny_models.TINY_GRANITE
    places = [write_tiny(tmp_path / f"{seed}.gguf", shape, TensorType.F32, seed=seed) for seed in (0, 1)]
    model, other = map(models.load, places)
    with recorded(tmp_path, model, LoRA(model, rank=2), 24, "fp32"):
        pass
    start = tmp_path / "start" / "adapter_model.safetensors"
    wrong = Training(other.path, tmp_path / "step.recording", start)
    assert "was recorded for another model" in wrong.error
    wrong.close()


def test_norms_are_read_from_the_model(tmp_path: Path) -> None:
    """A recording serves every model of its shape, as far as the model's tensors are used as they are stored."""
    places = [write_tiny(tmp_path / f"{s}.gguf", tiny_models.TINY_LLAMA, TensorType.F32, seed=s) for s in (0, 1)]
    model, other = map(models.load, places)
    adapter, batch = LoRA(model, rank=2), Batch.from_sequences([np.arange(9, dtype=np.int32)])
    with recorded(tmp_path, model, adapter, 24, "fp32"):
        pass
    training = Training(other.path, tmp_path / "step.recording", tmp_path / "start" / "adapter_model.safetensors")
    theirs = LoRA(other, rank=2)
    method = methods.create("mesp", other, theirs, record(other, theirs, 24, "fp32").plan, tmp_path)
    loss = method.gradients(batch, 1.0, PagedArray(adapter.parameters.layers, adapter.layer_size))
    assert training.gradients(batch, learnt(batch), 1.0)[1] == pytest.approx(loss, rel=1e-12)
    training.close()
    method.close()


def test_after_an_error_no_gradients_are_left(tmp_path: Path) -> None:
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    batch = Batch.from_sequences([np.arange(9, dtype=np.int32)])
    with recorded(tmp_path, model, adapter, 24, "fp32") as training:
        left = [200]

        def stop(_: Any) -> int:
            left[0] -= 1
            return int(left[0] == 0)

        callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(stop)
        training.library.fb_set_progress(training.handle, callback, None)
        assert training.gradients(batch, learnt(batch), 1.0)[0] == -1
        assert training.update(1e-3) == (0, 0.0)
        assert training.gradients(batch, learnt(batch), float("nan"))[0] == -1
        assert training.gradients(batch, learnt(batch), 1.0)[0] == 0
        assert training.update(float("nan"))[0] == -1
        status, norm = training.update(1e-3)
        assert status == 0
        assert norm > 0
        model.path.touch()
        os.utime(model.path, ns=(1, 1))
        assert training.gradients(batch, learnt(batch), 1.0)[0] == -1
        assert training.error == "another program has changed the model file"


def test_numbers_of_threads(tmp_path: Path) -> None:
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    with recorded(tmp_path, model, adapter, 24, "fp32"):
        pass
    places = [
        str(p).encode() for p in (model.path, tmp_path / "step.recording", tmp_path / "start/adapter_model.safetensors")
    ]
    for threads, says in ((2**31 - 1, b"the number of threads is not from 0 to 1024"), (1, b"")):
        handle = ctypes.c_void_p(library().fb_open(*places, None, threads))
        assert library().fb_error(handle) == says
        library().fb_close(handle)
    assert library().fb_update(None, ctypes.c_float(1), None, None) == -1


def test_a_decimal_comma_changes_nothing(tmp_path: Path) -> None:
    """The library parses numbers by the locale of the program, so a recording has no decimal points."""
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    with recorded(tmp_path, model, adapter, 24, "fp32"):
        calls = (tmp_path / "step.recording").read_bytes().split(b"\ncalls ")[1].split(b"\nnumbers ")[0]
    assert b"p-" in calls
    assert b"." not in calls


def test_each_argument_of_another_kind_is_refused_or_harmless(tmp_path: Path) -> None:
    """Nothing, or an array of bf16 at the end of its space, in place of each argument of each operation."""
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    with recorded(tmp_path, model, adapter, 24, "bf16"):
        pass
    command = [sys.executable, "-m", __name__, str(model.path), str(tmp_path), "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, ran = map(int, done.stdout.split())
    assert refused > 200
    assert ran > 0


def test_progress_can_stop_a_step(tmp_path: Path) -> None:
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    with recorded(tmp_path, model, adapter, 24, "fp32") as training:
        calls: list[int] = []
        callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: calls.append(1) or len(calls) > 10)
        training.library.fb_set_progress(training.handle, callback, None)
        batch = Batch.from_sequences([np.arange(9, dtype=np.int32)])
        assert training.gradients(batch, learnt(batch), 1.0)[0] == -1
        assert (training.error, len(calls)) == ("stopped", 11)


def test_the_example_trains(tmp_path: Path) -> None:
    """`featherback record`, and examples/c/train.c compiled by the system's compiler, as C and with its warnings."""
    model, _ = a_model(tmp_path, "TINY_LLAMA")
    out, program = tmp_path / "recorded", tmp_path / "train"
    assert run(["record", str(model.path), "--out", str(out), "--tokens", "32", "--compute", "fp32"]) == 0
    sources = [
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D_POSIX_C_SOURCE=200809L",
        "-Icsrc/program",
        "examples/c/train.c",
    ]
    links = [f"-L{LIBRARY.parent}", "-lfeatherback", f"-Wl,-rpath,{LIBRARY.parent}", "-o", str(program)]
    subprocess.run(["cc", *sources, *links], check=True)
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("1 2 3 4 5 6 7 8\n9 10 11 12 13\n")
    before = load_file(out / "adapter_model.safetensors")
    command = [program, model.path, out, tokens, "30", tmp_path]
    lines = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout.splitlines()
    losses = [float(line.split()[3].rstrip(",")) for line in lines]
    assert len(losses) == 30
    assert losses[-2] < losses[0] - 0.1
    after = load_file(out / "adapter_model.safetensors")
    assert after.keys() == before.keys()
    assert any(not np.array_equal(after[name], before[name]) for name in after)
    reread = formats.load(model, out)
    assert np.array_equal(reread.state()[name_of(after)], after[f"base_model.model.{name_of(after)}"])


def name_of(tensors: dict[str, Any]) -> str:
    return next(iter(tensors)).removeprefix("base_model.model.")


MUTATIONS = int(os.environ.get("FEATHERBACK_MUTATIONS", "200"))


def test_mutated_recordings_are_refused_or_harmless(tmp_path: Path) -> None:
    """In a process of its own, which would end if memory outside the recording's were touched (or under ASan)."""
    model, adapter = a_model(tmp_path, "TINY_LLAMA")
    with recorded(tmp_path, model, adapter, 24, "fp32"):
        pass
    command = [sys.executable, "-m", __name__, str(model.path), str(tmp_path), str(MUTATIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, ran = map(int, done.stdout.split())
    assert refused + ran == MUTATIONS
    assert min(refused, ran) > MUTATIONS // 50


def mutated(rng: np.random.Generator, content: bytes) -> bytes:
    """Return a recording with one to three changed, exchanged, repeated or lost words, lines or bytes."""
    for _ in range(rng.integers(1, 4)):
        lines = content.split(b"\n")
        row = int(rng.integers(0, len(lines)))
        words = lines[row].split(b" ")
        column, other = (int(rng.integers(0, len(words))) for _ in range(2))
        match int(rng.integers(0, 8)):
            case 0:
                words[column] = words[other]
            case 1:
                numbers = re.findall(rb"\d+", words[column]) or [b"0"]
                new = rng.choice([0, 1, 3, 63, 255, 4096, 2**31 - 1, 2**31, 2**53, 2**62, 2**63])
                words[column] = words[column].replace(numbers[int(rng.integers(0, len(numbers)))], str(new).encode(), 1)
            case 2:
                donor = lines[int(rng.integers(0, len(lines)))].split(b" ")
                words[column] = donor[int(rng.integers(0, len(donor)))]
            case 3:
                del words[column]
            case 4:
                words.insert(column, words[other])
            case 5:
                lines.insert(row, lines[int(rng.integers(0, len(lines)))])
            case 6:
                words[column] = rng.choice([b"T", b"R", b"R0-1", b"-", b"nan", b"inf", b"cu", b"rows", b"-1"])
            case 7:
                at = int(rng.integers(0, len(content)))
                content = content[:at] + bytes([int(rng.integers(0, 256))]) + content[at + 1 :]
                continue
        lines[row] = b" ".join(words)
        content = b"\n".join(lines)
    return content


def of_another_kind(content: bytes) -> Iterator[bytes]:
    """Yield recordings in which one argument, of the first call of each operation, is of another kind."""
    text, numbers = content.split(b"\nnumbers ", 1)
    lines, seen = text.split(b"\n"), set()
    end = next(int(line.split()[1]) for line in lines if line.startswith(b"scratch"))
    first = next(at for at, line in enumerate(lines) if line.startswith(b"calls ")) + 1
    for at in range(first, len(lines)):
        words = lines[at].split(b" ")
        if words[0] in seen:
            continue
        seen.add(words[0])
        for place in range(1, len(words)):
            for other in (b"-", b"1", b"s+%d:1:1:1:bf16" % (end - 2), b"v0+0:1:4:4:f32", b"ds+0:4:4:4:f32"):
                changed = b" ".join([*words[:place], other, *words[place + 1 :]])
                yield b"\n".join([*lines[:at], changed, *lines[at + 1 :]]) + b"\nnumbers " + numbers


def try_all(model: Path, folder: Path, count: int) -> tuple[int, int]:
    """Return how many changed recordings were refused, and how many ran.

    There are `count` mutations; with 0, one argument after the other is of another kind.
    """
    content, refused, ran = (folder / "step.recording").read_bytes(), 0, 0
    batch = a_batch(np.random.default_rng(0), 101, 24)
    changed = (mutated(np.random.default_rng(seed), content) for seed in range(count))
    for each in changed if count else of_another_kind(content):
        place = folder / "mutated.recording"
        place.write_bytes(each)
        training = Training(model, place, folder / "start" / "adapter_model.safetensors")
        done = not training.error and training.gradients(batch, learnt(batch), 1.0)[0] == 0
        refused, ran = refused + (not done), ran + done
        training.close()
    return refused, ran


if __name__ == "__main__":
    print(*try_all(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
