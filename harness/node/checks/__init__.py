"""Every check of a node, in the order in which a node is built."""

# Importing registers them, in this order.
from harness.node.checks import host, crio, nvidia, kubernetes, cluster, gpu, monitoring  # noqa: F401, I001
from harness.node.checks.registry import NodeCheck, Node, registered

__all__ = ["Node", "NodeCheck", "registered"]
