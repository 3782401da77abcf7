"""`python -m benchmarks.peft_step JSON`: a few training steps of transformers + PEFT, for comparison only.

A model of the same shapes with random weights, adapters on all
seven projections, AdamW on them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any


def prepared(request: dict[str, Any]) -> Callable[[], float]:
    """Return a function that makes a step and returns its loss.

    Keys: config (Hugging Face names), tokens, rank, dtype ("bf16" | "fp32"), checkpointing, threads.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[request["dtype"]]
    known = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    values = dict(request["config"])
    config_class, model_class = known[values.pop("architecture")]
    torch.set_default_dtype(dtype)
    model = model_class(config_class(**values))
    torch.set_default_dtype(torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=request["rank"], lora_alpha=16, lora_dropout=0.0, target_modules=targets)
    peft = get_peft_model(model, config, autocast_adapter_dtype=False).train()
    peft.config.use_cache = False
    if request["checkpointing"]:
        peft.enable_input_require_grads()
        peft.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in peft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> float:
        tokens = torch.randint(0, values["vocab_size"], (1, request["tokens"]))
        loss = peft(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Make `steps` steps. The other keys are those of `prepared`."""
    import torch

    step = prepared(request)
    seconds, losses = [], []
    for _ in range(request["steps"]):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "losses": losses, "torch": torch.__version__}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
