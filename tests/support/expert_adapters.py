"""Adapters of experts and routers in PEFT (`target_parameters`), and ours, written out anew.

PEFT adapts parameters. The experts of a layer are two: gate_up_proj, whose rows are gate's, then up's (gpt-oss: in
turns), and down_proj. Where the file has gate and up apart, each has a pair of its own: together they are a pair of
twice the rank, with B block-diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from featherback.models.adapter import LoRA
from featherback.models.model import Model
from tests.methods.support import Result
from tests.support.oracle import _loss

State = dict[str, np.ndarray]
ALPHA = 16.0


def random_values(model: Model, targets: str, rank: int, seed: int = 0, layers: str = "all") -> LoRA:
    """An adapter in which neither A nor B is zero."""
    adapter, rng = LoRA(model, rank, ALPHA, targets, layers=layers), np.random.default_rng(seed)
    state = {}
    for name, shape in adapter.shapes().items():
        deviation = shape[-1] ** -0.5 if ".lora_A." in name else 0.3 * rank**-0.5
        state[name] = (deviation * rng.standard_normal(shape)).astype(np.float32)
    adapter.load_state(state)
    return adapter


def peft_of(theirs: PreTrainedModel, state: Mapping[str, np.ndarray], alpha: float = ALPHA) -> PeftModel:
    """The model with this adapter, given in our names and layouts."""
    rank = next(array.shape[-2] for name, array in state.items() if ".lora_A." in name)
    routers, stacks, modules = set[str](), set[str](), set[str]()
    for stem in {name.split(".lora_")[0] for name in state}:
        container, _, last = stem.rpartition(".")
        if container.endswith(".experts"):
            stacks.add("down_proj" if last == "down_proj" else "gate_up_proj")
        elif last in ("gate", "router"):
            routers.add(f"{last}.weight")
        else:
            modules.add(last)
    doubled = any(".experts.gate_proj." in name for name in state)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=sorted(modules),
        target_parameters=sorted(stacks | routers),
        rank_pattern={"gate_up_proj": 2 * rank} if doubled else {},
        alpha_pattern={"gate_up_proj": 2 * alpha} if doubled else {},
    )
    peft = get_peft_model(theirs, config)
    wanted = _in_peft(state, theirs)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(wanted.pop(_short(name)))))
    assert not wanted, "PEFT has all of them"
    return peft.eval()


def autograd_of_experts(
    theirs: PreTrainedModel, state: Mapping[str, np.ndarray], sequences: Sequence[Sequence[int]]
) -> Result:
    """The mean loss and its gradient, in our names and layouts."""
    peft = peft_of(theirs, state)
    loss, _ = _loss(peft, sequences, None, lambda peft, first, count: None)
    loss.backward()
    found = {_short(name): p.grad.numpy().copy() for name, p in peft.named_parameters() if p.grad is not None}
    peft.unload()
    return Result(loss.item(), _ours(found, state, theirs))


def _short(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".default.", ".")


def _in_peft(state: Mapping[str, np.ndarray], theirs: Any) -> State:
    found = dict[str, np.ndarray]()
    for stem in dict.fromkeys(name.split(".lora_")[0] for name in state):
        a, b = (state[f"{stem}.lora_{x}.weight"] for x in "AB")
        container, _, last = stem.rpartition(".")
        if a.ndim == 2:
            found |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
            continue
        if last == "up_proj":
            continue
        if last == "gate_proj":
            up_a, up_b = (state[f"{container}.up_proj.lora_{x}.weight"] for x in "AB")
            experts, rows, rank = b.shape
            both = np.zeros((experts, 2 * rows, 2 * rank), np.float32)
            for n, part in enumerate((b, up_b)):
                both[:, _rows(theirs, rows, n), n * rank : (n + 1) * rank] = part
            a, b = np.concatenate([a, up_a], axis=1), both
        inner = "" if last == "down_proj" or not _has_down(state, container) else ".base_layer"
        found[f"{container}{inner}.lora_A.weight"] = a.reshape(-1, a.shape[2])
        found[f"{container}{inner}.lora_B.weight"] = b.transpose(1, 2, 0).reshape(b.shape[1], -1)
    return found


def _ours(found: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray], theirs: Any) -> State:
    grads = dict[str, np.ndarray]()
    for name, values in state.items():
        stem, part = name.split(".lora_")
        container, _, last = stem.rpartition(".")
        if values.ndim == 2:
            grads[name] = found[name]
            continue
        inner = "" if last == "down_proj" or not _has_down(state, container) else ".base_layer"
        grad, experts = found[f"{container}{inner}.lora_{part}"], len(values)
        n = {"gate_proj": 0, "up_proj": 1}.get(last)
        rank = values.shape[1] if part.startswith("A") else values.shape[2]
        own = slice(None) if n is None else slice(n * rank, (n + 1) * rank)
        if part.startswith("A"):
            grads[name] = grad.reshape(experts, -1, grad.shape[1])[:, own]
        else:
            each = grad.reshape(len(grad), -1, experts).transpose(2, 0, 1)[..., own]
            grads[name] = each if n is None else each[:, _rows(theirs, values.shape[1], n)]
    return grads


def _rows(theirs: Any, rows: int, part: int) -> slice:
    """The rows of gate (part 0) or up (1) among both."""
    if theirs.config.model_type == "gpt_oss":
        return slice(part, 2 * rows, 2)
    return slice(part * rows, (part + 1) * rows)


def _has_down(state: Mapping[str, np.ndarray], container: str) -> bool:
    return f"{container}.down_proj.lora_A.weight" in state
