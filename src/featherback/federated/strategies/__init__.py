"""How the server combines the nodes' results. Each module defines one strategy as `STRATEGY`; add one to add a module.

A strategy here is a small dataclass: its fields are its options, and `build` makes Flower's object. Flower is imported
only then.
"""

from featherback.core.registry import OwnOptions, Registry
from featherback.federated.strategies.base import Strategy

STRATEGIES: Registry[type[Strategy]] = Registry(__name__, "STRATEGY", "strategy", shared=("base",))
OPTIONS: OwnOptions[Strategy] = OwnOptions(STRATEGIES, STRATEGIES.__getitem__)
