"""The plain MLP, a unit without a gate, as in GPT-2 and StarCoder2: a LayerNorm, GELU, and biases.

Forward:    n = (m - mean) / std g + b;   z = up(n);   a = gelu(z);   y = m + down(a)
Backward:   da = dy W_d;   dz = da gelu'(z);   dn = dz W_u;   dm = dy + the gradient of the norm

The schedule is that of the gated unit, with one product instead of two: tiles of F, z computed again or kept. dz needs
z only for the slope gelu'(z). So of z two bits may be kept (`encodings/regelu2.py`), if the user asks for it and
nothing else reads z or a: dA of an adapter on down does. See docs/derivations/mlp.md.
"""

from __future__ import annotations

from featherback.nn.encodings import ENCODINGS
from featherback.nn.glu import GatedUnit
from featherback.nn.linear import bias_of

ACTIVATION = "gelu_tanh"


class PlainMLP(GatedUnit):
    """The MLP of a block without a gate. Its projections are up_proj (F, D) and down_proj (D, F), both with biases."""

    def __init__(
        self, *, hidden_size: int, intermediate_size: int, eps: float, pre_norm: str = "post_attention_layernorm"
    ) -> None:
        slopes = (name for name in ENCODINGS.names if ENCODINGS[name].slopes_of == ACTIVATION)
        super().__init__(
            hidden_size=hidden_size, intermediate_size=intermediate_size, eps=eps, activation=ACTIVATION,
            pre_norm=pre_norm, parts=("up",), encodings=("operand", "blocks8", *slopes),
        )  # fmt: skip
        self.vectors |= {
            bias_of(pre_norm): (hidden_size,),
            "up_bias": (intermediate_size,),
            "down_bias": (hidden_size,),
        }
