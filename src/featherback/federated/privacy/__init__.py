"""How the nodes' results are protected. Each module defines one way as `PRIVACY`; to add one, add a module.

The mechanisms are Flower's. A class here holds the options and connects them; Flower is imported only when it is used.
"""

from featherback.core.registry import OwnOptions, Registry
from featherback.federated.privacy.base import Privacy

PRIVACIES: Registry[type[Privacy]] = Registry(__name__, "PRIVACY", "privacy", shared=("base",))
OPTIONS: OwnOptions[Privacy] = OwnOptions(PRIVACIES, PRIVACIES.__getitem__)
