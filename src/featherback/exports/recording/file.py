"""Write a recorded step as a file: lines of text, then the numbers that the lines refer to (docs/recording.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from featherback.engine.backend.cpu import CPUOperations
from featherback.engine.backend.recording.arrays import Dense, Extent, Placed, Stored
from featherback.engine.backend.recording.device import Call
from featherback.engine.formats.gguf import GGUFFile
from featherback.exports.recording.step import SCALE, TARGETS, TOKENS, Step

VERSION = 1
ALIGNMENT = 64
"""Numbers begin at multiples of this many bytes, counted from the end of the text."""
TYPES = {np.dtype(np.float32): "f32", np.dtype(np.uint16): "bf16"}


def write(step: Step, file: IO[bytes]) -> None:
    """Write the step to an open file."""
    written = _Written(step)
    text = "\n".join(written.lines()) + "\n"
    file.write(text.encode())
    for offset, values in written.constants:
        file.write(b"\0" * (offset - written.end))
        file.write(values.tobytes())
        written.end = offset + values.nbytes


def checksum(file: GGUFFile) -> int:
    """Return the number by which libfeatherback recognises the model.

    It is computed from the number of tensors, the architecture and its settings, as they are in the file, and the
    tensors of rotary factors.
    """
    architecture = str(file.metadata["general.architecture"])
    parts = [f"{len(file.tensors)} {architecture}".encode()]
    for key in file.keys:
        if key.startswith(f"{architecture}."):
            parts += [key.encode(), bytes(file.value(key))]
    for name in sorted(file.tensors):
        if name.startswith("rope_"):
            parts += [name.encode(), _fnv(bytes(file.data(name))).to_bytes(8, "little")]
    return _fnv(b"".join(parts))


def _fnv(content: bytes) -> int:
    """Return FNV-1a in 64 bits."""
    found = 0xCBF29CE484222325
    for byte in content:
        found = (found ^ byte) * 0x100000001B3 % (1 << 64)
    return found


def _real(value: float) -> str:
    """Return a number without a decimal point, whose form depends on the locale of the program that reads it."""
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = math.frexp(value)
    return f"{int(mantissa * 2**53):#x}p{exponent - 53}"


class _Written:
    """The lines of a step, and the numbers that they refer to."""

    def __init__(self, step: Step) -> None:
        self._step, self._tokens, self._rows = step, step.plan.tokens, step.rows
        self._weights: dict[str, int] = {}
        self._weight_lines: list[str] = []
        self._tables: list[str] = []
        self.constants: list[tuple[int, NDArray[Any]]] = []
        self.end = 0  # of the numbers that have been written
        self._next = 0

    def lines(self) -> Iterator[str]:
        """Return the lines."""
        step, model = self._step, self._step.model
        calls = [self._call(call) for call in step.calls]
        slots = [call.arguments["slot"] for call in step.calls if call.name == "save"]
        checkpoint = next(call.arguments["out"] for call in step.calls if call.name == "load")
        vectors = [self._vector(vector.name, vector.size, vector.values) for vector in step.vectors]
        values = list(self._values())
        yield f"featherback-recording {VERSION}"
        assert isinstance(model.store, GGUFFile)
        yield f"model {checksum(model.store):016x}"
        yield f"compute {step.plan.compute}"
        yield f"vocabulary {model.config.vocab_size}"
        yield f"tokens {self._tokens} rows {self._rows}"
        yield f"scratch {step.scratch} kept {step.kept}"
        yield f"checkpoints {max(slots) + 1} {checkpoint.shape[1]} {TYPES[checkpoint.dtype]}"
        yield f"adapter {step.adapter.layout.slots.layers} {step.adapter.layout.size}"
        for kind, lines in (
            ("weights", self._weight_lines), ("vectors", vectors), ("tables", self._tables), ("values", values),
            ("calls", calls),
        ):  # fmt: skip
            yield f"{kind} {len(lines)}"
            yield from lines
        yield f"numbers {self._next}"

    def _vector(self, name: str, size: int, values: NDArray[np.float32] | None) -> str:
        if values is None:
            return f"{name} {size} -"
        tensor = bytes(self._step.model.store.data(name))
        return f"{name} {size} {self._constant(values)} {_fnv(tensor):016x}"

    def _values(self) -> Iterator[str]:
        """Return a line for each of the adapter's tensors, by its name in PEFT: where its elements are in a layer."""
        adapter = self._step.adapter
        for layer in adapter.layout.adapted:
            for target in adapter.layout.targets(layer):
                orders = [np.argsort(order) for order in adapter.orders(layer, target)]
                for name, part in adapter.layout.parts(layer, target).items():
                    rows, cols = part.stored
                    steps = (1, rows) if part.transposed else (cols, 1)
                    chosen = [
                        self._order(order) if used else "-"
                        for order, used in zip(orders, (part.by_output, part.by_input), strict=True)
                    ]
                    start = adapter.layout.slot(layer, target, part).start
                    yield " ".join(
                        map(str, (adapter.name(layer, target, name), layer, start, rows, cols, *steps, *chosen))
                    )

    def _order(self, order: NDArray[np.intp]) -> str:
        return "-" if np.array_equal(order, np.arange(len(order))) else str(self._constant(order.astype(np.int32)))

    def _constant(self, values: NDArray[Any]) -> int:
        """Place numbers behind the text, and return their offset there."""
        offset = self._next
        self.constants.append((offset, np.ascontiguousarray(values).reshape(-1)))
        self._next = -(-(offset + values.nbytes) // ALIGNMENT) * ALIGNMENT
        return offset

    def _call(self, call: Call) -> str:
        return " ".join((call.name, *(self._argument(call, name, value) for name, value in call.arguments.items())))

    def _argument(self, call: Call, name: str, value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, Placed):
            return self._array(value)
        if isinstance(value, Dense):
            return "d" + self._array(value.array)
        if isinstance(value, Stored):
            first, shape = value.first, value.shape
            return f"w{self._weight(value)}:{first[0]}:{first[1]}:{shape[0]}:{shape[1]}"
        if name == "inverse_frequencies":
            return self._table(value)
        if isinstance(value, np.ndarray):
            return self._numbers(call, name, value)
        if isinstance(value, float):
            return "scale" if value == SCALE else _real(value)
        if isinstance(value, (bool, int, np.integer)):
            return str(int(value))
        assert isinstance(value, str)
        return value

    def _weight(self, stored: Stored) -> int:
        if stored.name not in self._weights:
            self._weights[stored.name] = len(self._weights)
            self._weight_lines.append(f"{stored.name} {stored.type} {stored.whole[0]} {stored.whole[1]}")
        return self._weights[stored.name]

    def _array(self, array: Placed) -> str:
        *rows, cols = array.shape
        assert len(rows) < 2
        height = self._extent(rows[0]) if rows else "1"
        space, _, index = array.space.partition(" ")
        extents = f"{height}:{self._extent(cols)}:{self._extent(array.ld)}"
        return f"{space[0]}{index}+{array.offset}:{extents}:{TYPES[array.dtype]}"

    def _extent(self, extent: int) -> str:
        if isinstance(extent, Extent):
            return f"R{extent.first}-{extent.last}"
        return {self._tokens: "T", self._rows: "R"}.get(extent, str(int(extent)))

    def _table(self, frequencies: NDArray[np.float32]) -> str:
        """Place the cosines and sines of all positions behind the text: they then have the same bits everywhere."""
        shape = self._tokens, len(frequencies)
        cos, sin = np.empty(shape, np.float32), np.empty(shape, np.float32)
        CPUOperations.rotary_table(frequencies, np.arange(self._tokens, dtype=np.int32), cos, sin)
        line = f"{self._constant(cos)} {self._constant(sin)} {shape[0]} {shape[1]}"
        if line not in self._tables:
            self._tables.append(line)
        return f"t{self._tables.index(line)}"

    def _numbers(self, call: Call, name: str, values: NDArray[Any]) -> str:
        """Return which numbers of a batch these are, from what the recorded batch has."""
        tokens, rows = np.arange(self._tokens), np.arange(self._rows)
        if name.startswith("cu_"):
            assert values.tolist() == [0, self._tokens]
            return "cu"
        whole = {
            "tokens": TOKENS + tokens, "positions": tokens, "targets": TARGETS + rows, "rows": rows,
            "others": tokens[self._rows :],
        }  # fmt: skip
        kinds = {"positions": ("positions",), "rows": ("others", "rows"), "ids": ("tokens", "targets")}
        for kind in kinds.get(name, (name,)):
            if np.array_equal(values, whole[kind]):
                return kind
        for kind in ("rows", "targets"):
            first = int(values[0]) - (TARGETS if kind == "targets" else 0)
            if 0 <= first < self._rows and np.array_equal(values, whole[kind][first : first + len(values)]):
                return f"{kind}:{first}-{first + len(values)}"
        raise AssertionError(f"{call.name} reads numbers that a batch does not have")
