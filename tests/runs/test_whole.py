"""Runs that train the model's own weights: results, files they must not touch, and interruptions."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tracemalloc
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM

from featherback import models
from featherback.cli.app import run as command
from featherback.cli.kinds.run import KIND
from featherback.core.noise import numbers, quantiles
from featherback.core.terminal import Converting
from featherback.engine import backend
from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.backend.device import Device
from featherback.engine.formats.types import TensorType
from featherback.engine.host.interrupt import Interrupt
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.infer.decoder import Decoder
from featherback.methods.whole.files import StateFile, WeightFiles
from featherback.methods.whole.trained_weights import WeightId
from featherback.models.architecture.config import ModelConfig
from featherback.optim import Schedule
from featherback.optim.rules.adamw import AdamW
from featherback.runs import trainer
from featherback.runs.config import TrainConfig
from featherback.runs.run_file import read
from featherback.runs.trainer import train_run
from tests.models.test_hf_folder import folder_and_gguf
from tests.runs import runs
from tests.runs.conftest import Start, sequences
from tests.runs.test_kill import WRITES
from tests.support import tiers
from tests.support.oracle import reference_model
from tests.support.tiny_models import TINY_GEMMA3, TINY_LLAMA, TINY_PHI3, TINY_QWEN2, tiny, write_tiny

KILLS = int(os.environ.get("FEATHERBACK_KILLS", "8")) // 2
FULL: dict[str, Any] = {
    "rank": None, "train": "full", "optimizer": "sgd", "learning_rate": 0.1, "schedule": "constant",
    "eval_share": 0.0,
}  # fmt: skip


def tensors(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: np.array(tensor.data) for tensor in GGUFReader(path).tensors}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(place: Path, folder: bool) -> Path:
    """Return the weights file of a model in a run directory."""
    return place / ("model/model.safetensors" if folder else "model.gguf")


def assert_moved_alike(start: Path, found: Path, theirs: torch.nn.Module, tolerance: float) -> None:
    """Every weight moved from the model `start`; to where `theirs` is in the model `found`, but for `tolerance` of the
    way."""
    before, after = reference_model(start).state_dict(), reference_model(found).state_dict()
    for name, expected in theirs.state_dict().items():
        moved = float((expected - before[name]).norm())
        assert float((after[name] - expected).norm()) <= tolerance * moved + 1e-6 * float(expected.norm()), name
        assert moved > 0


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize(
    "config",
    tiers.some([TINY_LLAMA, tiny(TINY_QWEN2, tie_word_embeddings=False), TINY_GEMMA3, TINY_PHI3], 2),
    ids=lambda config: config.architecture,
)
def test_steps_are_torchs(start: Start, tmp_path: Path, config: ModelConfig, clip: float) -> None:
    """Ten steps of SGD in float32 from the same weights, on a batch of three sequences."""
    model = write_tiny(tmp_path / "m.gguf", config)
    run = start(model=str(model), count=3, batch_size=3, steps=10, master="fp32", max_grad_norm=clip, **FULL)
    theirs, examples = reference_model(model).requires_grad_(True), sequences(3)
    theirs.model.embed_tokens.padding_idx = None
    optimizer = torch.optim.SGD(theirs.parameters(), lr=FULL["learning_rate"])
    for _ in range(10):
        losses = []
        for tokens, labels in examples:
            logits = theirs(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum"))
        count = sum(label != -100 for _, labels in examples for label in labels[1:])
        optimizer.zero_grad()
        (torch.stack(losses).sum() / count).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        optimizer.step()
    assert_moved_alike(model, run.path / "model.gguf", theirs, 1e-3)


@pytest.mark.parametrize("config", [TINY_LLAMA, TINY_PHI3], ids=lambda config: config.architecture)
def test_steps_that_skip_blocks_are_torchs(start: Start, tmp_path: Path, config: ModelConfig) -> None:
    """AdamW, whose corrections count the steps of each weight; each step goes back through two of four blocks.

    `eps` is above the rounding of a gradient: with less, the first step is the sign of noise where the gradient is 0.
    """
    model = write_tiny(tmp_path / "m.gguf", tiny(config, num_hidden_layers=4))
    adamw = {"learning_rate": 1e-3, "eps": 1e-6}
    options = {**FULL, "method": "lcsb", "optimizer": "adamw", "master": "fp32", **adamw}
    run = start(model=str(model), count=3, batch_size=3, steps=5, share=0.5, **options)
    theirs, examples = reference_model(model).requires_grad_(True), sequences(3)
    theirs.model.embed_tokens.padding_idx = None
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0, eps=1e-6)

    def skip(module: torch.nn.Module, given: Any, output: Any) -> Any:
        return given[0] + (output - given[0]).detach()

    for step in range(5):
        skipped = [layer for layer in range(4) if layer // 2 != step % 2]
        hooks = [theirs.model.layers[layer].register_forward_hook(skip) for layer in skipped]
        total, count = torch.zeros(()), 0
        for tokens, labels in examples:
            logits = theirs(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
            total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum")
            count += sum(label != -100 for label in labels[1:])
        optimizer.zero_grad()
        (total / count).backward()
        for layer in skipped:
            assert all(each.grad is None for each in theirs.model.layers[layer].parameters())
        optimizer.step()
        for hook in hooks:
            hook.remove()
    assert_moved_alike(model, run.path / "model.gguf", theirs, 3e-3)


def test_a_resumed_run_that_skips_blocks_ends_as_if_it_had_not_stopped(start: Start) -> None:
    options = {**FULL, "method": "lcsb", "optimizer": "adamw", "learning_rate": 1e-2, "threads": 1}
    whole = start("whole", steps=5, save_every=3, **options)
    start("cut", steps=3, **options)
    cut = start("cut", steps=5, resume=True, **options)
    assert digest(cut.path / "model.gguf") == digest(whole.path / "model.gguf")


def test_a_step_of_mezo_moves_every_weight_along_its_direction(start: Start, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", tiny(TINY_QWEN2, tie_word_embeddings=False))
    options = {**FULL, "learning_rate": 1e-3, "method": "mezo", "freeze": "layers.0.*_bias"}
    run = start(model=str(model), count=2, batch_size=2, steps=1, master="fp32", seed=4, **options)
    before, after = tensors(model), tensors(run.path / "model.gguf")
    moved = {name: (after[name] - before[name]).astype(np.float64) for name in before}
    assert {name for name in moved if not moved[name].any()} == {f"blk.0.attn_{part}.bias" for part in "qkv"}
    slopes = []
    for name, place in {
        "token_embd.weight": ("embed_tokens", 0),
        "output.weight": ("lm_head", 0),
        "output_norm.weight": ("norm", 0),
        "blk.1.ffn_down.weight": ("down_proj", 2),
        "blk.1.attn_v.bias": ("v_bias", 2),
    }.items():
        part, layer = place
        shape = np.atleast_2d(before[name]).shape
        key = (4, 0, 0, zlib.crc32(part.encode()), layer)
        z = quantiles()[numbers(key, range(shape[0]), range(shape[1]))].reshape(before[name].shape)
        slopes.append(-np.vdot(moved[name], z) / np.vdot(z, z) / 1e-3)
        np.testing.assert_allclose(moved[name], -1e-3 * slopes[-1] * z, atol=2e-7 * np.abs(before[name]).max())
    assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=1e-2)
    assert abs(slopes[0]) > 1e-3


def test_mezo_of_whole_models_learns_and_is_resumed_to_the_bit(start: Start, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.F16)
    options = {**FULL, "learning_rate": 5e-4, "method": "mezo", "directions": 8, "threads": 1}
    options |= {"model": str(model), "count": 1}
    run = start(steps=30, **options)
    summary = run.record.summary
    assert summary.final_loss < 0.6 * summary.first_loss
    start("cut", steps=20, save_every=20, **options)
    cut = start("cut", steps=30, resume=True, **options)
    assert digest(cut.path / "model.gguf") == digest(run.path / "model.gguf")


@pytest.mark.parametrize("optimizer", tiers.some(["sgd", "adamw", "adamw8bit"], 1))
def test_in_bf16_it_learns(start: Start, tmp_path: Path, optimizer: str) -> None:
    model = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.F16)
    rate = {"sgd": 0.1}.get(optimizer, 3e-3)
    start(model=str(model), steps=60, **{**FULL, "optimizer": optimizer, "learning_rate": rate})
    summary = json.loads((tmp_path / "run" / "run.json").read_text())["summary"]
    assert summary["final_loss"] < 0.7 * summary["first_loss"]
    stored = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(tmp_path / "run/model.gguf").tensors}
    assert stored["blk.0.attn_q.weight"] == "BF16"
    assert stored["blk.0.attn_norm.weight"] == "F32"


@pytest.mark.parametrize("optimizer", ["adafactor", "adalomo"])
def test_what_looks_at_weights_first_writes_them_once(
    start: Start, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, writes = WeightFiles.write, Counter[tuple[Any, ...]]()

    def counted(files: WeightFiles, ctx: Any, place: WeightId, rows: slice, *rest: Any) -> None:
        writes[rest[-1], place, rows.start] += 1
        write(files, ctx, place, rows, *rest)

    monkeypatch.setattr(WeightFiles, "write", counted)
    start(steps=2, **{**FULL, "optimizer": optimizer, "learning_rate": 1e-3})
    assert {step for step, *_ in writes} == {1, 2}
    assert set(writes.values()) == {1}


def test_a_folder_becomes_a_folder(start: Start, tmp_path: Path) -> None:
    folder, _ = folder_and_gguf(tmp_path, TINY_LLAMA, "BF16")
    before = {path.name: digest(path) for path in folder.iterdir()}
    run = start(model=str(folder), steps=4, **FULL)
    assert {path.name: digest(path) for path in folder.iterdir()} == before
    theirs = AutoModelForCausalLM.from_pretrained(run.path / "model", dtype=torch.float32).eval()
    tokens = [5, 17, 3, 60, 2]
    logits = theirs(input_ids=torch.tensor([tokens])).logits[0].detach().numpy()
    for path, limit, same in ((run.path, 2e-2, True), (folder, 0.1, False)):
        ours = Decoder(models.load(path), compute="fp32").forward(tokens, every=True)
        assert bool(np.abs(ours - logits).max() < limit) is same


def test_a_quantised_model_is_dequantised_if_asked(start: Start, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, TensorType.Q4_0)
    before = digest(model)
    with pytest.raises(FeatherbackError, match=r"holds Q4_0 weights, .*: --dequantize trains them as BF16, which"):
        start(model=str(model), steps=2, **FULL)
    assert not (tmp_path / "run").exists()
    run = start(model=str(model), steps=2, dequantize=True, **FULL)
    assert digest(model) == before
    assert run.record.status == "finished"


def test_what_is_frozen_stays(start: Start, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf", TINY_LLAMA, {"": TensorType.BF16, "embed_tokens": TensorType.Q8_0})
    run = start(model=str(model), steps=3, freeze="embed_tokens,layers.0.*,*norm", **FULL)
    before, after = tensors(model), tensors(run.path / "model.gguf")
    changed = {name for name, values in after.items() if not np.array_equal(values, before[name])}
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    layers = range(1, TINY_LLAMA.num_hidden_layers)
    assert changed == {f"blk.{layer}.{part}.weight" for layer in layers for part in parts}


def test_the_model_is_written_in_another_format(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(steps=2, **FULL)
    assert command(["export", str(run.path), "--to", "merged", "--type", "q8_0"]) == 0
    made = tmp_path / "run-q8_0.gguf"
    assert f"wrote {made}" in capsys.readouterr().out
    stored = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(made).tensors}
    assert stored["blk.0.attn_q.weight"] == "Q8_0"
    tokens = [5, 17, 3, 60, 2]
    ours, theirs = (Decoder(models.load(path)).forward(tokens, every=True) for path in (run.path, made))
    assert 0 < np.abs(ours - theirs).max() < 0.1 * np.abs(ours).max()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 4}, "--rank only works with adapters; remove --rank, or remove --train full."),
        ({"dora": True}, "--dora only works with adapters"),
        ({"lora_dropout": 0.1}, "--lora-dropout only works with adapters"),
        ({"accumulate": 2}, "--accumulate is 2, but --train full cannot accumulate gradients"),
        ({"method": "mebp"}, "--method mebp only trains adapters; with --train full, choose lcsb, mesp or mezo."),
        (
            {"train": "lora", "freeze": "norm"},
            "--freeze only works with --train full; add --train full, or remove --freeze.",
        ),
        ({"freeze": ","}, "--freeze is ','; write a list of names such as"),
    ],
    ids=str,
)
def test_what_does_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FeatherbackError, match="^" + said.replace("(", r"\(").replace(".", r"\.").replace("*", r"\*")):
        TrainConfig.of(model="m", out="o", **{"train": "full", **options})


def test_a_rate_beyond_reason_keeps_the_last_good_model(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    good = start("good", steps=2, **FULL)
    monkeypatch.setattr(Schedule, "__call__", lambda schedule, step: 0.1 if step <= 2 else 1e30)
    with pytest.raises(
        FeatherbackError, match=r"lower --lr, for example to \S+\. The checkpoint and the model of step 2 are kept\."
    ):
        start("bad", steps=6, save_every=2, **FULL)
    bad = good.path.with_name("bad")
    assert digest(bad / "model.gguf") == digest(good.path / "model.gguf")
    assert json.loads((bad / "run.json").read_text())["status"] == "failed"


def test_a_damaged_copy_is_refused(start: Start) -> None:
    run = start(steps=2, **FULL)
    kept = run.path / "weights-000002" / "model.gguf"
    content = bytearray(kept.read_bytes())
    content[-1000] ^= 1
    kept.write_bytes(content)
    with pytest.raises(
        FeatherbackError, match=r"weights-000002/model.gguf is missing or damaged; delete weights-000002 and "
    ):
        start(steps=4, resume=True, **FULL)


def _without_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("folder", [False, True])
def test_a_disk_without_hard_links_has_the_model_as_well(
    start: Start, tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _without_links)  # as exFAT says
    options = {"model": str(folder_and_gguf(tmp_path, TINY_LLAMA, "BF16")[0])} if folder else {}
    run = start(steps=2, save_every=1, **options, **FULL)
    assert digest(weights(run.path, folder)) == digest(weights(run.path / "weights-000002", folder))


@pytest.mark.parametrize("folder", [False, True])
def test_the_best_model_stays_until_the_next_is_there(
    start: Start, tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full when a better model is to be written."""
    from featherback.runs import whole

    copied, copies = whole.clone_file, []

    def clone_file(source: Path, path: Path, *, in_place: bool = False) -> None:
        if path.name == result.name and path.parent in (result.parent, tmp_path / "run"):
            copies.append(path)
            if len(copies) == 2:
                raise FeatherbackError(f"Cannot copy {source} to {path}: No space left on device.")
        copied(source, path, in_place=in_place)

    result = weights(tmp_path / "run", folder)
    monkeypatch.setattr(whole, "clone_file", clone_file)
    options = {"model": str(folder_and_gguf(tmp_path, TINY_LLAMA, "BF16")[0])} if folder else {}
    with pytest.raises(FeatherbackError, match="No space left on device"):
        start(steps=4, eval_seed=7, eval_every=1, **options, **{**FULL, "learning_rate": 1e-2})
    assert len(copies) == 2
    assert result.is_file()


