"""No further protection: the server sees each node's update."""

from featherback.federated.privacy.base import Privacy

PRIVACY = Privacy
