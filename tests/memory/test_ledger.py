"""The ledger against the arena: the same bytes at the peak, for every method, in many settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from featherback import methods, models
from featherback.adapters.lora import LoRA
from featherback.bench.ledger_table import MARKER, page_with_table
from featherback.data.batch import Batch
from featherback.host.paged import PagedArray
from featherback.memory.arena import aligned
from featherback.memory.ledger import Ledger, Sizes, kept_block, structured_pass
from featherback.memory.plan import Plan
from featherback.methods import NAMES
from featherback.methods.base import CheckpointedMethod
from featherback.models.model import Model
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, TINY_WIDE, tiny, write_tiny

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"

CONFIGS = {
    "llama": TINY_LLAMA,
    "qwen2": TINY_QWEN2,
    "wide": tiny(TINY_WIDE, intermediate_size=768, vocab_size=300, tie_word_embeddings=False),
}
ADAPTERS = [(4, "all"), (8, "q,down"), (3, "v,o,gate"), (1, "k"), (33, "all")]
TILES = [(256, 33), (512, 101), (1024, 1024)]


@pytest.fixture(scope="module", params=CONFIGS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("ledger") / "m.gguf"
    return models.load(write_tiny(path, CONFIGS[request.param]))


def all_supervised(rng: np.random.Generator, tokens: int, vocabulary: int) -> Batch:
    """Two sequences in which even the last tokens have a target: the most a batch can ask for."""
    parts = [max(tokens // 3, 1), tokens - max(tokens // 3, 1)] if tokens > 1 else [1]
    batch = Batch.from_sequences([rng.integers(0, vocabulary, n) for n in parts])
    return replace(batch, targets=rng.integers(0, vocabulary, tokens).astype(np.int32))


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("tokens", [1, 7, 64, 300])
@pytest.mark.parametrize("name", NAMES)
def test_high_water_is_the_ledgers_sum(model: Model, name: str, tokens: int, compute: str) -> None:
    rng = np.random.default_rng(0)
    batch = all_supervised(rng, tokens, model.config.vocab_size)
    for rank, targets in ADAPTERS:
        adapter = LoRA(model, rank, targets=targets)
        gradients = PagedArray(adapter.parameters.layers, adapter.layer_size)
        for index, (mlp, vocab) in enumerate(TILES):
            plan = Plan(
                tokens=tokens,
                compute=compute,
                mlp_tile=mlp,
                vocab_tile=vocab,
                keep_h=index != 1,
                keep_blocks=index == 2 and methods.method_class(name).can_keep_blocks,
            )
            method = methods.create(name, model, adapter, plan)
            method.gradients(batch, 1.0, gradients)
            sizes = Sizes(model.config, plan, rank, adapter.targets)
            planned = method.workspace(sizes)
            if isinstance(method, CheckpointedMethod) and method.kept is not None:
                assert method.kept.high_water == model.config.num_hidden_layers * kept_block(sizes)
                method.loss(batch)  # whose states are nobody's to keep
            if name == "mezo" and model.config.intermediate_size % min(mlp, model.config.intermediate_size):
                # The last tile, in which h of down_proj is completed, is narrower than the ledger has it.
                assert planned - aligned(tokens * rank * 2) <= method.arena.high_water <= planned
            else:
                assert method.arena.high_water == planned, (rank, targets, plan)
            assert method.arena.capacity == planned


@pytest.mark.parametrize("name", NAMES)
def test_loss_alone_stays_within(model: Model, name: str) -> None:
    rng = np.random.default_rng(0)
    for tokens in (1, 40):
        plan = Plan(tokens=tokens, mlp_tile=256, vocab_tile=33)
        method = methods.create(name, model, None, plan)
        method.loss(all_supervised(rng, tokens, model.config.vocab_size))
        assert method.arena.high_water <= method.arena.capacity


def test_peak_of_a_hand_made_ledger() -> None:
    ledger = Ledger()
    with ledger.frame():
        ledger.take("a", 16)  # 64 bytes
        with ledger.frame():
            ledger.take("b", 32)
        with ledger.frame():
            ledger.take("c", 10, itemsize=2)
            ledger.take("d", 16, 2)
    total, moment = ledger.peak()
    assert total == 64 + 64 + 128
    assert [entry.name for entry in ledger.live_at(moment)] == ["a", "c", "d"]


def test_nothing_of_t_by_f_or_t_by_v_exists(model: Model) -> None:
    tokens = 300
    plan = Plan(tokens=tokens, mlp_tile=256, vocab_tile=64)
    ledger = structured_pass(
        Sizes(tiny(TINY_LLAMA, intermediate_size=9999, vocab_size=8888), plan, 4, ("q_proj",))
    )
    largest = max(int(np.prod(entry.shape)) for entry in ledger.entries)
    assert largest == tokens * 256


def test_the_page_has_the_ledger() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert MARKER in text
    assert text == page_with_table(text), "stale: run python -m featherback.bench.ledger_table docs/memory.md"
