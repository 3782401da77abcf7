"""The live set: every array of a pass, when it is born and when it dies. Its largest sum is the arena's size.

Each function walks through one phase of `backprop` in the same order, with the same frames, and takes the same arrays;
`docs/memory.md` shows the result and a test holds it against the arena's high-water mark, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from featherback.adapters.shapes import layer_size
from featherback.memory.arena import aligned
from featherback.memory.plan import Plan
from featherback.models.config import ModelConfig

F32, INT = 4, 4
LOSS_ROWS = 256
"""Supervised tokens whose loss is finished at a time."""


@dataclass
class Entry:
    """One array: its shape, bytes an element, and the moments of its birth and death."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    born: int
    dies: int = -1

    @property
    def nbytes(self) -> int:
        """Bytes it occupies in the arena."""
        total = self.itemsize
        for extent in self.shape:
            total *= extent
        return aligned(total)


@dataclass
class Ledger:
    """Births and deaths, written down in order."""

    entries: list[Entry] = field(default_factory=list)
    _live: list[Entry] = field(default_factory=list)
    _now: int = 0

    def take(self, name: str, *shape: int, itemsize: int = F32) -> None:
        """An array is born; it dies with the frame it was taken in."""
        self._now += 1
        entry = Entry(name, shape, itemsize, self._now)
        self.entries.append(entry)
        self._live.append(entry)

    @contextmanager
    def frame(self) -> Iterator[None]:
        """What is taken inside dies at the end."""
        depth = len(self._live)
        yield
        self._now += 1
        for entry in self._live[depth:]:
            entry.dies = self._now
        del self._live[depth:]

    def live_at(self, moment: int) -> list[Entry]:
        """The arrays alive at a moment."""
        return [e for e in self.entries if e.born <= moment and (e.dies > moment or e.dies < 0)]

    def peak(self) -> tuple[int, int]:
        """(largest sum in bytes, its moment)."""
        best, best_moment, total = 0, 0, 0
        deaths: dict[int, int] = {}
        for entry in self.entries:
            if entry.dies >= 0:
                deaths[entry.dies] = deaths.get(entry.dies, 0) + entry.nbytes
        births = {entry.born: entry.nbytes for entry in self.entries}
        for moment in range(1, self._now + 1):
            total += births.get(moment, 0) - deaths.get(moment, 0)
            if total > best:
                best, best_moment = total, moment
        return best, best_moment


@dataclass(frozen=True)
class Sizes:
    """The extents the phases are written in."""

    config: ModelConfig
    plan: Plan
    rank: int
    targets: tuple[str, ...]

    @property
    def operand(self) -> int:
        """Bytes of an operand's element."""
        return 4 if self.plan.compute == "fp32" else 2

    @property
    def adapter(self) -> int:
        """Floats in a layer of the adapter."""
        return layer_size(self.config, self.rank, self.targets)

    @property
    def vocab_tile(self) -> int:
        return min(self.plan.vocab_tile, self.config.vocab_size)


def structured_pass(s: Sizes) -> Ledger:
    """A whole step of MeSP: forward, loss, and one block's backward (all blocks are alike)."""
    ledger = Ledger()
    tokens, width = s.plan.tokens, s.config.hidden_size
    with ledger.frame():
        begin_pass(ledger, s)
        with ledger.frame():
            ledger.take("checkpoint on its way out", tokens, width, itemsize=s.operand)
        with ledger.frame():
            layer_parameters(ledger, s)
            block_forward(ledger, s)
        with ledger.frame():
            loss_and_gradient(ledger, s)
        if s.rank:
            with ledger.frame():
                ledger.take("checkpoint", tokens, width, itemsize=s.operand)
                ledger.take("LoRA gradients of a layer", s.adapter)
                layer_parameters(ledger, s)
                block_backward(ledger, s)
    return ledger


def begin_pass(ledger: Ledger, s: Sizes) -> None:
    """What lives from the first block to the last: rotary tables, the residual stream (later its gradient)."""
    half = s.config.head_dim // 2
    ledger.take("rotary cos", s.plan.tokens, half)
    ledger.take("rotary sin", s.plan.tokens, half)
    ledger.take("residual stream, then dy", s.plan.tokens, s.config.hidden_size)


