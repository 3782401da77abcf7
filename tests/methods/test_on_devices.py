"""Gradients on PyTorch's CPU device: the tests against autograd, with the device that `backend.use` chooses.

Families, kinds of adapters, objectives and methods. `make test-torch` runs all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from featherback.engine import backend
from featherback.engine.backend.torch_device.arrays import Array
from featherback.engine.backend.torch_device.device import TorchDevice
from featherback.errors import FeatherbackError
from featherback.methods import METHODS
from tests.methods import (
    test_distillation,
    test_dora,
    test_dropout,
    test_exact_gradients,
    test_expert_adapters,
    test_ia3,
    test_labels,
    test_layers,
    test_objectives,
    test_preferences,
    test_prefixes,
    test_spartan,
)
from tests.methods.conftest import Twins
from tests.methods.support import assert_close, assert_equal, ours
from tests.support import tiers
from tests.support.families import cases, dense
from tests.support.oracle import random_adapter

RECURRENT = ("qwen35", "qwen3next", "hgrn_bit")
"""Prefixes of the cases with an operation that no card has: they are refused."""
PLANS: tuple[tuple[str, dict[str, Any]], ...] = (("mesp", {}), ("mebp", {}), ("mesp", {"chunk": 5}))


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    with backend.restored():
        backend.use("cpu-torch")
        yield


def _is_recurrent(name: str) -> bool:
    return name.startswith(RECURRENT)


DENSE = [name for name in dense() if not _is_recurrent(name)]


@pytest.mark.parametrize("name", tiers.some(DENSE, 4))
def test_every_dense_family(all_twins: dict[str, Twins], name: str) -> None:
    test_exact_gradients.test_every_family(all_twins[name])


@pytest.mark.parametrize("name", tiers.some([name for name in cases() if name not in dense()], 1))
def test_families_with_experts(all_twins: dict[str, Twins], name: str) -> None:
    if _is_recurrent(name):
        return
    test_exact_gradients.test_every_family(all_twins[name])
    if name in test_expert_adapters.ROUTED:
        test_expert_adapters.test_gradients_are_autograds(all_twins, name)


@pytest.mark.parametrize("name", tiers.some([name for name in cases() if _is_recurrent(name)], 1))
def test_recurrences_are_refused(all_twins: dict[str, Twins], name: str) -> None:
    twins = all_twins[name]
    with pytest.raises(FeatherbackError, match=r"cpu-torch.* does not have the operation `"):
        ours(twins.model, random_adapter(twins.reference, 4), [[1, 2, 3]])


@pytest.mark.parametrize("name", tiers.some(["llama", "gemma2", "qwen2"], 1))
def test_streamed_weights_change_no_bit(all_twins: dict[str, Twins], name: str) -> None:
    twins = all_twins[name]
    given = twins.model, random_adapter(twins.reference, 4, seed=1), [[1, 2, 3, 4, 5], [7, 8]]
    found = ours(*given)
    assert_equal(found, ours(*given))
    assert_equal(found, ours(*given, weights="streamed"))


KINDS: dict[str, Callable[[dict[str, Twins], str, str, dict[str, Any]], None]] = {
    "dora": test_dora.test_gradients_are_autograds,
    "ia3": test_ia3.test_gradients_are_autograds,
    "dropout": test_dropout.test_gradients_are_autograds_with_the_same_masks,
}


@pytest.mark.parametrize("name", tiers.some(["llama", "gemma3", "phi3"], 1))
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_adapters(all_twins: dict[str, Twins], kind: str, name: str) -> None:
    for method, plan in PLANS:
        KINDS[kind](all_twins, name, method, plan)


def test_spartan_memories(all_twins: dict[str, Twins]) -> None:
    test_spartan.test_gradients_are_autograds(all_twins, "llama")


@pytest.mark.parametrize("choice", tiers.some(["last:2", "1,3"], 1))
def test_some_layers(all_twins: dict[str, Twins], choice: str) -> None:
    test_layers.test_in_every_layout(all_twins, choice, {})


@pytest.mark.parametrize("targets", tiers.some(["q_proj", "up_proj+down_proj", "k_proj+o_proj"], 1))
def test_some_targets(all_twins: dict[str, Twins], targets: str) -> None:
    test_exact_gradients.test_subsets_of_targets(all_twins, tuple(targets.split("+")), "mesp")


@pytest.mark.parametrize("case", tiers.some(list(test_preferences.CASES), 2))
def test_preferences_of_every_kind(all_twins: dict[str, Twins], case: str) -> None:
    for plan in ({}, {"chunk": 7}):
        test_preferences.test_gradients_are_autograds(all_twins, case, plan)


@pytest.mark.parametrize("name", tiers.some([*test_objectives.CASES, *test_objectives.SOFT], 2))
def test_objectives_of_the_head(all_twins: dict[str, Twins], name: str) -> None:
    for head in ("llama-untied", "gemma2"):
        for chunk in (None, 6):
            apart = test_objectives.errors_of_head(all_twins[head], name, chunk, False)
            assert max(apart.values()) < test_objectives.BOUND, (head, chunk, apart)


@pytest.mark.parametrize("name", tiers.some(["llama", "gemma2"], 1))
def test_labels_and_rewards(all_twins: dict[str, Twins], name: str) -> None:
    test_labels.test_gradients_of_labels_are_autograds(all_twins, name)
    test_labels.test_gradients_of_rewards_are_autograds(all_twins, name)


@pytest.mark.parametrize("family", tiers.some(["gemma2", "llama-untied"], 1))
def test_a_teacher(all_twins: dict[str, Twins], family: str) -> None:
    test_distillation.test_teachers_of_other_families(all_twins, family)


@pytest.mark.parametrize("plan", tiers.some([{}, {"chunk": 5}], 1), ids=str)
def test_prompts_that_are_shared(all_twins: dict[str, Twins], plan: dict[str, Any]) -> None:
    test_prefixes.test_gradients_are_autograds(all_twins, "llama", plan)


@pytest.mark.parametrize("method", METHODS.names)
def test_other_methods_find_what_they_find_on_the_cpu(all_twins: dict[str, Twins], method: str) -> None:
    """Random numbers are the same. MeZO reads the difference of two losses, which rounding changes more."""
    twins = all_twins["llama"]
    given = twins.model, random_adapter(twins.reference, 4, seed=1), [[1, 2, 3, 4, 5] * 4]
    found = ours(*given, method=method)
    backend.use()
    wanted = ours(*given, method=method)
    assert_close(found, wanted, 1e-4 if method in ("mesp", "mebp", "lcsb") else 0.02)


FAULTS = {
    "lora_gradient": 2, "rms_norm_backward": 3, "rope": 3, "attention_backward": 7, "glu_backward": 3,
    "cross_entropy_finish": 5, "linear": 1,
}  # fmt: skip
"""Operations, and the number of the array that they write among those they are given in order."""


@pytest.mark.parametrize("operation", FAULTS)
def test_a_planted_fault_of_an_operation_is_found(
    all_twins: dict[str, Twins], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the operation writes is wrong by a thousandth."""
    made = TorchDevice.__init__

    def planted(self: TorchDevice, *arguments: Any) -> None:
        made(self, *arguments)
        right = getattr(self.ops, operation)

        def wrong(*given: Any, **options: Any) -> None:
            right(*given, **options)
            arrays = [each for each in given if isinstance(each, Array)]
            if len(arrays) > FAULTS[operation]:  # a loss without a gradient has fewer
                arrays[FAULTS[operation]].tensor.mul_(1.001)

        setattr(self.ops, operation, wrong)

    monkeypatch.setattr(TorchDevice, "__init__", planted)
    with pytest.raises(AssertionError):
        test_exact_gradients.check(all_twins["llama"], "mesp", test_exact_gradients.draw((19, 5), 101))
