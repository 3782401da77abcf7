"""A recorded step, replayed in Python by the text of its file alone: the reading that docs/recording.md describes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from featherback.data.batch import IGNORE, Batch
from featherback.engine import kernels
from featherback.engine.backend.cpu import CPU
from featherback.engine.backend.protocol import Operations
from featherback.engine.formats.store import matrix
from featherback.models.model import Model

TYPES = {"f32": np.float32, "bf16": np.uint16}
STRINGS = ("silu", "gelu", "gelu_tanh", "relu2", "clipped_silu")


class Replay:
    """A recording for an open model, with the adapter's values and gradients (layers, size)."""

    def __init__(self, path: Path, model: Model) -> None:
        text, rest = path.read_bytes().split(b"\nnumbers ", 1)
        count, self._numbers = rest.split(b"\n", 1)
        assert len(self._numbers) <= int(count)
        lines = iter(text.decode().splitlines())
        head = [next(lines).split() for _ in range(8)]
        assert head[0] == ["featherback-recording", "1"]
        self.compute, self.most, self.most_rows = head[2][1], int(head[4][1]), int(head[4][3])
        slots, width = map(int, head[6][1:3])
        self.values = np.zeros(tuple(map(int, head[7][1:])), np.float32)
        self.gradients = np.zeros_like(self.values)
        self._checkpoints = np.zeros((slots, self.most, width), TYPES[head[6][3]])
        self._spaces = {"s": np.zeros(int(head[5][1]), np.uint8), "k": np.zeros(int(head[5][3]), np.uint8)}
        self.sections: dict[str, list[list[str]]] = {}
        for line in lines:
            name, n = line.split()
            self.sections[name] = [next(lines).split() for _ in range(int(n))]
        self._model = model
        self._weights = [matrix(model.store, name) for name, *_ in self.sections["weights"]]
        self._vectors = [self._vector(*line) for line in self.sections["vectors"]]
        self._ops = CPU(self.compute)

    def _vector(self, name: str, size: str, offset: str, _: str = "") -> np.ndarray[Any, Any]:
        if offset == "-":
            return self._model.store.data(name).view(np.float32)
        return np.frombuffer(self._numbers, np.float32, int(size), int(offset))

    def step(self, batch: Batch, scale: float) -> float:
        """Compute the gradients of scale * loss, and return the loss."""
        supervised = batch.targets != IGNORE
        rows = np.flatnonzero(supervised)
        batch_numbers = {
            "tokens": batch.tokens, "positions": batch.positions, "targets": batch.targets[rows], "rows": rows,
            "others": np.flatnonzero(~supervised), "cu": batch.cu_seqlens,
        }  # fmt: skip
        extents = {"T": batch.n_tokens, "R": len(rows)}
        loss = 0.0
        for name, *words in self.sections["calls"]:
            arguments = [self._argument(word, extents, batch_numbers, scale) for word in words]
            if any(isinstance(each, np.ndarray) and each.size == 0 for each in arguments) and name != "zero_rows":
                continue
            found = self._call(name, arguments)
            loss += found
        return loss

    def _call(self, name: str, a: list[Any]) -> float:
        match name:
            case "fetch_values":
                a[1][...] = self.values[a[0]]
            case "fetch_gradients":
                a[1][...] = self.gradients[a[0]]
            case "store_gradients":
                self.gradients[a[0]] = a[1]
            case "save":
                self._ops.ops.cast(a[1], self._checkpoints[a[0], : len(a[1])])
            case "load":
                self._ops.ops.cast(self._checkpoints[a[0], : len(a[1])], a[1])
            case "loss":
                return float(np.sum(a[0].astype(np.float64)))
            case "release":
                pass
            case "gather_rows":
                kernels.gather_rows(*a)
            case "rotary_table":
                (cos, sin), positions = a[0], a[1]
                a[2][...], a[3][...] = cos[positions], sin[positions]
            case _:
                parameters = list(inspect.signature(getattr(Operations, name)).parameters.values())[1:]
                typed = [
                    bool(value) if p.annotation == "bool" else value for p, value in zip(parameters, a, strict=True)
                ]
                named = {p.name: value for p, value in zip(parameters, typed) if p.kind is p.KEYWORD_ONLY}
                getattr(self._ops.ops, name)(*typed[: len(typed) - len(named)], **named)
        return 0.0

    def _argument(self, word: str, extents: dict[str, int], numbers: dict[str, Any], scale: float) -> Any:
        kind, _, span = word.partition(":")
        if word == "-":
            return None
        if word == "scale":
            return scale
        if word in STRINGS:
            return word
        if kind in numbers:
            first, last = map(int, span.split("-")) if span else (0, None)
            return numbers[kind][first:last]
        if word[0] == "w":
            index, row, col, rows, cols = map(int, word[1:].split(":"))
            return kernels.matrix(self._weights[index]).slice((row, row + rows), (col, col + cols))
        if word[0] == "t":
            cos, sin, rows, cols = map(int, self.sections["tables"][int(word[1:])])
            return [np.frombuffer(self._numbers, np.float32, rows * cols, at).reshape(rows, cols) for at in (cos, sin)]
        if word[0] == "d":
            return self._ops.ops.dense(self._array(word[1:], extents))
        if word[0] in "skv" and "+" in word:
            return self._array(word, extents)
        return float.fromhex(word) if any(sign in word for sign in ("x", "inf", "nan")) else int(word)

    def _array(self, word: str, extents: dict[str, int]) -> np.ndarray[Any, Any]:
        place, rows, cols, ld, kind = word.split(":")
        space, offset = place.split("+")
        memory = self._vectors[int(space[1:])].view(np.uint8) if space[0] == "v" else self._spaces[space]
        itemsize = np.dtype(TYPES[kind]).itemsize
        height, width, stride = (_extent(each, extents) for each in (rows, cols, ld))
        array = np.ndarray((height, width), TYPES[kind], memory, int(offset), (stride * itemsize, itemsize))
        return array[0] if rows == "1" else array


def _extent(word: str, extents: dict[str, int]) -> int:
    if word[0] == "R" and len(word) > 1:
        first, last = map(int, word[1:].split("-"))
        return max(0, min(last, extents["R"]) - first)
    return extents.get(word) or (0 if word in extents else int(word))
