"""Files of adapters."""

from __future__ import annotations

from pathlib import Path

from featherback.cli.inspect import describe
from featherback.exports import formats
from featherback.exports.formats import gguf, mlx, peft
from featherback.models import load
from featherback.models.adapter import LoRA, Pair
from tests.fuzz.kinds.base import SMALL, Kind, Several, kind
from tests.fuzz.kinds.models import and_some_data
from tests.fuzz.mutate import damaged
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny


@kind
class Adapter(Kind):
    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        peft.FORMAT.save(LoRA(self.model, rank=2), self.folder)
        return [self.folder / "adapter_config.json"]

    def use(self, changed: Path) -> None:
        formats.load(self.model, self.folder)
        describe(str(self.folder))


@kind
class AdapterWeights(Adapter):
    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        return [super().files[0].with_name("adapter_model.safetensors")]

    def header(self, good: bytes) -> int:
        return and_some_data(good)


@kind
class AdapterPatterns(Adapter):
    """A PEFT adapter with different ranks and alphas, and without one projection."""

    @property
    def files(self) -> list[Path]:
        found = super().files
        unusual = {(0, "q_proj"): Pair(3, 4.0), (1, "v_proj"): None}
        peft.FORMAT.save(LoRA(self.model, rank=2, rslora=True, exceptions=unusual), self.folder)
        return found


@kind
class DoRA(Several, Adapter):
    """A PEFT directory with magnitudes, one pair of another rank and one left out."""

    def header(self, good: bytes) -> int:
        return and_some_data(good)

    @property
    def files(self) -> list[Path]:
        [config] = super().files
        unusual = {(0, "q_proj"): Pair(3, 4.0), (1, "v_proj"): None}
        peft.FORMAT.save(LoRA(self.model, rank=2, dora=True, exceptions=unusual), self.folder)
        return [config, config.with_name("adapter_model.safetensors")]


@kind
class GGUFAdapter(Kind):
    mutate = staticmethod(damaged)

    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        gguf.FORMAT.save(LoRA(self.model, rank=2), self.folder / "adapter.gguf", "someone/tiny")
        return [self.folder / "adapter.gguf"]

    def header(self, good: bytes) -> int:
        return good.index(b"blk.1.")

    def use(self, changed: Path) -> None:
        formats.load(self.model, self.folder / "adapter.gguf")
        describe(str(self.folder / "adapter.gguf"))


@kind
class MLXAdapter(Adapter):
    @property
    def files(self) -> list[Path]:
        self.model = load(write_tiny(self.folder / "model.gguf", tiny(TINY_LLAMA, **SMALL)))
        mlx.FORMAT.save(LoRA(self.model, rank=2), self.folder)
        return [self.folder / "adapter_config.json"]