def test_a_disk_without_room_is_said_to_have_none_for_the_model(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(trainer, "disk_usage", lambda path: usage._replace(free=10**5))
    with pytest.raises(FeatherbackError, match=r"for checkpoints, model and scratch files\. Free some"):
        start(steps=1, **FULL)


def test_states_that_cannot_be_kept_say_where(tmp_path: Path) -> None:
    states = StateFile(AdamW(), [(WeightId("norm"), (1, 8))])
    (tmp_path / "taken").mkdir()
    with pytest.raises(FeatherbackError, match=r"^Cannot write .*taken: "):
        states.keep(tmp_path / "taken")


def test_states_in_memory_are_there_once_while_they_are_read(tmp_path: Path) -> None:
    device = backend.of("fp32")
    on = Device(device, device.arena(0))
    states = StateFile(AdamW(), [(WeightId("norm"), (1, 1 << 20))])
    with states.part(on, WeightId("norm"), "first_moment", 0, None) as values:
        values[...] = np.arange(1 << 20)
    states.keep(tmp_path / "kept")
    again = StateFile(AdamW(), [(WeightId("norm"), (1, 1 << 20))])
    tracemalloc.start()
    try:
        again.load(tmp_path / "kept")
        assert tracemalloc.get_traced_memory()[1] < states.size
    finally:
        tracemalloc.stop()
    with again.part(on, WeightId("norm"), "first_moment", 0, None) as values:
        np.testing.assert_array_equal(values, np.arange(1 << 20))


@pytest.mark.parametrize(
    ("freeze", "said"),
    [
        ("embed_tokens,layer.0.*", r"^--freeze 'layer\.0\.\*' matches no weight of .* such as layers\.0\.q_proj"),
        (
            "lm_head",
            "^--freeze lm_head matches no weight of .*Its weights are embed_tokens, norm, ",
        ),  # tied: it is embed_tokens
        ("*", r"^--freeze '\*' leaves nothing to train"),
    ],
)
def test_what_is_frozen_is_there_and_is_not_all(start: Start, tmp_path: Path, freeze: str, said: str) -> None:
    with pytest.raises(FeatherbackError, match=said):
        start(steps=1, freeze=freeze, **FULL)
    assert not (tmp_path / "run").exists()


def test_what_was_trained_cannot_change(start: Start) -> None:
    start(steps=1, **FULL)
    with pytest.raises(FeatherbackError, match="with other options: --train was full, not lora"):
        start(steps=2, resume=True, **{**FULL, "train": "lora"})


def test_what_does_not_fit_is_said_of_whole_models(start: Start) -> None:
    with pytest.raises(FeatherbackError, match=r"; a smaller --seq-len uses less memory\.$"):
        start(steps=1, memory=10**7, **FULL)


def test_a_run_is_opened_as_a_model_and_not_as_an_adapter(start: Start) -> None:
    run = start(steps=1, **FULL)
    with pytest.raises(FeatherbackError, match=r"holds a trained model, not an adapter: name .*model\.gguf"):
        formats.load(models.load(run.path), run.path)


@pytest.mark.parametrize(
    ("train", "others"),
    [
        ("full", ("lora-dropout", "loraplus-ratio", "rank", "alpha", "targets")),
        ("lora", ("master", "dequantize", "freeze")),
    ],
)
def test_a_run_says_the_options_that_mean_something(start: Start, train: str, others: tuple[str, ...]) -> None:
    run = start(steps=1, **(FULL if train == "full" else {}))
    text, page = (run.path / "run.yaml").read_text(), (run.path / "report.html").read_text()
    assert f"train: {train}\n" in text
    for name in others:
        assert f"\n{name.replace('-', '_')}:" not in text
        assert f"--{name}<" not in page
    assert "None" not in page
    assert read(run.path / "run.yaml").config({"model": "m", "out": "o"}).train == train


def test_what_can_follow_a_run_opens_its_model(start: Start) -> None:
    run = start(steps=1, **FULL)
    following = KIND.outlook(run.path, "run").next
    assert following[0] == "featherback chat run"
    assert not any("--adapter" in line or "--from" in line or "export" in line for line in following)


def test_what_stands_beside_the_trained_weights_may_be_edited(start: Start, tmp_path: Path) -> None:
    folder = str(folder_and_gguf(tmp_path, TINY_LLAMA, "BF16")[0])
    run = start(model=folder, steps=2, **FULL)
    with open(run.path / "model" / "config.json", "a") as file:
        file.write("\n")
    assert start(model=folder, steps=3, resume=True, **FULL).record.status == "finished"


@pytest.mark.parametrize("states", ["ram", "file"])
def test_a_resumed_run_ends_as_if_it_had_not_stopped(
    start: Start, tmp_path: Path, states: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featherback.methods.memory import planner

    candidates = planner.candidates
    monkeypatch.setattr(planner, "candidates", lambda job: (plan for plan in candidates(job) if plan.states == states))
    options = {**FULL, "optimizer": "adamw", "learning_rate": 1e-2, "threads": 1, "seed": 3}
    whole = start("whole", steps=6, save_every=4, **options)
    start("cut", steps=4, save_every=4, **options)
    cut = start("cut", steps=6, resume=True, save_every=4, **options)
    assert digest(cut.path / "model.gguf") == digest(whole.path / "model.gguf")
    assert sorted(path.name for path in cut.path.glob("weights-*")) == ["weights-000006"]
    assert not cut.work.exists()


@pytest.mark.parametrize("folder", [False, True])
def test_a_resumed_run_copies_its_weights_once(
    start: Start, tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from featherback.runs import whole

    options = {"model": str(folder_and_gguf(tmp_path, TINY_LLAMA, "BF16")[0])} if folder else {}
    run = start(steps=2, save_every=2, **options, **FULL)
    copied, copies = whole.clone_file, []

    def clone_file(source: Path, path: Path, *, in_place: bool = False) -> None:
        if run.work in path.parents and path.suffix in (".gguf", ".safetensors"):
            copies.append(path)
        copied(source, path, in_place=in_place)

    monkeypatch.setattr(whole, "clone_file", clone_file)
    start(steps=3, resume=True, save_every=2, **options, **FULL)
    assert len(copies) == 1
    monkeypatch.setattr(Schedule, "__call__", lambda schedule, step: 1e30 if step == 5 else 0.1)
    with pytest.raises(FeatherbackError, match="the model of step 3 are kept"):
        start(steps=5, resume=True, save_every=5, **options, **FULL)
    assert len(copies) == 3  # and once more on the way back
    kept = run.path / "weights-000003"
    assert digest(weights(run.path, folder)) == digest(weights(kept, folder))


@pytest.fixture(scope="module")
def undisturbed(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = runs.prepared(tiny_path, tmp_path_factory.mktemp("undisturbed") / "run", **KILLED)
    return digest(runs.finished(run).path / "model.gguf")


def test_a_signal_ends_the_first_copy(tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.prepared(tiny_path, tmp_path / "run", **FULL, steps=2)
    interrupt, pieces, wrote = Interrupt(), [], Converting.wrote

    def signalled(shown: Converting, size: int) -> None:
        pieces.append(size)
        interrupt.requested = True
        wrote(shown, size)

    monkeypatch.setattr(Converting, "wrote", signalled)
    assert train_run(run, interrupt=interrupt) == "interrupted"
    assert len(pieces) == 1
    assert run.record.status == "interrupted"
    assert not run.work.exists()
    monkeypatch.undo()
    assert train_run(runs.resumed(tiny_path, run.path)) == "finished"


CUTS = """
import os, sys
from featherback.core.terminal import Converting
model, wrote = sys.argv.pop(), Converting.wrote

def cut(shown, size):
    os.truncate(model, 4096)
    wrote(shown, size)

Converting.wrote = cut
from featherback import worker
sys.exit(worker.main(sys.argv[1:]))
"""


def test_a_model_that_is_cut_short_while_it_is_copied_is_told(tiny_path: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(tiny_path.read_bytes())
    run = runs.prepared(model, tmp_path / "run", **FULL, steps=2)
    run.release()
    process = runs.worker(run.path, CUTS, str(model))
    _, err = process.communicate(timeout=runs.PATIENCE)
    assert process.returncode == 2
    assert f"{model} was truncated by another program" in err
    assert not (tmp_path / "run" / "work").exists()


KILLED = {**FULL, "optimizer": "adamw", "learning_rate": 1e-2, "steps": 12, "save_every": 2, "threads": 1}


@pytest.mark.parametrize("number", tiers.some(range(KILLS), 1))
def test_a_killed_run_ends_as_if_it_had_not_been(
    tiny_path: Path, tmp_path: Path, undisturbed: str, number: int
) -> None:
    """Even numbers die inside a write, of a weight or a checkpoint, odd ones at a random moment."""
    before, writes = digest(tiny_path), (*WRITES, "link", "pwrite")
    run = runs.killed_and_finished(number, tiny_path, tmp_path / "run", writes, 200, 0.5, **KILLED)
    assert digest(run.path / "model.gguf") == undisturbed
    assert digest(tiny_path) == before


# --- rounding ---


def _rounded(values: np.ndarray, key: tuple[int, ...], first_row: int = 0) -> np.ndarray:
    out = np.empty(values.shape, np.uint16)
    CPUOperations.round_at_random(values, key, first_row, out)
    return (out.astype(np.uint32) << 16).view(np.float32)


def test_rounding_draws_the_numbers_of_its_places() -> None:
    values = np.random.default_rng(0).standard_normal((7, 333)).astype(np.float32)
    drawn = numbers((1, 2), range(4, 11), range(333))
    expected = ((values.view(np.uint32) + drawn) >> np.uint32(16) << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(_rounded(values, (1, 2), 4), expected)
    np.testing.assert_array_equal(_rounded(values[3:], (1, 2), 7), expected[3:])


def test_rounding_keeps_the_mean_and_has_the_variance_of_a_coin() -> None:
    rng, rounds = np.random.default_rng(1), 2000
    values = (rng.standard_normal((4, 64)) * 10.0 ** rng.uniform(-6, 3, (4, 64))).astype(np.float32)
    low = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    high = ((values.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    found = np.stack([_rounded(values, (step,)) for step in range(rounds)]).astype(np.float64)
    assert ((found == low) | (found == high)).all()
    gap, share = (high - low).astype(np.float64), (values - low).astype(np.float64) / (high - low)
    deviation = np.sqrt(share * (1 - share) / rounds) * np.abs(gap)
    assert (np.abs(found.mean(axis=0) - values) <= 5 * deviation + 2**-16 * np.abs(gap)).all()
    assert np.isclose(found.var(axis=0).sum() / (share * (1 - share) * gap**2).sum(), 1, atol=0.2)
    exact = low.copy()
    np.testing.assert_array_equal(_rounded(exact, (9,)), exact)
