"""The options of a federation: of the whole (`Federation`, from Flower's run configuration) and of a node (`Node`).

Flower passes both as flat mappings: {"rounds": 5, "train.lr": 0.001}. Names may have dashes or underscores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featherback.core.options import Panel, choice, option
from featherback.engine.backend import USUAL as USUAL_DEVICE
from featherback.errors import FeatherbackError, expected
from featherback.federated.privacy import OPTIONS as PRIVACY_OPTIONS
from featherback.federated.privacy import PRIVACIES
from featherback.federated.strategies import OPTIONS as STRATEGY_OPTIONS
from featherback.federated.strategies import STRATEGIES
from featherback.federated.strategies.base import GRADIENT
from featherback.runs import parse
from featherback.runs.by_name import fields_of
from featherback.runs.config import TrainConfig

if TYPE_CHECKING:
    from featherback.models.model import Model

Config = Mapping[str, Any]
"""A configuration as Flower passes it: text, numbers and booleans by name."""

TRAIN, NODE = "train", "node"
TABLE = "The table train of the run configuration"
"""The table of the run configuration that holds options of `featherback train`, and its name in messages."""
OWN = ("model", "data", "eval_data", "out", "start", "memory", "threads", "log_to", "teacher")
"""Options of `featherback train` that are not the federation's to choose: the node's, or set in each round."""
USUAL: Mapping[str, Any] = {"schedule": "constant", "keep": "last", "samples": 0, "eval_share": 0.0}
"""Defaults of a round's training where they differ from those of `featherback train`."""


@dataclass(frozen=True, kw_only=True)
class Federation(Panel):
    """The options of the whole federation. Raises FeatherbackError if one of them is wrong."""

    title = "Federation"

    model: str = option(help="The server's copy of the base model. Its weights are not read.")
    out: str = option(help="Folder of the server for the adapter of each round.")
    rounds: int = option(5, least=1, help="Rounds of the whole federation.")
    strategy: str = choice("fedavg", own=STRATEGY_OPTIONS, help="How the server combines the nodes' results.")
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    privacy: str = choice("none", own=PRIVACY_OPTIONS, help="How the nodes' results are protected.")
    privacy_options: Mapping[str, Any] = field(default_factory=dict)
    min_nodes: int = option(2, least=1, help="Wait for this many nodes before each round.")
    share: float = option(1.0, above=0, most=1, help="Share of the connected nodes that train in each round.")
    timeout: float = option(3600.0, above=0, help="Seconds after which a round goes on without the missing nodes.")
    evaluate_every: int = option(1, least=1, help="Rounds between measurements of the held-out loss.")
    save_every: int = option(1, least=1, help="Rounds between saved adapters.")
    largest_update: float = option(
        20.0, above=1, help="Reject an update whose norm is this many times as large as the others'."
    )
    largest_weight: float = option(
        4.0, least=1, help="Count a node's tokens as at most this many times as many as usual."
    )
    train: Mapping[str, Any] = field(default_factory=dict)  # options of `featherback train`, as they are written

    @classmethod
    def of(cls, run_config: Config) -> Federation:
        """Read a run configuration. Tables of strategies and privacies that are not chosen are ignored."""
        values, tables = _tables(run_config)
        known = {entry.name for entry in fields(cls)} - {"train", "strategy_options", "privacy_options"}
        for name in values:
            if name not in known:
                raise FeatherbackError(f"The run configuration has no option {name!r}; {expected(name, sorted(known))}")
        for name in tables:
            if (
                name not in (TRAIN, NODE)
                and name not in STRATEGY_OPTIONS.registry.names
                and name not in PRIVACIES.names
            ):
                raise FeatherbackError(f"The run configuration has an unknown table {name!r}.")
        missing = [name for name in ("model", "out") if not values.get(name)]
        if missing:
            raise FeatherbackError(f"The run configuration has no {' and no '.join(missing)}.")
        chosen = {name: str(values.get(name, _default(cls, name))) for name in ("strategy", "privacy")}
        written = tables.get(TRAIN, {})
        named = fields_of(written, TABLE)
        if taken := sorted(named.keys() & set(OWN)):
            raise FeatherbackError(
                f"{TABLE} sets {', '.join(taken)}, which each node sets for itself (--node-config). Remove it."
            )
        values |= {name: _word(value) for name, value in chosen.items()}
        usual = USUAL if named.keys() & {"steps", "epochs"} else {**USUAL, "epochs": 1.0}
        return cls(
            **values,
            strategy_options=tables.get(values["strategy"], {}),
            privacy_options=tables.get(values["privacy"], {}),
            train={**{name: value for name, value in usual.items() if name not in named}, **written},
        )

    def check_rules(self) -> None:
        for name in ("model", "out"):
            if not os.path.isabs(getattr(self, name)):
                raise FeatherbackError(
                    f"{name} is {getattr(self, name)!r} in the run configuration; it must be an absolute path, because "
                    f"Flower runs the server in a folder of its own."
                )

        able = PRIVACIES[self.privacy].STRATEGIES
        if able is not None and self.strategy not in able:
            raise FeatherbackError(
                f"privacy {self.privacy} does not work with the strategy {self.strategy}. Choose one of: "
                f"{', '.join(able)}."
            )

    def config(self, model: Model) -> TrainConfig:
        """Return the options of training for this model."""
        named = fields_of(self.train, TABLE)
        if (whole := named.get("train", "lora")) != "lora":
            raise FeatherbackError(f"{TABLE} sets train = {whole!r}; a federation trains adapters. Remove it.")
        config = TrainConfig.of(model=str(model.path), out="", **named)
        if config.device != USUAL_DEVICE:
            raise FeatherbackError(
                f"{TABLE} sets device = {config.device!r}; a federation computes on the CPU. Remove it."
            )
        STRATEGIES[self.strategy].check(config)
        return config.for_model(model)

    def most_tokens(self, config: TrainConfig, model: Model) -> int | None:
        """Return the most supervised tokens that a node can have in a round; None if that depends on its data."""
        steps = 1 if STRATEGIES[self.strategy].TASK == GRADIENT else config.steps
        longest = config.seq_len or model.config.max_position_embeddings
        return None if steps is None else steps * replace(config, seq_len=longest).most_step_tokens


