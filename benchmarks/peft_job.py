"""`python -m benchmarks.peft_job REQUEST`: a chat fine-tune by transformers + PEFT, for comparison only.

REQUEST is a JSON file. It measures from the model folder to the adapter. Batches are padded; the rest follows `job`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

IGNORE = -100
EVALUATED = 8  # held-out examples at once


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Keys: model (a Hugging Face folder), data and held_out (JSONL of messages, or of tokens with labels), out, groups
    (the examples of each step), rates (a learning rate each), rank, alpha, weight_decay, max_grad_norm, dtype
    ("bf16" | "fp32"), checkpointing, threads; evaluated (held-out examples, if not all).
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[request["dtype"]]
    model = AutoModelForCausalLM.from_pretrained(request["model"], dtype=dtype)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=request["rank"], lora_alpha=request["alpha"], lora_dropout=0.0, target_modules=targets)
    peft = get_peft_model(model, config).train()
    peft.config.use_cache = False
    if request["checkpointing"]:
        peft.enable_input_require_grads()
        peft.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in peft.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=request["weight_decay"])

    start = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(request["model"])
    train, held_out = (_examples(tokenizer, Path(request[name])) for name in ("data", "held_out"))
    held_out = held_out[: request.get("evaluated")]
    prepare_seconds = time.perf_counter() - start

    def batch(examples: list[_Example]) -> dict[str, Any]:
        size = max(len(tokens) for tokens, _ in examples)
        padding = [size - len(tokens) for tokens, _ in examples]
        return {
            "input_ids": torch.tensor([t + [0] * n for (t, _), n in zip(examples, padding)]),
            "labels": torch.tensor([labels + [IGNORE] * n for (_, labels), n in zip(examples, padding)]),
            "attention_mask": torch.tensor([[1] * (size - n) + [0] * n for n in padding]),
        }

    def evaluate() -> float:
        total, count = 0.0, 0
        with torch.no_grad():
            for first in range(0, len(held_out), EVALUATED):
                part = held_out[first : first + EVALUATED]
                n = _supervised(part)
                total += peft(**batch(part)).loss.item() * n
                count += n
        return total / count

    losses = [evaluate()]
    seconds, supervised = [], []
    for group, rate in zip(request["groups"], request["rates"], strict=True):
        start = time.perf_counter()
        examples = [train[i] for i in group]
        optimizer.param_groups[0]["lr"] = rate
        peft(**batch(examples)).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, request["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        supervised.append(_supervised(examples))
    losses.append(evaluate())
    peft.save_pretrained(request["out"])
    return {
        "prepare_seconds": prepare_seconds,
        "seconds": seconds,
        "supervised": supervised,
        "held_out": losses,
        "torch": torch.__version__,
    }


_Example = tuple[list[int], list[int]]  # tokens and labels


def _examples(tokenizer: Any, path: Path) -> list[_Example]:
    """Chats whose last message is trained, with its end token. Examples that are tokens already stay as they are."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        example = json.loads(line)
        if "tokens" in example:
            found.append((example["tokens"], example["labels"]))
            continue
        messages = example["messages"]
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
        asked = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        end = len(whole) - whole[::-1].index(tokenizer.eos_token_id)
        labels = [t if len(asked) <= i < end else IGNORE for i, t in enumerate(whole)]
        found.append((whole, labels))
    return found


def _supervised(examples: list[_Example]) -> int:
    return sum(label != IGNORE for _, labels in examples for label in labels)


def unpack(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder of bf16 weights, the usual base for PEFT."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    ).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    if sys.argv[1] == "unpack":
        unpack(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(json.dumps(main(json.loads(Path(sys.argv[1]).read_bytes()))))
