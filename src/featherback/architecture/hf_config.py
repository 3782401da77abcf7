"""The part of a model's configuration that every family writes alike into Hugging Face's config.json."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from featherback.architecture import rope
from featherback.architecture.rope.base import Plain
from featherback.errors import FeatherbackError, shown

# Entries that change what a model computes in ways Featherback does not follow, and the values accepted.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_causal": (True,),
    "quantization_config": (None,),
}

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


def common_config(
    config: HFConfig, architecture: str, followed: Collection[str] = (), rotation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments of ModelConfig read alike for every family; FeatherbackError if one is absent or unfit.

    `followed`: entries beyond these that the family follows; others must have their neutral values. `rotation`: what
    the family takes for the entries about rotary embedding, in place of `config.rope()`.
    """
    for name, accepted in NEUTRAL.items():
        if name not in followed and config.entries.get(name, accepted[0]) not in accepted:
            raise config.unsupported(name, config.entries[name])
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", width // max(heads, 1))
    context = config.integer("max_position_embeddings")
    rotation = config.rope() if rotation is None else rotation
    theta = config.number("rope_theta", 10000.0, rotation)
    rotary_dim = _rotary_dim(config, rotation, head_dim, followed)
    plain = Plain(head_dim if rotary_dim is None else rotary_dim, theta, context)
    return {
        "architecture": architecture,
        "hidden_size": width,
        "intermediate_size": config.integer("intermediate_size"),
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "vocab_size": config.integer("vocab_size"),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "max_position_embeddings": context,
        "tie_word_embeddings": config.flag("tie_word_embeddings", False),
        "rope_interleaved": False,
        "rope_scaling": rope.read_hf(config, rotation, plain),
        "rotary_dim": rotary_dim,
    }


def _rotary_dim(config: HFConfig, rotation: Mapping[str, Any], head_dim: int, followed: Collection[str]) -> int | None:
    """ModelConfig's `rotary_dim`; FeatherbackError if the family rotates whole heads but the entries say otherwise."""
    name = "partial_rotary_factor"
    entries = rotation if rotation.get(name) is not None else config.entries
    part = config.number(name, 1, entries)
    if part == 1:
        return None
    if name not in followed or not 0 < part < 1:
        raise config.unsupported(name, part)
    return int(head_dim * part)


def late_windows(config: HFConfig) -> tuple[int, ...]:
    """ModelConfig's `windows` as Qwen has them: from layer `max_window_layers` on, if `use_sliding_window` is set."""
    if not config.flag("use_sliding_window", False):
        return ()
    first = config.integer("max_window_layers", 28)
    return config.windows(config.integer("sliding_window", 4096), lambda layer: layer >= first)
