"""A folder with 64 experts, several times as large as the budget: it is converted and trained within the budget."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.budget import named_mb

CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024, "moe_intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 500,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True,
    "num_experts": 64, "num_experts_per_tok": 4, "norm_topk_prob": True, "hidden_act": "silu",
}  # fmt: skip
TRAIN = """
import json, sys
import featherback as fb
from featherback.errors import FeatherbackError

folder, out, quantize, memory = sys.argv[1:]
texts = [[(7 * i + n) % 500 for i in range(64)] for n in range(4)]
try:
    run = fb.train(folder, texts, out, steps=2, seq_len=64, rank=4, progress=False, memory=memory, quantize=quantize)
except FeatherbackError as error:
    sys.exit(str(error))
print(json.dumps(json.load(open(f"{out}/run.json"))["summary"]))
"""


def folder_of(path: Path, joined: bool) -> Path:
    """400 MB of random bf16 weights."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    make = torch.Generator().manual_seed(0)
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (500, 512), "model.norm.weight": (512,)}
    for layer in range(4):
        name = f"model.layers.{layer}."
        tensors |= {f"{name}{norm}_layernorm.weight": (512,) for norm in ("input", "post_attention")}
        tensors |= {f"{name}self_attn.{norm}_norm.weight": (64,) for norm in "qk"}
        tensors |= {f"{name}self_attn.{q}_proj.weight": (512, 512) for q in "qo"}
        tensors |= {f"{name}self_attn.{k}_proj.weight": (128, 512) for k in "kv"}
        tensors[f"{name}mlp.gate.weight"] = (64, 512)
        if joined:
            tensors[f"{name}mlp.experts.gate_up_proj"] = (64, 1024, 512)
            tensors[f"{name}mlp.experts.down_proj"] = (64, 512, 512)
            continue
        for expert in range(64):
            tensors |= {f"{name}mlp.experts.{expert}.{part}_proj.weight": (512, 512) for part in ("gate", "up", "down")}
    save_file(
        {
            name: torch.ones(shape).bfloat16()
            if len(shape) == 1
            else (torch.randn(shape, generator=make) * 0.04).bfloat16()
            for name, shape in tensors.items()
        },
        path / "model.safetensors",
    )
    return path


@pytest.mark.full("400 MB of weights")
@pytest.mark.parametrize(("joined", "quantize"), [(False, "none"), (True, "none"), (False, "q4_0")])
def test_experts_of_a_folder_are_paged_within_the_budget(
    tmp_path: Path, own_cache: Path, joined: bool, quantize: str
) -> None:
    folder = folder_of(tmp_path / "model", joined)
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6

    def train(out: str, memory: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", TRAIN, folder, tmp_path / out, quantize, memory]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    budget = named_mb(train("refused", "1MB").stderr)
    shutil.rmtree(own_cache / "weights", ignore_errors=True)
    done = train("run", f"{budget}MB")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["peak_rss_mb"] <= budget
    assert size > 4 * budget
