"""Entries of a config.json, read with their types checked."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError, shown

LOCAL, GLOBAL = "sliding_attention", "full_attention"
LARGEST = 1 << 31  # no size of a model comes near
MOST_LAYERS = 1 << 16  # more are a corrupt file


class HFConfig:
    """Typed access to a config.json, with errors that name the file and the entry."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path, self.entries = path, entries

    def integer(self, name: str, default: int | None = None, among: Mapping[str, Any] | None = None) -> int:
        """A whole number; FeatherbackError if it is something else, or absent (or null) without a default.

        `among`: the mapping it is taken from, if not all entries.
        """
        value = self._value(self.entries if among is None else among, name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not abs(value) < LARGEST:
            raise self.unsupported(name, value)
        return value

    def number(self, name: str, default: float, among: Mapping[str, Any] | None = None) -> float:
        """A number, from the mapping `among` if that is given."""
        value = self._value(self.entries if among is None else among, name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.unsupported(name, value)
        try:
            return float(value)
        except OverflowError:
            raise self.unsupported(name, value) from None

    def numbers(self, name: str, count: int, among: Mapping[str, Any]) -> list[float]:
        """A list of this many numbers."""
        values = self._value(among, name, None)
        if not isinstance(values, list) or len(values) != count:
            raise self.unsupported(name, values, (f"a list of {count} numbers",))
        return [self.number(name, 0, {name: value}) for value in values]

    def flag(self, name: str, default: bool, among: Mapping[str, Any] | None = None) -> bool:
        """True or false."""
        value = self._value(self.entries if among is None else among, name, default)
        if not isinstance(value, bool):
            raise self.unsupported(name, value)
        return value

    def unsupported(self, name: str, value: object, known: Collection[str] = ()) -> FeatherbackError:
        """The error of an entry whose value Featherback cannot follow; `known` are values that it can."""
        listed = f" (supported: {', '.join(known)})" if known else ""
        return FeatherbackError(f"The entry {name} of {self.path} is {shown(value)}, which is not supported{listed}.")

    def windows(self, window: int, is_local: Callable[[int], bool]) -> tuple[int, ...]:
        """ModelConfig's `windows`. `window` (0: none) is that of the layers that the entry `layer_types` names.

        `is_local` says which these are where there is no such entry.
        """
        layers, types = self.integer("num_hidden_layers"), self.entries.get("layer_types")
        if layers > MOST_LAYERS:
            raise self.unsupported("num_hidden_layers", layers)
        if types is None:
            types = [LOCAL if is_local(layer) else GLOBAL for layer in range(layers)]
        if not isinstance(types, list) or len(types) != layers or not {LOCAL, GLOBAL}.issuperset(map(str, types)):
            raise self.unsupported("layer_types", types)
        window = min(window, self.integer("max_position_embeddings"))
        if window <= 0 or LOCAL not in types:
            return ()
        return tuple(window if kind == LOCAL else 0 for kind in types)

    def _value(self, entries: Mapping[str, Any], name: str, default: Any) -> Any:
        value = entries.get(name)
        value = default if value is None else value
        if value is None:
            raise FeatherbackError(f"{self.path} has no entry {name}.")
        return value

    def rope(self) -> Mapping[str, Any]:
        """The entries about rotary embedding, whether in one place (transformers 5) or in two (before)."""
        rope: dict[str, Any] = {}
        for name in ("rope_scaling", "rope_parameters"):
            part = self.entries.get(name) or {}
            if not isinstance(part, dict):
                raise self.unsupported(name, part)
            rope |= part
        rope.setdefault("rope_theta", self.entries.get("rope_theta"))
        return rope
