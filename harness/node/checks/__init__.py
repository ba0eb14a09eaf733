"""Every check of a node, in the order in which a node is built."""

# Importing registers them, in this order.
from harness.node.checks import host, nvidia, kubernetes, cluster, monitoring  # noqa: F401, I001
from harness.node.checks.registry import NodeCheck, Node, registered

__all__ = ["Node", "NodeCheck", "registered"]
