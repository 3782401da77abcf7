"""Gradients of autograd at a chosen precision. What compares ours with them is `tests.support.own_gradients`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

from tests.support.oracle import PEFT_PREFIX
from tests.support.own_gradients import ALPHA as ALPHA
from tests.support.own_gradients import VANISHED as VANISHED
from tests.support.own_gradients import Labels as Labels
from tests.support.own_gradients import Result as Result
from tests.support.own_gradients import State as State
from tests.support.own_gradients import adapter_of as adapter_of
from tests.support.own_gradients import assert_close as assert_close
from tests.support.own_gradients import assert_equal as assert_equal
from tests.support.own_gradients import cosines as cosines
from tests.support.own_gradients import errors as errors
from tests.support.own_gradients import ours as ours
from tests.support.own_gradients import with_plan as with_plan


def autograd(
    model: PreTrainedModel,
    state: Mapping[str, np.ndarray],
    sequence: Sequence[int],
    dtype: torch.dtype,
    layers: Sequence[int] | None = None,
) -> Result:
    """Like the oracle's `reference`, with model and adapter in `dtype`. `model` itself is float32 again afterwards.

    `layers`: PEFT's layers_to_transform.
    """
    rank = next(a.shape[0] for name, a in state.items() if ".lora_A." in name)
    angles = {name: buffer.clone() for name, buffer in model.model.rotary_emb.named_buffers()}
    # A wider type gives the weights back unchanged; a copy of a real model would take gigabytes.
    converted = (copy.deepcopy(model) if dtype == torch.bfloat16 else model).to(dtype)
    _restore(converted, angles)
    targets = sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in state})
    chosen = None if layers is None else list(layers)
    config = LoraConfig(r=rank, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=targets, layers_to_transform=chosen)
    peft = get_peft_model(converted, config).to(dtype).eval()
    _restore(converted, angles)
    trained = {
        name.removeprefix(PEFT_PREFIX).replace(".default.", "."): parameter
        for name, parameter in peft.named_parameters()
        if parameter.requires_grad
    }
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(state[name])))
    tokens = torch.tensor([list(sequence)])
    logits = peft(input_ids=tokens, use_cache=False).logits[0, :-1]
    wide = logits.double() if dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(wide, tokens[0, 1:])
    loss.backward()
    found = Result(loss.item(), {name: p.grad.double().numpy().copy() for name, p in trained.items()})
    if converted is model:
        peft.unload()
        _restore(model.float(), angles)
    return found


def _restore(model: PreTrainedModel, angles: Mapping[str, torch.Tensor]) -> None:
    """Keep the angles as a float32 constant; transformers chooses the type of their tables."""
    for name, buffer in angles.items():
        setattr(model.model.rotary_emb, name, buffer.clone())