def layer_parameters(ledger: Ledger, s: Sizes) -> None:
    """A layer of the adapter."""
    if s.rank:
        ledger.take("LoRA parameters of a layer", s.adapter)


def block_forward(ledger: Ledger, s: Sizes) -> None:
    """backprop.block.forward"""
    with ledger.frame():
        attention_forward(ledger, s)
        output_projection(ledger, s)
    mlp_forward(ledger, s)


def kept_block(s: Sizes) -> int:
    """Bytes of a backprop.block.BlockState, for plans that keep them."""
    ledger = Ledger()
    tokens, c = s.plan.tokens, s.config
    attention_state(ledger, s)
    ledger.take("m", tokens, c.hidden_size)
    ledger.take("gate", tokens, c.intermediate_size)
    ledger.take("up", tokens, c.intermediate_size)
    return ledger.peak()[0]


def block_backward(ledger: Ledger, s: Sizes) -> None:
    """backprop.block.backward"""
    if s.plan.keep_blocks:
        mlp_backward(ledger, s)
        attention_backward(ledger, s)
        return
    with ledger.frame():
        attention_forward(ledger, s)
        with ledger.frame():
            ledger.take("m", s.plan.tokens, s.config.hidden_size)
            output_projection(ledger, s)
            mlp_backward(ledger, s)
        attention_backward(ledger, s)


def attention_forward(ledger: Ledger, s: Sizes) -> None:
    """backprop.attention.forward; its state stays for the caller's frame."""
    attention_state(ledger, s)
    with ledger.frame():
        ledger.take("n1", s.plan.tokens, s.config.hidden_size, itemsize=s.operand)


def attention_state(ledger: Ledger, s: Sizes) -> None:
    """backprop.attention.AttentionState"""
    tokens, c = s.plan.tokens, s.config
    ledger.take("q", tokens, c.q_size)
    ledger.take("k", tokens, c.kv_size)
    ledger.take("v", tokens, c.kv_size)
    ledger.take("o", tokens, c.q_size, itemsize=s.operand)
    ledger.take("log-sum-exp", c.num_attention_heads, tokens)
    for name in ("q_proj", "k_proj", "v_proj"):
        _projection(ledger, s, name, "h")


def output_projection(ledger: Ledger, s: Sizes) -> None:
    """m = x + lin_o(o)"""
    with ledger.frame():
        _projection(ledger, s, "o_proj", "h")


def attention_backward(ledger: Ledger, s: Sizes) -> None:
    """backprop.attention.backward"""
    tokens, c = s.plan.tokens, s.config
    with ledger.frame():
        ledger.take("dq", tokens, c.q_size)
        ledger.take("dk", tokens, c.kv_size)
        ledger.take("dv", tokens, c.kv_size)
        with ledger.frame():
            ledger.take("do", tokens, c.q_size)
            with ledger.frame():
                ledger.take("dm, operand", tokens, c.hidden_size, itemsize=s.operand)
                _projection(ledger, s, "o_proj", "h")
                _projection(ledger, s, "o_proj", "dh")
            ledger.take("delta", c.num_attention_heads, tokens)
        ledger.take("n1", tokens, c.hidden_size, itemsize=s.operand)
        ledger.take("dn1", tokens, c.hidden_size)
        for name, width in (("q_proj", c.q_size), ("k_proj", c.kv_size), ("v_proj", c.kv_size)):
            with ledger.frame():
                ledger.take(f"d{name[0]}, operand", tokens, width, itemsize=s.operand)
                if not s.plan.keep_h:
                    _projection(ledger, s, name, "h")
                _projection(ledger, s, name, "dh")