@dataclass(frozen=True, kw_only=True)
class Node(Panel):
    """What a node brings: its model, data and limits. Nothing here is sent to the server."""

    title = "Node"

    model: str = option(help="The node's copy of the base model, in any quantisation.")
    data: tuple[str, ...] = option(help="The node's own training data.", parse=parse.paths)
    eval_data: tuple[str, ...] | None = option(None, help="The node's own held-out data.", parse=parse.paths)
    work: str = option(help="Folder for the node's rounds.")
    memory: str | None = option(None, help="Memory budget of training, such as 60MB.")
    threads: int | None = option(None, least=1, help="Threads of training.")

    @classmethod
    def of(cls, node_config: Config, run_config: Config) -> Node:
        """Read the configuration of a node.

        In a simulation all nodes have the run's configuration: its table "node" stands for their own, and {node} in it
        for a node's number.
        """
        number = node_config.get("partition-id")
        shared = _tables(run_config)[1].get(NODE, {}) if number is not None else {}
        own = {_word(name): value for name, value in node_config.items()}
        known = {entry.name for entry in fields(cls)}
        values = {**shared, **{name: value for name, value in own.items() if name in known}}
        for name in shared:
            if name not in known:
                raise FeatherbackError(f"The table node has no option {name!r}; {expected(name, sorted(known))}")
        values = {
            name: value.replace("{node}", str(number)) if isinstance(value, str) and number is not None else value
            for name, value in values.items()
        }
        missing = [name for name in ("model", "data", "work") if not values.get(name)]
        if missing:
            wanted = " ".join(f"{name}='\"/path\"'" for name in missing)
            raise FeatherbackError(
                f'This node has no {", no ".join(missing)}. Start it with: flower-supernode --node-config "{wanted}"'
            )
        if "memory" in values:
            values["memory"] = str(values["memory"])
        return cls(**values)

    def check_rules(self) -> None:
        for path in (self.model, self.work, *self.data, *(self.eval_data or ())):
            if not os.path.isabs(path):
                raise FeatherbackError(
                    f"{path!r} in the node's configuration must be an absolute path, because Flower runs the node in a "
                    f"folder of its own."
                )
        for path in (*self.data, *(self.eval_data or ())):
            if not Path(path).exists():
                raise FeatherbackError(f"There is no {path}, which the node's configuration names.")


def _tables(config: Config) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split a flat configuration into plain values and tables, by the part of a name before the dot."""
    values: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for name, value in config.items():
        table, dot, rest = name.partition(".")
        (tables.setdefault(_word(table), {}) if dot else values)[_word(rest if dot else table)] = value
    return values, tables


def _word(name: str) -> str:
    return name.replace("-", "_")


def _default(kind: type, name: str) -> Any:
    return next(entry.default for entry in fields(kind) if entry.name == name)
