"""Options of a federation and of a node, as Flower passes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from featherback import models
from featherback.errors import FeatherbackError
from featherback.federated.settings import Federation, Node
from featherback.federated.strategies import STRATEGIES
from tests.support.tiny_chat import write_messages, write_tiny_chat

RUN = {"model": "/models/m.gguf", "out": "/out"}


def test_defaults_and_tables() -> None:
    found = Federation.of(
        {**RUN, "min-nodes": 3, "strategy": "fedadam", "fedadam.eta": 0.1, "fedprox.mu": 9.0, "privacy": "local-dp"}
        | {"train.lr": 1e-3, "train.batch-size": 2, "node.data": "/d"}
    )
    assert (found.rounds, found.min_nodes, found.privacy) == (5, 3, "local_dp")
    assert found.strategy_options["eta"] == 0.1
    assert found.privacy_options["clipping_norm"] == 10.0
    assert found.train["epochs"] == 1.0
    assert (found.train["lr"], found.train["batch_size"]) == (1e-3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds.*at least 1"),
        ({"round": 3}, "no option 'round'.*Did you mean `rounds`"),
        ({"strategy": "fedavgg"}, "Did you mean `fedavg`"),
        ({"strategy": "fedadam", "fedadam.mu": 1.0}, "mu.*fedadam.*eta"),
        ({"treason.lr": 1.0}, "unknown table 'treason'"),
        ({"train.lrr": 1.0}, "no option 'lrr'"),
        ({"train.lr": "much"}, "lr"),
        ({"train.out": "/x"}, "sets out, which each node sets for itself"),
        ({"train.log_to": "wandb"}, "sets log_to"),
        ({"out": "result"}, "out is 'result'.*absolute path"),
        ({"model": ""}, "no model"),
        ({"privacy": "central_dp", "strategy": "fedadam"}, "central_dp.*fedavg"),
        ({"privacy": "local_dp", "strategy": "gradients"}, "local_dp.*fedadam"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatherbackError, match=message):
        Federation.of({**RUN, **options})


def test_options_of_training_are_checked_for_the_model(tmp_path: Path) -> None:
    model = models.load(write_tiny_chat(tmp_path / "tiny.gguf"))
    assert Federation.of({**RUN, "train.rank": 4}).config(model).form.kind.width == 4
    with pytest.raises(FeatherbackError, match=r"Unknown LoRA target .nothing."):
        Federation.of({**RUN, "train.targets": "q,nothing"}).config(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train.train": "full"}, "train = 'full'; a federation trains adapters"),
        (
            {"strategy": "gradients", "train.objective": "smoothed"},
            "gradients works with objective = 'next_token' only",
        ),
        ({"strategy": "gradients", "train.lora_dropout": 0.1}, "gradients works with lora_dropout = 0.0 only"),
    ],
)
def test_what_a_federation_cannot_train_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    model = models.load(write_tiny_chat(tmp_path / "tiny.gguf"))
    with pytest.raises(FeatherbackError, match=message):
        Federation.of({**RUN, **options}).config(model)


def test_a_node_has_its_own_options(tmp_path: Path) -> None:
    data = write_messages(tmp_path / "data.jsonl")
    own = {"model": "/m", "data": str(data), "work": "/w", "memory": "60MB", "eval-data": str(data)}
    node = Node.of(own, {**RUN, "node.model": "/not-this", "node.memory": "1GB"})
    assert (node.model, node.memory, node.eval_data) == ("/m", "60MB", (str(data),))


def test_the_nodes_of_a_simulation_share_a_table(tmp_path: Path) -> None:
    data = write_messages(tmp_path / "data-1.jsonl")
    shared = {"node.model": "/m", "node.work": "/w/{node}", "node.data": f"{tmp_path}/data-{{node}}.jsonl"}
    node = Node.of({"partition-id": 1, "num-partitions": 2}, {**RUN, **shared})
    assert (node.work, node.data) == ("/w/1", (str(data),))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": None}, "This node has no data.*flower-supernode --node-config"),
        ({"data": "data.jsonl"}, "'data.jsonl'.*absolute path"),
        ({"data": "/nowhere.jsonl"}, "There is no /nowhere.jsonl"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_wrong_option_of_a_node_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    data = write_messages(tmp_path / "data.jsonl")
    own = {"model": "/m", "data": str(data), "work": "/w", **options}
    with pytest.raises(FeatherbackError, match=message):
        Node.of({name: value for name, value in own.items() if value is not None}, RUN)


def test_every_strategy_has_a_page_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "federated.md").read_text()
    assert all(f"| `{name}` |" in page for name in STRATEGIES.names)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, None),  # one pass over the node's data, however many they are
        ({"train.epochs": 2}, None),
        ({"train.steps": 10, "train.seq-len": 64}, 640),
        ({"train.steps": 10, "train.seq-len": 64, "train.batch-size": 2, "train.accumulate": 3}, 3840),
        ({"strategy": "gradients", "train.seq-len": 64, "train.accumulate": 8}, 512),
        ({"strategy": "gradients", "train.steps": 10, "train.seq-len": 64}, 64),
    ],
)
def test_the_server_knows_how_many_tokens_a_round_can_have(
    tmp_path: Path, options: dict[str, Any], most: int | None
) -> None:
    model = models.load(write_tiny_chat(tmp_path / "tiny.gguf"))
    federation = Federation.of({**RUN, **options})
    assert federation.most_tokens(federation.config(model), model) == most
