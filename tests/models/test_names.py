import pytest

from featherback.errors import FeatherbackError
from featherback.models.architecture.names import ATTENTION, HF_NAMES, MLP, hf_module, parse_targets

TARGETS = ATTENTION + MLP
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("all", TARGETS),
        (["all"], TARGETS),
        ("v,q", ("q_proj", "v_proj")),
        ("down_proj, q", ("q_proj", "down_proj")),
        (["gate", "gate_proj"], ("gate_proj",)),
        (TARGETS, TARGETS),
    ],
)
def test_parse_targets(given: str | list[str], expected: tuple[str, ...]) -> None:
    assert parse_targets(given, TARGETS) == expected


@pytest.mark.parametrize("given", ["q,w", "lm_head", "Q", "q_proj_proj", "proj", "_proj"])
def test_unknown_target(given: str) -> None:
    with pytest.raises(FeatherbackError, match="Unknown LoRA target"):
        parse_targets(given, TARGETS)


def test_targets_are_those_that_a_model_has() -> None:
    assert parse_targets("all", FUSED) == FUSED
    assert parse_targets("gate_up,qkv_proj", FUSED) == ("qkv_proj", "gate_up_proj")
    with pytest.raises(FeatherbackError, match="target 'q'; expected one of: qkv, o, gate_up, down, all"):
        parse_targets("q", FUSED)


@pytest.mark.parametrize("given", ["", " , ", []])
def test_no_target(given: str | list[str]) -> None:
    with pytest.raises(FeatherbackError, match="list of LoRA targets is empty; choose some of "):
        parse_targets(given, TARGETS)


def test_hf_module() -> None:
    assert hf_module(HF_NAMES, 0, "q_proj") == "model.layers.0.self_attn.q_proj"
    assert hf_module(HF_NAMES, 11, "down_proj") == "model.layers.11.mlp.down_proj"
    assert HF_NAMES["o_proj"].format(3) == "model.layers.3.self_attn.o_proj.weight"
    with pytest.raises(ValueError, match="not a projection"):
        hf_module(HF_NAMES, 0, "q")
