import pytest

from featherback.architecture.names import HF_NAMES, TARGETS, hf_module, parse_targets
from featherback.errors import FeatherbackError


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
    assert parse_targets(given) == expected


@pytest.mark.parametrize("given", ["q,w", "lm_head", "Q", "q_proj_proj", "proj", "_proj"])
def test_unknown_target(given: str) -> None:
    with pytest.raises(FeatherbackError, match="Unknown LoRA target"):
        parse_targets(given)


@pytest.mark.parametrize("given", ["", " , ", []])
def test_no_target(given: str | list[str]) -> None:
    with pytest.raises(FeatherbackError, match="No LoRA target"):
        parse_targets(given)


def test_hf_module() -> None:
    assert hf_module(HF_NAMES, 0, "q_proj") == "model.layers.0.self_attn.q_proj"
    assert hf_module(HF_NAMES, 11, "down_proj") == "model.layers.11.mlp.down_proj"
    assert HF_NAMES["o_proj"].format(3) == "model.layers.3.self_attn.o_proj.weight"
    with pytest.raises(ValueError, match="not a projection"):
        hf_module(HF_NAMES, 0, "q")
