"""Read the entries of a config.json and check their types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError, excerpt

LOCAL, GLOBAL = "sliding_attention", "full_attention"
LARGEST = 1 << 31  # larger sizes mean a corrupt file
MOST_LAYERS = 1 << 16  # more layers mean a corrupt file


class HFConfig:
    """Typed access to a config.json. All errors name the file and the entry."""

    def __init__(self, path: Path, entries: Mapping[str, Any]) -> None:
        self.path, self.entries = path, entries

    def with_defaults(self, defaults: Mapping[str, Any]) -> HFConfig:
        """Return the entries, with `defaults` for missing ones and for null."""
        given = {name: value for name, value in self.entries.items() if value is not None}
        return HFConfig(self.path, {**defaults, **given})

    def text_part(self, with_images: Collection[str]) -> HFConfig:
        """Return the entries about the text model: `text_config` if the model_type is one `with_images`, else all."""
        if self.entries["model_type"] not in with_images:
            return self
        text = self.entries.get("text_config")
        if not isinstance(text, dict):
            raise self.unsupported("text_config", text)
        tied = {name: self.entries[name] for name in ("tie_word_embeddings",) if name in self.entries}
        return HFConfig(self.path, {**text, **tied, "quantization_config": self.entries.get("quantization_config")})

    def integer(self, name: str, default: int | None = None, among: Mapping[str, Any] | None = None) -> int:
        """Return a whole number.

        `among`: the mapping to read from; default: all entries. Raises FeatherbackError if the entry has another type,
        or is missing or null without a default.
        """
        value = self._value(self.entries if among is None else among, name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not abs(value) < LARGEST:
            raise self.unsupported(name, value)
        return value

    def number(self, name: str, default: float, among: Mapping[str, Any] | None = None) -> float:
        """Return a number, read from `among` (default: all entries)."""
        value = self._value(self.entries if among is None else among, name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.unsupported(name, value)
        try:
            return float(value)
        except OverflowError:
            raise self.unsupported(name, value) from None

    def numbers(self, name: str, count: int, among: Mapping[str, Any]) -> list[float]:
        """Return a list of `count` numbers, read from `among`."""
        values = self._value(among, name, None)
        if not isinstance(values, list) or len(values) != count:
            raise self.unsupported(name, values, (f"a list of {count} numbers",))
        return [self.number(name, 0, {name: value}) for value in values]

    def flag(self, name: str, default: bool, among: Mapping[str, Any] | None = None) -> bool:
        """Return a boolean, read from `among` (default: all entries)."""
        value = self._value(self.entries if among is None else among, name, default)
        if not isinstance(value, bool):
            raise self.unsupported(name, value)
        return value

    def unsupported(self, name: str, value: object, known: Collection[str] = ()) -> FeatherbackError:
        """The error about an entry with an unsupported value. `known`: the supported values."""
        listed = f" (supported: {', '.join(known)})" if known else ""
        return FeatherbackError(f"The entry {name} of {self.path} is {excerpt(value)}, which is not supported{listed}.")

    def windows(self, window: int, is_local: Callable[[int], bool]) -> tuple[int, ...]:
        """Read the `windows` of ModelConfig: `window` (0: none) for each local layer.

        The entry `layer_types` lists the local layers; without it, `is_local` decides.
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
        """Return the entries about rotary embedding, which are in one entry (transformers 5) or in two (earlier
        versions).
        """
        rope: dict[str, Any] = {}
        for name in ("rope_scaling", "rope_parameters"):
            part = self.entries.get(name) or {}
            if not isinstance(part, dict):
                raise self.unsupported(name, part)
            rope |= part
        rope.setdefault("rope_theta", self.entries.get("rope_theta"))
        return rope