def mlp_forward(ledger: Ledger, s: Sizes) -> None:
    """backprop.mlp.forward"""
    tokens, c = s.plan.tokens, s.config
    tile = min(s.plan.mlp_tile, c.intermediate_size)
    with ledger.frame():
        ledger.take("n2", tokens, c.hidden_size, itemsize=s.operand)
        _projection(ledger, s, "gate_proj", "h")
        _projection(ledger, s, "up_proj", "h")
        _accumulator(ledger, s, "down_proj", "h")
        with ledger.frame():
            ledger.take("gate tile", tokens, tile)
            ledger.take("up tile", tokens, tile)
            ledger.take("a tile", tokens, tile, itemsize=s.operand)
            _finished(ledger, s, "down_proj", "h")


def mlp_backward(ledger: Ledger, s: Sizes) -> None:
    """backprop.mlp.backward"""
    tokens, c = s.plan.tokens, s.config
    tile = min(s.plan.mlp_tile, c.intermediate_size)
    with ledger.frame():
        ledger.take("n2", tokens, c.hidden_size, itemsize=s.operand)
        ledger.take("dy, operand", tokens, c.hidden_size, itemsize=s.operand)
        ledger.take("dn2", tokens, c.hidden_size)
        _projection(ledger, s, "gate_proj", "h")
        _projection(ledger, s, "up_proj", "h")
        _accumulator(ledger, s, "gate_proj", "dh")
        _accumulator(ledger, s, "up_proj", "dh")
        _accumulator(ledger, s, "down_proj", "h")
        _projection(ledger, s, "down_proj", "dh")
        with ledger.frame():
            ledger.take("dgate tile", tokens, tile, itemsize=s.operand)
            ledger.take("dup tile", tokens, tile, itemsize=s.operand)
            with ledger.frame():
                if not s.plan.keep_blocks:
                    ledger.take("gate tile", tokens, tile)
                    ledger.take("up tile", tokens, tile)
                ledger.take("da tile", tokens, tile)
                ledger.take("a tile", tokens, tile, itemsize=s.operand)
        for name, what in (("down_proj", "h"), ("gate_proj", "dh"), ("up_proj", "dh")):
            _finished(ledger, s, name, what)


def loss_and_gradient(ledger: Ledger, s: Sizes) -> None:
    """backprop.loss.loss_and_gradient, every token supervised"""
    tokens, width = s.plan.tokens, s.config.hidden_size
    rows = min(LOSS_ROWS, tokens)
    ledger.take("hidden", tokens, width, itemsize=s.operand)
    with ledger.frame():
        ledger.take("rows of the residual stream", rows, width)
    for name in ("softmax reference", "softmax sum", "target logits"):
        ledger.take(name, tokens)
    ledger.take("dhidden", tokens, width)
    with ledger.frame():
        ledger.take("logits tile", tokens, s.vocab_tile)
        ledger.take("p tile", tokens, s.vocab_tile, itemsize=s.operand)
    with ledger.frame():
        ledger.take("target rows", rows, width)
        ledger.take("gradient rows", rows, width)


def loss_tiles(ledger: Ledger, s: Sizes) -> None:
    """backprop.loss.loss: no gradient"""
    tokens, width = s.plan.tokens, s.config.hidden_size
    ledger.take("hidden", tokens, width, itemsize=s.operand)
    with ledger.frame():
        ledger.take("rows of the residual stream", min(LOSS_ROWS, tokens), width)
    for name in ("softmax reference", "softmax sum", "target logits"):
        ledger.take(name, tokens)
    with ledger.frame():
        ledger.take("logits tile", tokens, s.vocab_tile)


def _projection(ledger: Ledger, s: Sizes, target: str, what: str) -> None:
    """A T x r operand, if the target has an adapter."""
    if target in s.targets:
        ledger.take(f"{what} of {target}", s.plan.tokens, s.rank, itemsize=s.operand)


def _accumulator(ledger: Ledger, s: Sizes, target: str, what: str) -> None:
    """A T x r sum in float32, if the target has an adapter."""
    if target in s.targets:
        ledger.take(f"{what} of {target}, sum", s.plan.tokens, s.rank)


def _finished(ledger: Ledger, s: Sizes, target: str, what: str) -> None:
    """That sum as an operand, where the types differ."""
    if target in s.targets and s.operand != F32:
        ledger.take(f"{what} of {target}", s.plan.tokens, s.rank, itemsize=s.operand)
