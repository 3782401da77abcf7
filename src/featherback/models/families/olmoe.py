"""OLMoE: a mixture of experts in each layer, and a norm over all heads of a query, and of a key.

The weights of experts are their softmax over all experts, not normalised, unless the file states otherwise.
"""

from __future__ import annotations

from featherback.models.families.qwen3moe import Qwen3Moe


class Olmoe(Qwen3Moe):
    architecture = "olmoe"
    called = "OLMoE"
    model_types = ("olmoe",)
    normalised = False
    expert_size = "intermediate_size"
    qk_norm = "whole"


FAMILY = Olmoe()
